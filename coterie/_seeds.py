"""Derive independent seeds from one seed."""

from __future__ import annotations

import hashlib


def seed_for(seed: int, purpose: str) -> int:
    """Return a seed for one purpose; the draws of silos have streams of their own."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=7).digest())
