"""The cases of ``benchmarks/providers.py``."""
