"""Ledgers: what all runs together have spent of a silo's data set."""
