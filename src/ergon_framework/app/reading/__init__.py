"""Reading the settings: the file, its lines, variables, secrets, and what each section may hold."""
