"""Bounds on convergence: the papers' and ours."""
