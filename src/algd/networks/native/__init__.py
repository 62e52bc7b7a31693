"""What code of our own computes faster than XLA on a CPU, where a compiler is found."""
