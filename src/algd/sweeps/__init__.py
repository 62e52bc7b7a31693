"""Many runs: which ones, where they are computed, and what came of them."""
