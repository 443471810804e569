"""The parts of the benchmark of flows."""
