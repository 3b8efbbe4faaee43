"""A layer below SQLite: it sees every call that Python's `sqlite3` makes to its files, and can make it fail.

Three ways were weighed. `apsw` has layers of its own, but brings its own copy of SQLite, so that the ledger
would run on another library and through an adapter. A preloaded C library needs a compiler. So this layer is
put, with `ctypes`, into the very library that `sqlite3` uses: the ledger's own connections run on it without
any change, and nothing must be installed. Where that library hides its functions (some builds contain SQLite
and export none of it), `layer` raises `Unreachable`, and tests marked with `needs_layer` are skipped.

SQLite opens files by a table of functions, and each open file has another. The layer copies these tables and
replaces the few functions that concern a disk. All others, such as those of shared memory, stay as they are.
"""

from __future__ import annotations

import _sqlite3
import contextlib
import ctypes
import errno
import functools
import sqlite3
from collections.abc import Callable, Iterator
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.faulty_disk import Disk

OK, FULL, CANNOT_OPEN, OTHER = 0, 13, 14, 10
# The codes by which SQLite is told that a disk failed, for each kind of call.
FAILED = {"read": 266, "write": 778, "sync": 1034, "truncate": 1546, "delete": 2570, "lock": 3850}
FAILED |= {"open": CANNOT_OPEN, "create": CANNOT_OPEN}
LOGS = 0x800 | 0x80000  # the flags of journals and write-ahead logs: SQLite syncs their folder with them

Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
Delete = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
Transfer = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
Truncate = CFUNCTYPE(c_int, c_void_p, c_int64)
Flagged = CFUNCTYPE(c_int, c_void_p, c_int)
Shared = CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int)
Close = CFUNCTYPE(c_int, c_void_p)


class Unreachable(Exception):
    """The SQLite that Python uses does not let a layer be put into it."""


class Names(ctypes.Structure):
    """SQLite's functions on names of files (`sqlite3_vfs`)."""

    _fields_ = (
        *((name, c_int) for name in ("version", "file_size", "longest")),
        ("next", c_void_p),
        ("name", c_char_p),
        *((name, c_void_p) for name in ("data", "open", "delete")),
        ("others", c_void_p * 14),
    )


class Methods(ctypes.Structure):
    """SQLite's functions on an open file (`sqlite3_io_methods`)."""

    _fields_ = (
        ("version", c_int),
        *((name, c_void_p) for name in ("close", "read", "write", "truncate", "sync", "size", "lock")),
        ("others", c_void_p * 6),
        ("shared_lock", c_void_p),
        ("rest", c_void_p * 4),
    )


TYPES: dict[str, Any] = {
    "close": Close,
    "read": Transfer,
    "write": Transfer,
    "truncate": Truncate,
    "sync": Flagged,
    "lock": Flagged,
    "shared_lock": Shared,
}


@dataclass
class OpenFile:
    """A file that SQLite has open on a disk."""

    path: Path
    file: int
    is_new_log: bool


@dataclass
class Layer:
    """The layer. Without a disk it only passes calls on, since connections may outlive a test."""

    library: Any
    real: Names
    disk: Disk | None = None
    opened: dict[int, OpenFile] = field(default_factory=dict)
    tables: dict[int, tuple[dict[str, Any], Methods]] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)  # what C points to

    def __post_init__(self) -> None:
        self.own = Names.from_buffer_copy(self.real)
        self.real_open, self.real_delete = Open(self.own.open), Delete(self.own.delete)
        self.own.name = b"faulty"
        functions = Open(self.open), Delete(self.delete)
        self.own.open, self.own.delete = (ctypes.cast(function, c_void_p).value for function in functions)
        self.kept += functions

    def use(self, disk: Disk | None) -> None:
        """Have SQLite open all files through the layer, or without a disk no longer."""
        self.disk = disk
        names = self.real if disk is None else self.own
        if self.library.sqlite3_vfs_register(byref(names), 1) != OK:
            raise Unreachable("SQLite does not accept a layer")

    def open(self, _own: int, name: int, file: int, flags: int, given: Any) -> int:
        """Open a file, and put the layer's functions into it."""
        disk, text = self.disk, ctypes.string_at(name).decode() if name else ""
        if disk is None or not disk.covers(text):
            return self.real_open(byref(self.real), name, file, flags, given)
        path = Path(text)
        is_new = not path.exists()
        if code := asked(disk, "create" if is_new else "open", path):
            return code
        code = self.real_open(byref(self.real), name, file, flags, given)
        if code == OK:
            self.opened[file] = OpenFile(path, disk.enter(path), is_new and bool(flags & LOGS))
            table = c_void_p.from_address(file)
            table.value = ctypes.addressof(self.methods(table.value or 0))
        return code

    def methods(self, address: int) -> Methods:
        """Return a table of functions in which those that concern a disk are the layer's."""
        if address not in self.tables:
            own = Methods.from_buffer_copy(Methods.from_address(address))
            real = {name: kind(getattr(own, name)) for name, kind in TYPES.items()}
            for name, kind in TYPES.items():
                function = kind(functools.partial(getattr(self, name), real[name]))
                setattr(own, name, ctypes.cast(function, c_void_p).value)
                self.kept.append(function)
            self.tables[address] = real, own
        return self.tables[address][1]

    def delete(self, _own: int, name: bytes, sync_folder: int) -> int:
        """Delete a file."""
        disk, path = self.disk, Path(name.decode())
        if disk is None or not disk.covers(name.decode()):
            return self.real_delete(byref(self.real), name, sync_folder)
        if code := asked(disk, "delete", path):
            return code
        code = self.real_delete(byref(self.real), name, 0)
        if code == OK:
            disk.leave(path)
            if sync_folder:
                disk.sync(path.parent)
        return code

    def close(self, real: Callable[..., int], file: int) -> int:
        """Close a file."""
        self.opened.pop(file, None)
        return real(file)

    def read(self, real: Callable[..., int], file: int, data: int, count: int, offset: int) -> int:
        """Read from a file."""
        return self._ask("read", file) or real(file, data, count, offset)

    def write(self, real: Callable[..., int], file: int, data: int, count: int, offset: int) -> int:
        """Write to a file; a write that fails has written half of it."""
        if failed := self._ask("write", file):
            count //= 2
        code = real(file, data, count, offset)
        if code == OK and self.disk is not None:
            self.disk.write(self.opened[file].file, offset, ctypes.string_at(data, count))
        return failed or code

    def truncate(self, real: Callable[..., int], file: int, size: int) -> int:
        """Change the size of a file."""
        code = self._ask("truncate", file) or real(file, size)
        if code == OK and self.disk is not None:
            self.disk.truncate(self.opened[file].file, size)
        return code

    def sync(self, real: Callable[..., int], file: int, flags: int) -> int:
        """Sync a file, and the folder of a new journal, as SQLite does for itself."""
        code, disk, opened = self._ask("sync", file), self.disk, self.opened.get(file)
        if disk is None or opened is None:
            return real(file, flags)
        disk.sync(opened.file, failed=code != OK)
        if opened.is_new_log and code == OK:
            opened.is_new_log = False
            disk.sync(opened.path.parent)
        return code

    def lock(self, real: Callable[..., int], file: int, level: int) -> int:
        """Lock a file."""
        return self._ask("lock", file) or real(file, level)

    def shared_lock(self, real: Callable[..., int], file: int, first: int, count: int, flags: int) -> int:
        """Lock a part of a file's shared memory; unlocking (flag 1) never fails."""
        return (0 if flags & 1 else self._ask("lock", file)) or real(file, first, count, flags)

    def _ask(self, kind: str, file: int) -> int:
        if self.disk is None or file not in self.opened:
            return OK
        return asked(self.disk, kind, self.opened[file].path)


def asked(disk: Disk, kind: str, path: Path) -> int:
    """Return the code of a call that fails, else 0; no exception may reach C."""
    try:
        disk.call(kind, path)
    except OSError as error:
        return FULL if error.errno == errno.ENOSPC else FAILED[kind]
    return OK


@functools.cache
def layer() -> Layer:
    """Return the layer for Python's SQLite; raise `Unreachable` if there can be none."""
    library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
    try:
        library.sqlite3_vfs_find.restype = POINTER(Names)
        library.sqlite3_libversion.restype = c_char_p
        version = library.sqlite3_libversion().decode()
        made = Layer(library, library.sqlite3_vfs_find(None).contents)
        register = library.sqlite3_vfs_register
    except (AttributeError, ValueError) as error:
        raise Unreachable(f"Python's SQLite hides its functions: {error}") from None
    register.argtypes = [c_void_p, c_int]
    if version != sqlite3.sqlite_version or made.real.version < 3:
        raise Unreachable(f"Python uses SQLite {sqlite3.sqlite_version}, but {version} was found")
    return made


@contextlib.contextmanager
def below_sqlite(disk: Disk) -> Iterator[None]:
    """Have SQLite's files on a disk while this lasts."""
    layer().use(disk)
    try:
        yield
    finally:
        layer().use(None)


def why_unreachable() -> str:
    """Return why there can be no layer; nothing if there can."""
    try:
        layer()
    except Unreachable as error:
        return str(error)
    return ""


needs_layer = pytest.mark.skipif(bool(why_unreachable()), reason=why_unreachable())
