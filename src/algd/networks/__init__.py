"""Networks and their optimiser."""
