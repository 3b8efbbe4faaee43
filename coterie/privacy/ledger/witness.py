"""Witnesses: someone else remembers a ledger's last signed head, so that a ledger that goes back is noticed.

A ledger's folder can be restored from a backup, cut off, or deleted together with its key, and what is left
may be consistent and properly signed. Only somebody who saw a later head knows better. A witness is that
somebody: it must not be restored, copied or deleted together with the ledger. A second disk or a share of
another department is a good one. The default, a folder in the user's own state folder, notices a ledger
folder that was restored, copied or deleted, but not a whole machine that was set back.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...errors import Problem, reason
from ..files import make_folder, sync_folder
from .heads import SignedHead

ENVIRONMENT = "COTERIE_WITNESS"
TAIL = 2**14  # the bytes at the end of a file that are read: the last dozen heads


class Unwitnessed(Problem):
    """A head could not be shown to the witness: nothing may be released that relies on it."""


class Witness(Protocol):
    """Who keeps the last signed head of every data set: a folder, another silo, the coordinator."""

    def ready(self) -> None:
        """Raise `Unwitnessed` unless heads can be recorded."""
        ...

    def latest(self, name: str) -> SignedHead | None:
        """Return the head with the largest number, of several the first that was recorded; None if unknown.

        `name` is the fingerprint of a data set's identity. Raise `Unwitnessed` if nobody answers.
        """
        ...

    def record(self, head: SignedHead) -> None:
        """Keep a head for good; it is durable when this returns. Raise `Unwitnessed` if it cannot be kept."""
        ...


@dataclass(frozen=True)
class FolderWitness:
    """A folder with one file per data set, to which each head is added as a line of JSON.

    Lines are only added, by one system call each, so that several processes need no lock and a record that
    was cut off by a crash hides no other. The folder must exist, unless `make`: an empty folder where a disk
    is not mounted must not be taken for a witness that knows nothing.
    """

    folder: Path
    make: bool = False

    def __str__(self) -> str:
        return str(self.folder)

    def ready(self) -> None:
        """Raise `Unwitnessed` unless the folder exists and is writable."""
        if self.make:
            try:
                make_folder(self.folder, mode=0o700)
            except OSError as error:
                raise Unwitnessed(f"the witness '{self}' cannot be reached: {reason(error)}") from error
        self._look()
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise Unwitnessed(f"the witness '{self}' cannot be written: the folder is not writable")

    def _look(self) -> None:
        if not self.folder.is_dir():
            raise Unwitnessed(
                f"the witness '{self}' cannot be reached: there is no such folder; mount it, or create it"
            )

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.heads"

    def names(self) -> list[str]:
        """Return the names of all data sets that were recorded here."""
        return sorted(file.stem for file in self.folder.glob("*.heads"))

    def latest(self, name: str) -> SignedHead | None:
        """Return the head with the largest number, of several the first in the file; None if unknown."""
        path = self._file(name)
        if not self.make:
            self._look()
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL))
                lines = file.read().split(b"\n")[size > TAIL :]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unwitnessed(f"the witness '{path}' cannot be read: {reason(error)}") from error
        heads = [self._parse(path, line) for line in lines if _is_whole(line)]
        if not heads:
            return None
        last = max(heads, key=lambda found: found[0])[1]  # the first of several largest
        try:
            last.check()
        except Problem as problem:
            raise Unwitnessed(f"the witness '{path}' is damaged: {problem}; restore it") from None
        if last.identity.fingerprint != name:
            raise Unwitnessed(f"the witness '{path}' is that of another data set: restore it from a backup")
        return last

    def _parse(self, path: Path, line: bytes) -> tuple[int, SignedHead]:
        try:
            content = json.loads(line)
            return int(content["number"]), SignedHead(content["head"], content["signature"])
        except (ValueError, LookupError, TypeError) as error:
            raise Unwitnessed(f"the witness '{path}' is damaged: restore it from a backup") from error

    def record(self, head: SignedHead) -> None:
        """Add a head to the file of its data set; it is on the disk when this returns."""
        path = self._file(head.identity.fingerprint)
        line = json.dumps({"number": head.number, "head": head.text, "signature": head.signature}).encode()
        record = b"\n" + line + b"\n"  # the first ends a line that was cut off
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                if os.fstat(handle).st_size == 0:  # it is new, or whoever made it was stopped
                    sync_folder(self.folder)
                if os.write(handle, record) != len(record):
                    raise Unwitnessed(f"the witness '{path}' cannot be written: the disk is full")
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise Unwitnessed(f"the witness '{path}' cannot be written: {reason(error)}") from error


def _is_whole(line: bytes) -> bool:
    """Return whether a line was written in full: one that a crash cut off was never relied upon.

    Where a disk lost a part of what it had not synced, it left zeros.
    """
    return line.startswith(b"{") and line.endswith(b"}") and b"\0" not in line


def default_folder() -> Path:
    """Return the folder of the default witness, outside of any ledger's folder."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "coterie" / "witness"


def find_witness(folder: str | Path | None = None) -> FolderWitness:
    """Return the witness in a folder: the one given, that of COTERIE_WITNESS, or the user's own."""
    named = folder or os.environ.get(ENVIRONMENT)
    return FolderWitness(Path(named)) if named else FolderWitness(default_folder(), make=True)
