"""Compiled kernels for training without clipping."""
