"""The whole product at work while things go wrong; ``__main__.py`` is where to begin."""
