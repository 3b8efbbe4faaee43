"""Files that last: they are whole, and still there after a power cut, once a call returns.

A disk may keep what was written in any order until it is synced, and a file's name is kept by its folder. So
a file is synced before it gets its name, and its folder after that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def sync_file(path: Path) -> None:
    """Have a file's content on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Have a folder's entries on the disk when this returns."""
    sync_file(folder)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a folder, and those above it, unless they exist; they are on the disk when this returns.

    A folder whose parent may not be read cannot be synced.
    """
    folder = folder.absolute()
    if not _may_be_new(folder):
        folder.mkdir(exist_ok=True)  # raises if it is a file
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=mode)
    with contextlib.suppress(PermissionError):
        sync_folder(folder.parent)


def _may_be_new(folder: Path) -> bool:
    """Return whether a folder is missing, or empty: whoever made it may have been stopped before a sync."""
    try:
        return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except PermissionError:
        return False


def write_new(path: Path, content: bytes, mode: int) -> bool:
    """Write a file that does not exist yet; return False if it does. It is written whole or not at all."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
    return True
