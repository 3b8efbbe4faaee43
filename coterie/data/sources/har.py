"""The folder of UCI's Human Activity Recognition Using Smartphones; each person is a silo."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import Problem, reason
from .limits import check_file
from .table import Table, join


def recognise(folder: Path) -> bool:
    """Return whether a folder is the one of UCI HAR."""
    return (folder / "train" / "X_train.txt").is_file()


def read(folder: Path) -> Table:
    """Read the features, activities and subjects of both parts."""
    x, y, subject, split = [], [], [], []
    for number, part in enumerate(("train", "test")):
        place = folder / part
        if part == "test" and not place.is_dir():
            continue
        check_file(place / f"X_{part}.txt")
        try:
            x.append(np.loadtxt(place / f"X_{part}.txt", dtype=np.float32, ndmin=2))
            y.append(np.loadtxt(place / f"y_{part}.txt", dtype=np.int64, ndmin=1))
            subject.append(np.loadtxt(place / f"subject_{part}.txt", dtype=np.int64, ndmin=1))
        except (OSError, ValueError) as error:
            raise Problem(f"data: cannot read the UCI HAR folder '{folder}': {reason(error)}") from error
        lengths = {len(x[-1]), len(y[-1]), len(subject[-1])}
        if len(lengths) != 1:
            raise Problem(f"data: the files of '{place}' differ in length: {sorted(lengths)}")
        split.append(np.full(len(y[-1]), number))
    names = np.array([f"person-{s:02d}" for s in np.concatenate(subject)])
    labels_file = folder / "activity_labels.txt"
    target = np.concatenate(y)
    if labels_file.is_file():
        try:
            pairs = [line.split() for line in labels_file.read_text().splitlines() if line.strip()]
            words = {int(code): word.lower() for code, word in pairs}
        except ValueError as error:
            raise Problem(f"data: '{labels_file}' needs lines such as '1 WALKING': {error}") from error
        target = np.array([words.get(int(code), str(code)) for code in target])
    return Table("har", join(x, folder), target, names, np.concatenate(split))
