"""What is drawn of the results of benchmarks, and how."""
