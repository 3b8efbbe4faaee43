"""The coordinator's transcript: who answered what, when, as a chain of signed lines."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ..errors import Problem, reason
from ..privacy.keys import Key, PublicKey, is_signed, now, stamp
from ..protocol.envelope import canonical

PURPOSE = "coterie-transcript/1"
FIRST = "0" * 64


class Transcript:
    """A file to which signed lines are added; each holds the hash of the line before."""

    def __init__(self, path: Path, key: Key) -> None:
        self.path, self.key = path, key
        self._last = FIRST
        if path.exists():
            self._cut_torn()
            for line in read_transcript(path, key.public):
                self._last = line["hash"]

    def _cut_torn(self) -> None:
        """Drop a last line that a crash cut off: it was never relied upon."""
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self.path.write_bytes(whole)

    def add(self, **facts: Any) -> None:
        """Add a line; it is on the disk when this returns."""
        content = {"time": stamp(now()), **facts, "previous": self._last}
        text = canonical(content)
        own = hashlib.sha256(text.encode()).hexdigest()
        line = canonical({**content, "hash": own, "signature": self.key.sign(PURPOSE, text)})
        try:
            with self.path.open("ab") as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Problem(f"the transcript '{self.path}' cannot be written: {reason(error)}") from error
        self._last = own


def read_transcript(path: Path, key: PublicKey) -> list[dict[str, Any]]:
    """Return the lines of a transcript; raise `Problem` unless all are signed and none is missing."""
    previous, lines = FIRST, []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            line = json.loads(text)
            content = {name: value for name, value in line.items() if name not in ("hash", "signature")}
            signed = canonical(content)
            sound = line["previous"] == previous and is_signed(key.public, PURPOSE, signed, line["signature"])
            sound = sound and line["hash"] == hashlib.sha256(signed.encode()).hexdigest()
        except (ValueError, LookupError, TypeError, AttributeError):
            sound = False
        if not sound:
            raise Problem(f"the transcript '{path}': line {number} was changed, or one before it was lost")
        previous = line["hash"]
        lines.append(line)
    return lines
