"""One module for each broker, and what they share."""
