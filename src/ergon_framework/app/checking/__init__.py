"""What is wrong with the settings or the machine, before anything is started."""
