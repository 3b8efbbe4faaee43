"""The identity of a data set, by which its ledger and its witness find it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """The data set a ledger belongs to: its source, its silo and its number of examples."""

    source: str
    silo: str
    size: int

    @property
    def fingerprint(self) -> str:
        """The name of the ledger's file: a hash of the identity, never of the content."""
        return hashlib.sha256(json.dumps([self.source, self.silo, self.size]).encode()).hexdigest()[:24]
