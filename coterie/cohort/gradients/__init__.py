"""Clipped sums of per-example gradients, computed by the fastest exact method a model allows."""
