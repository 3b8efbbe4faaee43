"""Budgets that differ between silos: drawn from a distribution of preferences, or read from a file.

The distributions are those of Liu, Lou, Xiong, Liu, Meng 2022 (Projected Federated Averaging
with Heterogeneous Differential Privacy), table 1. N(a, b) there means standard deviation b, as in
the authors' public code: if b were a variance, one in six budgets of N(0.1, 0.01) would be negative.
The table gives no parameters for Pareto; the code uses scale 0.5 and shape 1.
"""

from __future__ import annotations

import csv
import io
import json
import math
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._seeds import seed_for
from ..errors import Problem, nearest, reason

# A larger budget protects nothing, and calibration refuses it.
MOST_EPSILON = 1000.0
# What a file may state for a silo, and the values it may have.
KEYS = {
    "epsilon": f"a number > 0 and at most {MOST_EPSILON:g}, or inf (no privacy)",
    "delta": "a number between 0 and 1",
}
# A silo's place in the file, its name, and its epsilon and delta as far as they are given.
Row = tuple[str, str, Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """A component of a mixture: its weight, and how to draw one epsilon from it."""

    weight: float
    draw: Callable[[np.random.Generator], float]


def _uniform(low: float, high: float) -> Part:
    return Part(1.0, lambda generator: float(generator.uniform(low, high)))


def _gauss(mean: float, deviation: float, weight: float = 1.0) -> Part:
    return Part(weight, lambda generator: float(generator.normal(mean, deviation)))


def _pareto(scale: float, shape: float) -> Part:
    return Part(1.0, lambda generator: float(scale * (1 + generator.pareto(shape))))


PREFERENCES: dict[str, tuple[Part, ...]] = {
    "uniform": (_uniform(1.0, 10.0),),
    "gauss": (_gauss(3.0, 1.0),),
    "pareto": (_pareto(0.5, 1.0),),
    "mixgauss1": (_gauss(0.1, 0.01, 0.9), _gauss(10.0, 0.1, 0.1)),
    "mixgauss2": (_gauss(0.5, 0.01, 0.9), _gauss(10.0, 0.1, 0.1)),
    "mixgauss3": (_gauss(1.0, 0.1, 0.9), _gauss(10.0, 0.1, 0.1)),
    "mixgauss4": (_gauss(0.1, 0.01, 0.5), _gauss(1.0, 0.1, 0.4), _gauss(10.0, 1.0, 0.1)),
}


def check_preference(name: str) -> None:
    """Raise `Problem` if no distribution of budgets has this name; case does not matter."""
    if name.lower() not in PREFERENCES:
        raise Problem(f"unknown budget preference '{name}'; {nearest(name, PREFERENCES)}")


def draw_budgets(name: str, silos: int, seed: int, *, with_public: bool = False) -> tuple[float, ...]:
    """Draw an epsilon for each silo, independently, from the preferences called `name`.

    An epsilon outside (0, 1000] is drawn again from the same component. This happens to one draw in
    741 of gauss (negative), one in 2000 of pareto (too large), and hardly ever to the others. Each
    silo has its own random stream, so adding silos does not change the budgets of the first ones.
    With the same seed, mixgauss1 to mixgauss4 place the same silos in their last component, around 10.

    The silos of that component are the paper's public silos. A draw may contain none: for 20 silos
    this happens with probability 0.9^20 = 12 %. With `with_public`, all budgets are drawn again until
    there is one, as in the authors' code.

    >>> [round(epsilon, 2) for epsilon in draw_budgets("mixgauss1", 4, seed=6)]
    [9.97, 0.1, 0.11, 0.11]
    """
    check_preference(name)
    for key, value, least in (("silos", silos, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise Problem(f"{key} must be a whole number >= {least}, got {value!r}")
    parts = PREFERENCES[name.lower()]
    start, attempt = seed_for(seed, "budgets"), 0
    while True:
        drawn = [_draw(parts, np.random.default_rng((start, attempt, k))) for k in range(silos)]
        if not with_public or any(part == len(parts) - 1 for part, _ in drawn):
            return tuple(epsilon for _, epsilon in drawn)
        attempt += 1


def _draw(parts: tuple[Part, ...], generator: np.random.Generator) -> tuple[int, float]:
    """Return the index of the chosen component, and an epsilon drawn from it."""
    chosen = int(generator.choice(len(parts), p=[part.weight for part in parts]))
    while True:
        epsilon = parts[chosen].draw(generator)
        if 0 < epsilon <= MOST_EPSILON:
            return chosen, epsilon


def read_budgets(path: str | Path, key: str = "epsilon") -> dict[str, float]:
    """Read each silo's epsilon, or its delta with `key="delta"`, from a file.

    A `.csv` file has one row per silo, with the columns `silo`, `epsilon` and optionally `delta`.
    A `.json` or `.toml` file maps silo names to an epsilon, or to a table with `epsilon` and
    optionally `delta`. A silo called `default` stands for all silos that are not named. The whole
    file is checked whatever the `key`, and all problems are reported together. If the file has no
    deltas, the result for `key="delta"` is empty.
    """
    if key not in KEYS:
        raise Problem(f"key must be one of epsilon, delta, got '{key}'; {nearest(key, KEYS)}")
    path = Path(path)
    readers = {".csv": _read_csv, ".json": _read_json, ".toml": _read_toml}
    if path.suffix.lower() not in readers:
        raise Problem(f"the budget file '{path}' must end in .csv, .json or .toml")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise Problem(f"the budget file '{path}' does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"cannot read the budget file '{path}': {reason(error)}") from error
    problems: list[str] = []
    try:
        rows = readers[path.suffix.lower()](text, problems)
    except (ValueError, csv.Error, RecursionError) as error:
        raise Problem(f"'{path}' is not valid {path.suffix[1:].upper()}: {error}") from error
    found = _check_rows(rows, problems)
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise Problem(f"{path} has {len(problems)} problem(s):{lines}")
    return {silo: budget[key] for silo, budget in found.items() if key in budget}


def _read_csv(text: str, problems: list[str]) -> list[Row]:
    """Return the rows of a table, ignoring blank lines."""
    reader = csv.reader(io.StringIO(text), strict=True, skipinitialspace=True)
    stripped = ((reader.line_num, [cell.strip() for cell in cells]) for cells in reader)
    lines = [(number, cells) for number, cells in stripped if any(cells)]
    header = lines[0][1] if lines else []
    known = ("silo", *KEYS)
    problems += [f"unknown column '{c}'; {nearest(c, known)}" for c in header if c not in known]
    problems += [f"column '{c}' appears twice; keep one" for c in known if header.count(c) > 1]
    missing = [c for c in ("silo", "epsilon") if c not in header]
    problems += [
        f"no column '{c}'; the first line must name the columns silo, epsilon, delta" for c in missing
    ]
    if missing:
        return []
    rows: list[Row] = []
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            problems.append(f"line {number}: expected {len(header)} cells, got {len(cells)}")
            continue
        row = dict(zip(header, cells, strict=True))
        rows.append((f"line {number}", row["silo"], {k: _as_number(row[k]) for k in KEYS if k in row}))
    if len(lines) == 1:
        problems.append("it names no silo; add one line per silo")
    return rows


def _as_number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _read_json(text: str, problems: list[str]) -> list[Row]:
    """Return the entries of a JSON object, reporting names that appear twice."""

    def noted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        often = Counter(name for name, _ in pairs)
        problems.extend(f"'{name}' appears twice; keep one" for name in often if often[name] > 1)
        return dict(pairs)

    return _entries(json.loads(text, object_pairs_hook=noted), problems)


def _read_toml(text: str, problems: list[str]) -> list[Row]:
    """Return the entries of a TOML file; TOML itself rejects names that appear twice."""
    return _entries(tomllib.loads(text), problems)


def _entries(content: Any, problems: list[str]) -> list[Row]:
    """Return the entries of a mapping from silos to an epsilon, or to a table of epsilon and delta."""
    if not isinstance(content, dict) or not content:
        problems.append("it names no silo; map each silo's name to its epsilon")
        return []
    rows: list[Row] = []
    for silo, given in content.items():
        place = f"silo '{silo}'"
        table = given if isinstance(given, dict) else {"epsilon": given}
        problems += [f"{place}: unknown key '{k}'; {nearest(k, KEYS)}" for k in table if k not in KEYS]
        if "epsilon" not in table:
            problems.append(f"{place}: no epsilon; add one")
        rows.append((place, silo, {k: table[k] for k in KEYS if k in table}))
    return rows


def _check_rows(rows: list[Row], problems: list[str]) -> dict[str, dict[str, float]]:
    """Return the budget of each silo, reporting invalid names and numbers."""
    found: dict[str, dict[str, float]] = {}
    places: dict[str, str] = {}
    for place, silo, given in rows:
        if not silo:
            problems.append(f"{place}: the silo has no name; add one")
        elif silo in places:
            problems.append(f"{place}: silo '{silo}' appears twice (first on {places[silo]}); keep one")
        places.setdefault(silo, place)
        wrong = {key: value for key, value in given.items() if not _possible(key, value)}
        problems += [f"{place}: expected {key} to be {KEYS[key]}, got {v!r}" for key, v in wrong.items()]
        if not wrong:
            found[silo] = {key: float(value) for key, value in given.items()}
    return found


def _possible(key: str, value: Any) -> bool:
    """Return whether a value can be an epsilon or a delta."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key == "delta":
        return 0 < value < 1
    return 0 < value <= MOST_EPSILON or value == math.inf
