"""The parts of ``benchmarks/scale.py``: who lives on which engine, and what measures them."""
