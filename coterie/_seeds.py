"""Seeds for purposes, derived from one seed."""

from __future__ import annotations

import hashlib


def seed_for(seed: int, purpose: str) -> int:
    """Derive a seed for one purpose that is not a silo's."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=7).digest())
