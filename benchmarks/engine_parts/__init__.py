"""The parts of ``benchmarks/engine.py``: the engines and their peers, and what measures them."""
