"""What delta means in plain words, and whether it is too large for a silo's size."""

from __future__ import annotations

from typing import Any


def delta_words(content: dict[str, Any]) -> str:
    """Return what a statement's delta means; "" without a guarantee."""
    delta = content["guarantee"]["delta"]
    if delta is None:
        return ""
    if delta == 0:
        return "Delta is 0: epsilon holds always."
    return (
        f"Delta is a small probability, here {delta:g}: at worst, anything may be revealed with this"
        " probability. Otherwise epsilon holds."
    )


def delta_warning(content: dict[str, Any]) -> str:
    """Return a sentence if delta is not below 1 / (number of units); "" if it is."""
    delta, merges = content["guarantee"]["delta"], content["merges"]
    unit = content["guarantee"]["unit"] if merges is None else "silo"
    units, what = (
        (content["declared_size"], f"{unit}s of this silo") if merges is None else (merges["silos"], "silos")
    )
    if delta is None or units == 0 or delta < 1 / units:
        return ""
    one = {"example": "example", "person": "person's data", "silo": "silo's data"}[unit]
    return (
        f"This delta is too large: {delta:g} is not below 1/{units}, for {units} {what}, so it would permit"
        f" publishing one {one}. Ask for a smaller delta."
    )
