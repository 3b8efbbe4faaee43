"""LEAF's JSON files (FEMNIST and others): users with `x` and `y`, in one folder or in train/ and test/."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from ...errors import Problem
from ...privacy.ledger.names import CUT
from .limits import check_file
from .table import Table, join, numbers, own_name


def files(folder: Path) -> list[tuple[Path, int]]:
    """Return the JSON files of a LEAF folder, each with 1 if it belongs to the test part, else 0."""
    train = [(f, 0) for part in (folder, folder / "train") for f in sorted(part.glob("*.json"))]
    return train + [(f, 1) for f in sorted((folder / "test").glob("*.json"))]


def recognise(folder: Path) -> bool:
    """Return whether a folder contains LEAF files."""
    return bool(files(folder))


def source_name(path: Path) -> str:
    """Return what ledgers call a file or folder: a folder with one file is that file.

    Of several files in train/ and test/, one is a part of the folder.
    """
    path = path.resolve()
    found = files(path) if path.is_dir() else [(path, 0)]
    whole = path.parent.parent
    if path.is_file() and path.parent.name in ("train", "test") and len(files(whole)) > 1:
        part = json.dumps({"file": str(path.relative_to(whole))})
        return f"{own_name(whole)}{CUT}{part}"
    return own_name(found[0][0] if len(found) == 1 else path)


def read(path: Path) -> Table:
    """Read one file or a folder; each user is a silo."""
    sources = files(path) if path.is_dir() else [(path, 0)]
    x, y, silo, split = [], [], [], []
    for file, number in sources:
        check_file(file)
        try:
            data = json.loads(file.read_text())
            people = {user: data["user_data"][user] for user in data["users"]}
            pairs = [(user, arrays["x"], np.asarray(arrays["y"])) for user, arrays in people.items()]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Problem(
                f"data: '{file}' is not a LEAF file: it needs 'users', and 'user_data' with the x and y of"
                f" each user ({type(error).__name__}: {error})"
            ) from error
        for user, values, labels in pairs:
            rows = numbers(values, f"x of user '{user}' of '{file}'")
            if len(rows) != len(labels):
                raise Problem(
                    f"data: user '{user}' of '{file}' has {len(rows)} entries in x but {len(labels)} in y"
                )
            if len(rows) == 0:
                continue
            x.append(rows)
            y.append(labels)
            silo += [str(user)] * len(labels)
            split.append(np.full(len(labels), number))
    if not x:
        raise Problem(f"data: '{path}' has no LEAF user with examples")
    features = join(x, path)
    side = math.isqrt(features.shape[-1])
    if features.ndim == 2 and side * side == features.shape[-1] == 784:
        features = features.reshape(-1, side, side)
    marks = np.concatenate(split)
    return Table(
        path.stem if path.is_file() else path.name,
        features,
        join(y, path),
        np.array(silo),
        marks if marks.any() else None,
    )
