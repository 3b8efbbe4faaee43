"""The formulas that papers report, shown next to the certified number."""
