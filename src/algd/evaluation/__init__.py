"""What a policy does, and how good it is."""
