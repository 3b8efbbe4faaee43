"""Write files under a temporary name and then move them, so that no folder ever holds half a file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._json import finite

OWNER_ONLY, EVERYBODY = 0o600, 0o644  # who may read a file


def write(path: Path, fill: Callable[[Path], None], mode: int = EVERYBODY) -> None:
    """Write a file in one move: `fill` writes it at the path it is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    os.close(handle)
    try:
        fill(Path(name))
        Path(name).chmod(mode)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one move."""

    def fill(place: Path) -> None:
        place.write_text(text)

    write(path, fill)


def write_json(path: Path, content: Any) -> None:
    """Write plain data as JSON in one move."""
    write_text(path, json_text(content))


def json_text(content: Any) -> str:
    """Return plain data as the text of a JSON file; numbers that are not finite become null."""
    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"
