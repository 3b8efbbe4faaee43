"""Ledgers: what was spent on a silo's data set, over all runs."""
