"""Convergence bounds: the papers' and ours."""
