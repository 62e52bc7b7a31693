"""Evidence: benchmarks, and what is made of many runs."""
