"""Find a source by its name, file or folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import Problem, as_path, nearest, plainly
from . import columns, digits, har, idx, leaf, matlab, npz
from .rules import Rules
from .table import Table, own_name

BUILT_IN = {"digits": digits.read}
TABLES = ("CSV", "Parquet")  # forms whose columns have names
FILES = (".npz", ".csv", ".parquet", ".mat", ".json")


@dataclass(frozen=True)
class Entry:
    """One line of `coterie data list`."""

    name: str
    form: str
    place: str
    rows: int | None = None
    silos: int | None = None


def data_folder(data_dir: str | Path | None) -> Path | None:
    """Return the data folder: `data_dir` if given, else the environment variable `COTERIE_DATA`."""
    place = data_dir or os.environ.get("COTERIE_DATA")
    if not place:
        return None
    folder = as_path("data_dir", place).expanduser()
    if not folder.is_dir():
        raise Problem(f"the data folder '{folder}' does not exist (set by data_dir or COTERIE_DATA)")
    return folder


def form_of(path: Path) -> str | None:
    """Return the name of the format of a file or folder, or None if it is not a known one."""
    if path.is_dir():
        for form, module in (("UCI HAR", har), ("IDX", idx), ("LEAF", leaf)):
            if module.recognise(path):
                return form
        return None
    return {
        ".npz": "npz",
        ".csv": "CSV",
        ".parquet": "Parquet",
        ".mat": "MATLAB",
        ".json": "LEAF",
    }.get(path.suffix.lower())


def find_table(
    source: str,
    data_dir: str | Path | None = None,
    *,
    silo_column: str | None = None,
    target_column: str | Sequence[str] | None = None,
    drop: Sequence[str] = (),
    person_column: str | None = None,
    rules: Rules = Rules(),
) -> Table:
    """Read a source: a built-in name, a name in the data folder, a file or a folder."""
    if source in BUILT_IN:
        rules.check_unused(source)
        return BUILT_IN[source]()
    path = locate(source, data_folder(data_dir))
    form = "CSV" if path.suffix.lower() in columns.EXCEL else form_of(path)  # which refuses Excel's
    if form is not None and form not in TABLES:
        rules.check_unused(path.name)
    if form == "UCI HAR":
        return har.read(path)  # which has one name, wherever it is
    readers: dict[str | None, Callable[[Path], Table]] = {
        "npz": npz.read,
        "CSV": lambda path: columns.read(path, silo_column, target_column, drop, person_column, rules),
        "Parquet": lambda path: columns.read(path, silo_column, target_column, drop, person_column, rules),
        "MATLAB": matlab.read,
        "LEAF": leaf.read,
        "IDX": idx.read,
    }
    if form in readers:
        name = leaf.source_name(path) if form == "LEAF" else own_name(path)
        return replace(readers[form](path), source=name)
    raise Problem(
        f"data.source: '{path}' has no known format; use a file ({', '.join(FILES)}) or a folder of IDX,"
        " LEAF or UCI HAR files"
    )


def locate(source: str, folder: Path | None) -> Path:
    """Return the path of the file or folder that a source names."""
    path = Path(source).expanduser()
    if path.suffix.lower() in columns.EXCEL:
        return path
    if path.suffix.lower() in FILES or path.is_dir() or path.is_absolute() or "/" in source:
        for base in (path, *([folder / path] if folder is not None else [])):
            if base.exists():
                return base
        raise Problem(f"data.source: '{source}' does not exist")
    if folder is None:
        raise Problem(
            f"data.source: '{source}' is not built in (built in: {', '.join(BUILT_IN)}); name a file, or set"
            " the folder that contains it with data_dir or COTERIE_DATA"
        )
    for suffix in FILES:
        if (folder / f"{source}{suffix}").is_file():
            return folder / f"{source}{suffix}"
    if (folder / source).is_dir():
        return folder / source
    known = [entry.name for entry in entries(folder)]
    raise Problem(f"data.source: there is no '{source}' in '{folder}'; {nearest(source, known)}")


@plainly
def list_data(data_dir: str | Path | None = None) -> list[Entry]:
    """List what can be loaded by name: built in, or in a folder (else in `COTERIE_DATA`)."""
    return entries(data_folder(data_dir))


def entries(folder: Path | None) -> list[Entry]:
    """Return an entry for everything that can be loaded by name."""
    found = [Entry("digits", "built in", "ships with scikit-learn", digits.ROWS, 0)]
    for path in sorted(folder.iterdir()) if folder else []:
        form = form_of(path)
        if form == "npz":
            counts = npz.describe(path)
            if counts:
                found.append(Entry(path.stem, form, str(path), *counts))
        elif form:
            name = path.stem if path.is_file() else path.name
            found.append(Entry(name, form, str(path)))
    return found
