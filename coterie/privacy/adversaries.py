"""The adversaries: who sees what of a silo, and the epsilon that holds against each of them."""

from __future__ import annotations

import math

ADVERSARIES = {
    "server": "the server",
    "silos": "all other silos together",
    "shared": "anyone who holds the shared model",
    "personal": "anyone who holds this silo's personal model",
}


def seen_by(sends: bool) -> tuple[str, ...]:
    """Return the adversaries who see something of a silo whose doors add the noise (unit 'example').

    The server knows which silo takes part when, so participation does not amplify privacy. If a silo
    sends nothing, only its personal model reveals anything about it.
    """
    return tuple(ADVERSARIES) if sends else ("personal",)


def table(epsilon: float, seen: tuple[str, ...]) -> dict[str, float | None]:
    """Return epsilon against each adversary: None without protection, 0 if it sees nothing."""
    protected = None if math.isinf(epsilon) else epsilon
    return {name: protected if name in seen else 0.0 for name in ADVERSARIES}
