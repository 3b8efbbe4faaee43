"""Training without clips by compiled kernels."""
