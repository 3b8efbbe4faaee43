"""An on-disk cache for numbers that are slow to compute, in `COTERIE_CACHE` or `~/.cache/coterie`.

A file that is unreadable, damaged or written by another version counts as missing. Anyone who can write the
file can forge it, so nothing that is certified comes from it: calibration takes a noise from the cache and
certifies its epsilon anew, and statements take only what papers' formulas report. The commands `statement
verify` and `ledger verify` never read it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any


class Cache:
    """A file that maps questions (text) to answers (JSON)."""

    def __init__(self, name: str, stamp: str) -> None:
        folder = os.environ.get("COTERIE_CACHE") or Path.home() / ".cache" / "coterie"
        self.path = Path(folder) / f"{name}.json"
        self.stamp = f"{stamp}/dp-accounting {version('dp-accounting')}"
        self.changed = False
        self.entries: dict[str, Any] = {}
        try:
            content = json.loads(self.path.read_text())
            if content.get("stamp") == self.stamp and content.get("sum") == _checksum(content["entries"]):
                self.entries = dict(content["entries"])
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            pass

    def get(self, question: str) -> Any:
        """Return the stored answer, or None."""
        return self.entries.get(question)

    def put(self, question: str, answer: Any) -> None:
        """Store an answer; `save` writes it to disk."""
        self.entries[question] = answer
        self.changed = True

    def save(self) -> None:
        """Write the file atomically; do nothing if the folder is not writable."""
        if not self.changed:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, suffix=".tmp", delete=False) as file:
                content = {"stamp": self.stamp, "sum": _checksum(self.entries), "entries": self.entries}
                json.dump(content, file)
            Path(file.name).replace(self.path)
        except OSError:
            pass


def _checksum(entries: dict[str, Any]) -> str:
    """Return a hash of the entries, so that a damaged file is noticed."""
    return hashlib.blake2b(json.dumps(entries, sort_keys=True).encode(), digest_size=16).hexdigest()
