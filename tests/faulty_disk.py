"""A disk that can fail: calls are counted, any of them can fail, and a power cut loses what was not synced.

All that is written below a folder is logged. From the log, `Replay` tells what a power cut after any operation
leaves behind. A write is safe once its file was synced after it, and a name once its folder was. Of what is
not safe, anything may be left: nothing, all of it, or some writes without those before them, some of their
sectors, half a sector. A sync that fails saves nothing, and what it should have saved is not saved by a later
one either: that is how Linux treats it. Two writes to one place are never swapped, since both pass the same
cache.

`sqlite_layer` and `faulty_files` tell the disk what happens. Files are real, so that whoever reads them sees
all writes, as with a cache; a real sync would only cost time, and is left out.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

SECTOR = 512
CHANGING = ("write", "sync", "truncate", "create", "delete", "link", "rename", "mkdir")
KINDS = ("open", "read", "lock", *CHANGING)
WAYS = ("nothing", "all", "first", "last", "ends")  # what a power cut may leave
GROWING = ("write", "create", "link", "rename", "mkdir")  # what needs space


@dataclass(frozen=True)
class Fault:
    """Calls that fail: the n-th of certain kinds, or with `lasting` all of them from then on.

    Only calls on paths that contain `where` are counted.
    """

    at: int
    error: int = errno.EIO
    kinds: tuple[str, ...] = KINDS
    lasting: bool = False
    where: str = ""

    def counts(self, kind: str, path: Path) -> bool:
        """Return whether a call is one of those that are counted."""
        return kind in self.kinds and self.where in str(path)

    def hits(self, number: int) -> bool:
        """Return whether the call with this number, counted from 0, fails."""
        return number >= self.at if self.lasting else number == self.at


@dataclass(frozen=True)
class Operation:
    """Something that happened to a file (a number), a folder (a path), or that left the training."""

    kind: str
    target: int | Path | None = None
    offset: int = 0
    data: bytes = b""
    names: tuple[tuple[str, int | Path | None], ...] = ()  # what names in a folder mean from now on
    released: Any = None


@dataclass
class Disk:
    """The disk below a folder: what happened to it, and which call fails."""

    root: Path
    fault: Fault | None = None
    calls: int = 0
    began: int = 0  # the operations before this are of files that were there already
    struck: list[str] = field(default_factory=list)
    log: list[Operation] = field(default_factory=list)
    _names: dict[Path, int] = field(default_factory=dict)
    _files: int = 0
    _lock: Any = field(default_factory=threading.RLock)

    @classmethod
    def of(cls, root: Path, fault: Fault | None = None) -> Disk:
        """Return the disk of a folder whose content is safe."""
        disk = cls(root, fault)
        for folder, folders, files in os.walk(root):
            place = Path(folder)
            for name in folders:
                disk.add_folder(place / name)
            for name in (name for name in files if not name.endswith("-shm")):
                disk.write(disk.enter(place / name), 0, (place / name).read_bytes())
                disk.sync(disk.enter(place / name))
            disk.sync(place)
        disk.began = len(disk.log)
        return disk

    def covers(self, path: str) -> bool:
        """Return whether a whole path lies on this disk."""
        return path.startswith(f"{self.root}{os.sep}")

    def call(self, kind: str, path: Path) -> None:
        """Count a call; raise OSError if it fails."""
        with self._lock:
            if self.fault is None or not self.fault.counts(kind, path):
                return
            number, self.calls = self.calls, self.calls + 1
            if self.fault.hits(number):
                self.struck.append(f"{kind} {path.name}")
                raise OSError(self.fault.error, os.strerror(self.fault.error), str(path))

    def _add(self, kind: str, *arguments: Any, **named: Any) -> None:
        self.log.append(Operation(kind, *arguments, **named))

    def release(self, what: Any) -> None:
        """Note that something left the training."""
        with self._lock:
            self._add("release", released=what)

    def enter(self, path: Path) -> int:
        """Return the file with a name, which is new if nothing has this name."""
        with self._lock:
            if path not in self._names:
                self._files += 1
                self._names[path] = self._files
                self._add("names", path.parent, names=((path.name, self._files),))
            return self._names[path]

    def leave(self, path: Path) -> None:
        """Note that a name is gone."""
        with self._lock:
            self._names.pop(path, None)
            self._add("names", path.parent, names=((path.name, None),))

    def add_folder(self, path: Path) -> None:
        """Note that a folder was made."""
        with self._lock:
            self._add("names", path.parent, names=((path.name, path),))

    def link(self, source: Path, target: Path, move: bool = False) -> None:
        """Note that a file got another name; with `move`, it loses the old one in the same step."""
        with self._lock:
            file = self.enter(source)
            self._names[target] = file
            names: tuple[tuple[str, int | Path | None], ...] = ((target.name, file),)
            if move:
                del self._names[source]
                names += ((source.name, None),)
            self._add("names", target.parent, names=names)

    def write(self, file: int, offset: int, data: bytes) -> None:
        """Note that something was written."""
        with self._lock:
            self._add("write", file, offset, data)

    def truncate(self, file: int, size: int) -> None:
        """Note that a file has another size."""
        with self._lock:
            self._add("truncate", file, size)

    def sync(self, file: int | Path, failed: bool = False) -> None:
        """Note that all writes to a file, or all names in a folder, are safe, or that a sync failed."""
        with self._lock:
            self._add("failed sync" if failed else "sync", file)


@dataclass
class Survival:
    """What a power cut leaves of operations that were not synced.

    `how` is one of `WAYS`: nothing, all, or all but for writes, of which only the first or the last sector is
    left, or both but none between. With a generator, chance decides for each operation, sector and half.
    """

    how: Random | str

    def __call__(self) -> bool:
        return self.how.random() < 0.5 if isinstance(self.how, Random) else self.how != "nothing"

    def pieces(self, operation: Operation) -> list[tuple[int, bytes]]:
        """Return the pieces of a write that are left."""
        sectors = list(sectors_of(operation))
        if self.how in ("first", "last", "ends"):
            first, later = sectors[:1], sectors[1:][-1:]
            return {"first": first, "last": later or first, "ends": first + later}[self.how]
        if isinstance(self.how, str) or self():
            return sectors
        left = [sector for sector in sectors if self()]
        return [(offset, data if self() else data[: len(data) // 2]) for offset, data in left]


def sectors_of(operation: Operation) -> Iterator[tuple[int, bytes]]:
    """Yield the sectors of a write."""
    offset, data = operation.offset, operation.data
    while data:
        size = SECTOR - offset % SECTOR
        yield offset, data[:size]
        offset, data = offset + size, data[size:]


ALL = Survival("all")


@dataclass
class Store:
    """A file or a folder, as far as it is safe, and what was done to it since; `True` is safe by now."""

    content: bytearray = field(default_factory=bytearray)
    names: dict[str, int | Path | None] = field(default_factory=dict)
    waiting: list[tuple[Operation, bool]] = field(default_factory=list)
    lost: int = 0  # the first of the waiting that no sync has seen

    def sync(self, failed: bool) -> None:
        """Make safe what no sync has seen yet; if it failed, that will never be safe."""
        seen, new = self.waiting[: self.lost], self.waiting[self.lost :]
        self.waiting = seen + [(operation, not failed) for operation, _ in new]
        if all(safe for _, safe in self.waiting):
            for operation, _ in self.waiting:
                self.apply(operation, ALL)
            self.waiting = []
        self.lost = len(self.waiting)

    def apply(self, operation: Operation, survival: Survival) -> None:
        """Do an operation, or those parts of it that survive."""
        self.names.update(operation.names)
        if operation.kind == "truncate":
            self.content[operation.offset :] = b""
            self.content.extend(bytes(operation.offset - len(self.content)))
        elif operation.kind == "write":
            for offset, piece in survival.pieces(operation):
                self.content.extend(bytes(max(0, offset - len(self.content))))
                self.content[offset : offset + len(piece)] = piece

    def left(self, survival: Survival) -> Store:
        """Return what a power cut leaves."""
        found = Store(bytearray(self.content), dict(self.names))
        for operation, safe in self.waiting:
            if safe or survival():
                found.apply(operation, ALL if safe else survival)
        return found


@dataclass
class Replay:
    """The disk as it was after some operations of a log."""

    root: Path
    stores: dict[int | Path | None, Store] = field(default_factory=dict)
    released: list[Any] = field(default_factory=list)

    def store(self, target: int | Path | None) -> Store:
        """Return a file or a folder."""
        return self.stores.setdefault(target, Store())

    def add(self, operation: Operation) -> None:
        """Do one more operation."""
        if operation.kind == "release":
            self.released.append(operation.released)
        elif operation.kind in ("sync", "failed sync"):
            self.store(operation.target).sync(operation.kind == "failed sync")
        else:
            self.store(operation.target).waiting.append((operation, False))

    def left(self, how: Random | str) -> dict[Path, bytes | None]:
        """Return what a power cut now leaves: each file's content, by its path; None for a folder."""
        survival, known = Survival(how), {}
        found: dict[Path, bytes | None] = {}

        def look(folder: Path, place: Path) -> None:
            for name, target in sorted(self.store(folder).left(survival).names.items()):
                if isinstance(target, Path):
                    found[place / name] = None
                    look(target, place / name)
                elif target is not None:
                    if target not in known:
                        known[target] = bytes(self.store(target).left(survival).content)
                    found[place / name] = known[target]

        look(self.root, Path())
        return found


def lay_out(files: dict[Path, bytes | None], place: Path) -> None:
    """Write files into a new folder."""
    place.mkdir()
    for path, content in files.items():
        if content is None:
            (place / path).mkdir()
        else:
            (place / path).write_bytes(content)
            (place / path).chmod(0o600)


def cuts(disk: Disk) -> Iterator[Replay]:
    """Yield the disk as it began, and as it was after each operation since."""
    replay = Replay(disk.root)
    for operation in disk.log[: disk.began]:
        replay.add(operation)
    yield replay
    for operation in disk.log[disk.began :]:
        replay.add(operation)
        yield replay
