"""Experiments: from data, methods and budgets to results."""
