"""Budgets, accounting, calibration and statements: numbers only, no models."""
