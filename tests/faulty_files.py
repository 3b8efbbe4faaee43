"""Ordinary files on a faulty disk: what Python's `os` and `open` do below its folder is counted and logged."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.faulty_disk import Disk

REAL = {name: getattr(os, name) for name in
        ("open", "write", "fsync", "fdopen", "link", "unlink", "replace", "mkdir", "rmdir")}  # fmt: skip
REAL_OPEN = io.open
FLAGS = {
    "r": os.O_RDONLY,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}


class DiskFile(io.FileIO):
    """An open file whose reads and writes the disk sees."""

    def __init__(self, files: Files, handle: int, mode: str) -> None:
        super().__init__(handle, mode)
        self.files, self.path = files, files.handles[handle][1]

    def readinto(self, buffer: Any) -> int | None:
        self.files.disk.call("read", self.path)
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self.files.disk.call("read", self.path)
        return super().readall()

    def write(self, data: Any) -> int:
        return self.files.write(self.fileno(), bytes(data))


@dataclass
class Files:
    """The functions that take the place of those in `os` and `io`, and the files they have open.

    `handles` says which file or folder of the disk a handle is, and its path.
    """

    disk: Disk
    handles: dict[int, tuple[int | Path, Path]] = field(default_factory=dict)

    def open(self, name: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        path = self._on_disk(name)
        if path is None:
            handle = REAL["open"](name, flags, mode, **more)
            self.handles.pop(handle, None)
            return handle
        is_new, writes = not path.exists(), flags & (os.O_WRONLY | os.O_RDWR)
        self.disk.call("create" if flags & os.O_CREAT and is_new else "open", path)
        handle = REAL["open"](path, flags, mode, **more)
        self.handles[handle] = (path if path.is_dir() else self.disk.enter(path)), path
        if writes and flags & os.O_TRUNC and not is_new:
            self.disk.truncate(self.disk.enter(path), 0)
        return handle

    def _on_disk(self, name: Any) -> Path | None:
        """Return the path of a name if it is on the disk."""
        if not isinstance(name, str | os.PathLike):
            return None
        path = os.path.abspath(name)  # noqa: PTH100
        return Path(path) if path == str(self.disk.root) or self.disk.covers(path) else None

    def fdopen(self, handle: int, mode: str = "r", *how: Any, **named: Any) -> Any:
        if handle not in self.handles:
            return REAL["fdopen"](handle, mode, *how, **named)
        return self._buffered(handle, mode)

    def io_open(self, name: Any, mode: str = "r", *how: Any, **named: Any) -> Any:
        if self._on_disk(name) is None or "+" in mode:
            return REAL_OPEN(name, mode, *how, **named)
        kind = next(letter for letter in mode if letter in FLAGS)
        file = self._buffered(self.open(name, FLAGS[kind], 0o666), mode)
        return file if "b" in mode else io.TextIOWrapper(file, encoding="utf-8")

    def _buffered(self, handle: int, mode: str) -> Any:
        raw = DiskFile(self, handle, mode.replace("b", "").replace("t", "") + "b")
        return io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)

    def write(self, handle: int, data: Any) -> int:
        """Write; a write that fails has written half of it."""
        if handle not in self.handles:
            return REAL["write"](handle, data)
        (file, path), data, failed = self.handles[handle], bytes(data), None
        try:
            self.disk.call("write", path)
        except OSError as error:
            failed, data = error, data[: len(data) // 2]
        written = REAL["write"](handle, data)
        end = os.lseek(handle, 0, os.SEEK_CUR)  # also where a file is only appended to
        self.disk.write(file, end - written, data[:written])
        if failed is not None:
            raise failed
        return written

    def fsync(self, handle: int) -> None:
        if handle not in self.handles:
            return REAL["fsync"](handle)
        target, path = self.handles[handle]
        try:
            self.disk.call("sync", path)
        except OSError:
            self.disk.sync(target, failed=True)
            raise
        return self.disk.sync(target)

    def link(self, source: Any, target: Any, **more: Any) -> None:
        self._renamed("link", source, target, **more)

    def replace(self, source: Any, target: Any, **more: Any) -> None:
        self._renamed("replace", source, target, **more)

    def _renamed(self, name: str, source: Any, target: Any, **more: Any) -> None:
        path, before = self._on_disk(target), self._on_disk(source)
        if path is not None:
            self.disk.call("link" if name == "link" else "rename", path)
        REAL[name](source, target, **more)
        if path is not None and before is not None:
            self.disk.link(before, path, move=name != "link")

    def unlink(self, name: Any, **more: Any) -> None:
        self._removed("unlink", name, **more)

    def rmdir(self, name: Any, **more: Any) -> None:
        self._removed("rmdir", name, **more)

    def _removed(self, function: str, name: Any, **more: Any) -> None:
        path = self._on_disk(name)
        if path is not None:
            self.disk.call("delete", path)
        REAL[function](name, **more)
        if path is not None:
            self.disk.leave(path)

    def mkdir(self, name: Any, *how: Any, **named: Any) -> None:
        path = self._on_disk(name)
        if path is not None:
            self.disk.call("mkdir", path)
        REAL["mkdir"](name, *how, **named)
        if path is not None:
            self.disk.add_folder(path)


@contextlib.contextmanager
def below_python(disk: Disk) -> Iterator[None]:
    """Have Python's files on a disk while this lasts."""
    files = Files(disk)
    replaced: dict[tuple[Any, str], Callable[..., Any]] = {(os, name): getattr(files, name) for name in REAL}
    replaced |= {(os, "rename"): files.replace, (os, "remove"): files.unlink}
    replaced |= {(io, "open"): files.io_open, (builtins, "open"): files.io_open}
    with contextlib.ExitStack() as stack:
        for (module, name), function in replaced.items():
            stack.enter_context(mock.patch.object(module, name, function))
        yield
