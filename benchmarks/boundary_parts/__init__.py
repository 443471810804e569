"""The parts of ``benchmarks/boundary.py``: who takes part, and what measures them."""
