"""Dual coordinates: linear models trained through one dual per example."""
