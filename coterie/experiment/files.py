"""Write files under a temporary name and then move them, so that no folder ever holds half a file.

What a training needs to resume lasts: it is on the disk, whole, when a call returns.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._json import finite
from ..errors import Problem, reason
from ..privacy.files import sync_file, sync_folder

OWNER_ONLY, EVERYBODY = 0o600, 0o644  # who may read a file


def write(path: Path, fill: Callable[[Path], None], mode: int = EVERYBODY, lasting: bool = False) -> None:
    """Write a file in one move: `fill` writes it at the path it is given.

    Raise `Problem` if it cannot be written; nothing is left behind then.
    """
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
        os.close(handle)
        fill(Path(name))
        Path(name).chmod(mode)
        if lasting:
            sync_file(Path(name))
        Path(name).replace(path)
        if lasting:
            sync_folder(path.parent)
    except OSError as error:
        raise Problem(_cannot_write(path, reason(error))) from error
    except Problem as problem:
        raise Problem(str(problem).replace(name, str(path))) from None
    finally:
        if name:
            Path(name).unlink(missing_ok=True)


def _cannot_write(path: Path, why: str) -> str:
    return f"cannot write '{path}': {why}; free some space, or make it writable, then run the same again"


def write_text(path: Path, text: str, mode: int = EVERYBODY, lasting: bool = False) -> None:
    """Write a text file in one move."""

    def fill(place: Path) -> None:
        place.write_text(text)

    write(path, fill, mode, lasting)


def write_json(path: Path, content: Any, lasting: bool = False) -> None:
    """Write plain data as JSON in one move."""
    write_text(path, json_text(content), lasting=lasting)


def json_text(content: Any) -> str:
    """Return plain data as the text of a JSON file; numbers that are not finite become null."""
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"
