"""Federations: silos and their examples, from files, tables and names."""
