"""Engines: the same method code, run in one process or silo by silo."""
