"""Against whom: what each adversary sees of a silo, and the epsilon that holds against it."""

from __future__ import annotations

import math

ADVERSARIES = {
    "server": "the server",
    "silos": "all other silos together",
    "shared": "whoever holds the shared model",
    "personal": "whoever holds this silo's personal model",
}


def seen_by(sends: bool) -> tuple[str, ...]:
    """Name the adversaries who see something of a silo whose doors add the noise (unit 'example').

    Who takes part and how often is known to the server, so there is no amplification by
    participation. A silo that sends nothing shows itself in its personal model only.
    """
    return tuple(ADVERSARIES) if sends else ("personal",)


def table(epsilon: float, seen: tuple[str, ...]) -> dict[str, float | None]:
    """Give epsilon against each adversary; None where nothing protects, 0 where nothing is seen."""
    protected = None if math.isinf(epsilon) else epsilon
    return {name: protected if name in seen else 0.0 for name in ADVERSARIES}
