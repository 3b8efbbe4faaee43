"""Clipped sums of per-example gradients, by the fastest exact way a model allows."""
