"""How its tables came about."""
