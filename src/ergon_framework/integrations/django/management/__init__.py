"""The commands that ``manage.py`` finds."""
