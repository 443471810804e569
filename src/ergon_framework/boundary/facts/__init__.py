"""What a fact is: its fields, its one spelling, its identity, and what refuses it."""
