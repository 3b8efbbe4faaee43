"""New configurations: written for a table, with comments, or copied from the examples."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.describe import Description, describe
from ..data.sources.catalogue import FILES, TABLES, form_of
from ..errors import Problem, as_path, nearest, plainly, reason
from .config.files import apply_change
from .config.schema import check

EXAMPLES = Path(__file__).parents[1] / "examples"
PLACE = 34  # the column where comments begin


@dataclass(frozen=True)
class NewConfig:
    """Files that `new_config` wrote: the configuration first. `remarks` are what to check in it."""

    files: tuple[Path, ...]
    remarks: tuple[str, ...] = ()


@plainly
def new_config(
    path: str | Path = "coterie.toml",
    source: str | Path | None = None,
    *,
    example: str | None = None,
    changes: Sequence[str] = (),
    silo_column: str | None = None,
    target_column: str | None = None,
    person_column: str | None = None,
) -> NewConfig:
    """Write a commented configuration for a data file, or for the digits that come with scikit-learn.

    A CSV or Parquet file is read, and its [data] table is suggested from what is in it (see `describe`).
    `changes` set keys: `changes=["privacy.epsilon=2"]`. With `example`, an example that comes with Coterie is
    copied into the folder of `path` instead, with the files that it needs. Nothing is overwritten.
    """
    place = as_path("path", path)
    if example is not None:
        if source is not None or changes:
            raise Problem("example: it is copied as it is; leave out the data and the changes")
        return NewConfig(_copied(example, place.parent))
    named = {"silo_column": silo_column, "target_column": target_column, "person_column": person_column}
    content, comments, remarks = _content(source, named, place)
    for change in changes:
        apply_change(content, change)
    text = commented(content, comments)
    check(tomllib.loads(text), str(place))
    _write(place, text)
    return NewConfig((place,), remarks)


def data_table_of(found: Description) -> str:
    """Return the [data] table that a description suggests, with comments."""
    comments = {**COMMENTS, **{f"data.{key}": why for key, why in found.guesses.items()}}
    return "\n".join(_lines({"data": found.data}, {**comments, **_bounds(found)})[1:]) + "\n"


def list_examples() -> list[str]:
    """Return the names of the examples that come with Coterie."""
    return sorted(path.stem for path in EXAMPLES.iterdir() if path.suffix in (".toml", ".py"))


def _copied(name: str, folder: Path) -> tuple[Path, ...]:
    """Copy an example and the files that its text names."""
    known = {path.stem: path for path in sorted(EXAMPLES.iterdir()) if path.suffix in (".toml", ".py")}
    if name not in known:
        raise Problem(f"example: there is no '{name}'; {nearest(name, known)}")
    first = known[name]
    named = set(re.findall(r'"([^"\s]+)"', first.read_text()))
    needed = [path for path in sorted(EXAMPLES.iterdir()) if path.name in named and path != first]
    files = [(path, folder / path.name) for path in (first, *needed)]
    for _, target in files:
        if target.exists():
            raise Problem(f"'{target}' exists, and nothing is overwritten: choose another folder")
    for path, target in files:
        try:
            shutil.copyfile(path, target)
        except OSError as error:
            raise Problem(f"cannot write '{target}': {reason(error)}") from error
    return tuple(target for _, target in files)


def _write(place: Path, text: str) -> None:
    try:
        with place.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Problem(f"'{place}' exists, and nothing is overwritten: choose another name") from None
    except OSError as error:
        raise Problem(f"cannot write '{place}': {reason(error)}") from error


def _content(
    source: str | Path | None, named: Mapping[str, str | None], place: Path
) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    """Return the tables of a configuration, comments by key, and what to check."""
    if source is None:
        data = {"source": "digits", "silos": 10, "partition": "dirichlet", "alpha": 0.15}
        return *_with_training(data, {}, 150, 10), ()
    path = as_path("source", source)
    if not path.exists():
        raise Problem(f"data.source: '{path}' does not exist")
    form = form_of(path)
    if form is None:
        raise Problem(
            f"data.source: '{path}' has no known format; use a file ({', '.join(FILES)}) or a folder"
        )
    relative = os.path.relpath(path, place.parent)
    if form not in TABLES:
        return *_with_training({"source": relative}, {}, 1000, 0), ()
    found = describe(path, **named)
    data = {**found.data, "source": relative}
    sizes = found.silo_sizes.values()
    largest = max(sizes) if sizes else found.rows // 10
    content, comments = _with_training(data, found.guesses, largest, 2)
    return content, {**comments, **_bounds(found)}, found.remarks


def _with_training(
    data: dict[str, Any], guesses: Mapping[str, str], largest: int, classes: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tables of a configuration with a training that suits most tables, and their comments."""
    privacy: dict[str, Any] = {"epsilon": 4.0, "delta": delta_for(largest)}
    if "person_column" in data:
        privacy = {"unit": "person", **privacy}
    content = {
        "data": data,
        "model": {"name": "linear"},
        "train": {"rounds": 100, "batch": 64, "lr": "auto"},
        "privacy": privacy,
        "method": [{"name": "local"}, {"name": "mr-mtl", "lam": "auto"}],
    }
    return content, {**COMMENTS, **{f"data.{key}": why for key, why in guesses.items()}}


COMMENTS = {
    "data.drop": "columns that are no features",
    "data.missing": 'what missing values become; "indicator": a column says so',
    "data.categories": "check: values that may be public, such as those of a form",
    "data.dates": "years since this day",
    "model.name": 'or "mlp", "cnn", or your own "package.module:function"',
    "train.rounds": "more rounds need more noise in each",
    "train.lr": "a learning rate that follows from noise, clip and size of the model",
    "privacy.unit": "what is protected: all rows of a person in a silo",
    "privacy.epsilon": "the budget of each silo; smaller protects more",
    "privacy.delta": "well below 1 / (number of a silo's rows)",
    "method.local": "every silo trains alone, for comparison",
    "method.mr-mtl": "a model for each silo, pulled toward the mean of all",
}


def _bounds(found: Description) -> dict[str, str]:
    """Return the comments that show bounds, which must come from elsewhere."""
    if not found.ranges:
        return {}
    pairs = {name: list(pair) for name, pair in found.ranges.items()}
    return {
        "data": "Models learn best from numbers between 0 and 1: give bounds that are public.\n# Those below"
        " were rounded from this file, so they are not: correct them, then remove the '#'.\n"
        f"# feature_range = {inline(pairs)}"
    }


def delta_for(size: int) -> float:
    """Return a power of ten well below 1 / size.

    >>> delta_for(90), delta_for(400)
    (0.001, 0.0001)
    """
    return float(f"1e-{math.ceil(math.log10(max(size, 2))) + 1}")


def commented(content: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Return tables as TOML with comments, which are found by table and key, or by the name of a method."""
    head = [
        "# See what this costs with `coterie plan FILE`, then train with `coterie run FILE`.",
        "# `coterie advise FILE` suggests a method, rounds and batch.",
        "# docs/configuration.md explains every key.",
    ]
    return "\n".join([*head, *_lines(content, comments)]) + "\n"


def _lines(content: Mapping[str, Any], comments: Mapping[str, str]) -> list[str]:
    """Return the lines of tables, with an empty line before each."""
    lines: list[str] = []
    for name, table in content.items():
        for entry in table if isinstance(table, list) else [table]:
            lines += ["", f"[[{name}]]" if isinstance(table, list) else f"[{name}]"]
            for key, value in entry.items():
                comment = comments.get(f"{name}.{value if name == 'method' else key}", "")
                line = f"{_key(key)} = {inline(value)}"
                if comment and len(line) > PLACE - 2:
                    lines += [f"# {key}: {comment}", line]
                else:
                    lines.append(f"{line:<{PLACE - 2}}  # {comment}" if comment else line)
        if name in comments and "feature_range" not in table:
            lines.append(f"# {comments[name]}")
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else inline(name)


def inline(value: Any) -> str:
    """Return a value as TOML in one line.

    >>> inline({"age": [0, 99.5], "a b": True, "since": "2000-01-01"})
    '{ age = [0, 99.5], "a b" = true, since = "2000-01-01" }'
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(key))} = {inline(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(inline, value)) + "]"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
