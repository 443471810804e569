"""The parts of ``benchmarks/jobs.py``: one module per contestant, and what measures them."""
