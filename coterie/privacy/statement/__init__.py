"""Statements: what a silo spent in a run, as JSON that anyone can recompute."""
