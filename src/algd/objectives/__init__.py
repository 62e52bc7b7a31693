"""The mathematics that algorithms are made of."""
