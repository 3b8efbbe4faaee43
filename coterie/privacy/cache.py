"""Numbers that took long to find, kept on disk: `COTERIE_CACHE`, else `~/.cache/coterie`.

A file that cannot be read, was damaged or is of other versions is as good as none. Checks
(`verify`, `ledger verify`) never read it.
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
    """A file of numbers by their questions."""

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
        """Give what is kept, or None."""
        return self.entries.get(question)

    def put(self, question: str, answer: Any) -> None:
        """Keep an answer."""
        self.entries[question] = answer
        self.changed = True

    def save(self) -> None:
        """Write the file in one move; without a writable folder there is simply none."""
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
    """Sum up the entries, so that a damaged file is not used."""
    return hashlib.blake2b(json.dumps(entries, sort_keys=True).encode(), digest_size=16).hexdigest()
