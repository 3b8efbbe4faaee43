"""The public grids that a metered run's releases were rounded to, as its statement has them.

A grid follows from the deviation of the noise: multiplier times clip (`coterie.noise.rounded`). So anyone who
has the statement can compute it again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._grid import GRID, grid_exponent
from ...errors import Problem
from ..merges import BITS, MergeEvents

RULE = (
    f"each released number is a multiple of the grid: 2^-{GRID} times the power of two that is at most the"
    " deviation of the noise, which is the multiplier times the clip"
)
SAMPLED, DUAL, WHOLE = "descend", "solve_dual", "solve_dual whole"  # doors whose noise is in units of a clip
CHOICE, MERGE, COUNT = "select", "merge", "uploads within the clip"
TOLERANCE = 1e-6  # by how much another version may round the product of multiplier and clip
MOVES = "the clip, or the public matrix of the sums, may change from round to round, and the grid with it"


def grid_facts(doors: Sequence[dict[str, Any]], merges: MergeEvents | None) -> dict[str, Any]:
    """Return the grids of a metered run, one row for each kind of noisy sum that its doors released.

    A row whose `deviation` and `exponent` are None has a grid that changes from round to round.
    """
    rows = _sums(doors) if merges is None else _merged(doors, merges)
    return {"rule": RULE, "releases": [row for n, row in enumerate(rows) if row not in rows[:n]]}


def _sums(doors: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each noisy sum of single examples; a private choice is no sum."""
    used = [(door["door"], door["noise"], door["clip"]) for door in doors if door["door"] != CHOICE]
    return [_row(*sums, _deviation(*sums)) for sums in used if sums[1] and sums[2] is not None]


def _merged(doors: Sequence[dict[str, Any]], merges: MergeEvents) -> list[dict[str, Any]]:
    """Return a row for the merges that a silo took part in and, if the clip moves, one for what moves it."""
    if not doors or not merges.noise:
        return []
    if merges.quantile is None:
        noise = merges.own_noise if merges.noise_by == "secure" else merges.noise
        return [_row(MERGE, noise, merges.clip, None if merges.mixed else noise * merges.clip)]
    count = merges.noise / BITS**0.5  # each upload counts as plus or minus one half
    moving = _row(MERGE, merges.noise * (1 - BITS) ** -0.5, merges.clip, None)
    return [moving, _row(COUNT, count, 0.5, count / 2)]


def _row(release: str, noise: float, clip: float, deviation: float | None) -> dict[str, Any]:
    row = {"release": release, "noise": noise, "clip": clip, "deviation": deviation}
    return {**row, "exponent": None if deviation is None else grid_exponent(deviation)}


def _deviation(door: str, noise: float, clip: float) -> float:
    """Return the deviation of a door's noise, with the rounding of training: it may decide about the grid."""
    with np.errstate(all="ignore"):
        single = np.float32(noise), np.float32(clip)
        if door == SAMPLED:
            found = float(single[0] * single[1])
        elif door in (DUAL, WHOLE):
            found = (2.0 if door == WHOLE else 1.0) * float(single[0]) * float(single[1])
        else:
            found = noise * clip
    if not (math.isfinite(found) and found > 0):
        raise Problem(f"doors: noise of multiplier {noise:g} and clip {clip:g} has no grid")
    return found


def check_grid(content: dict[str, Any], merges: MergeEvents | None) -> None:
    """Raise `Problem` unless a statement has the grids that follow from its doors, or is a simulation."""
    said = content["grid"]
    if (said is None) != (content["ledger"] is None):
        raise Problem("statement: grid: a metered run must state its grids, and a simulation has none")
    if said is None:
        return
    try:
        true = grid_facts(content["doors"], merges)
        right = said["rule"] == RULE and len(said["releases"]) == len(true["releases"])
        right = right and all(map(_alike, said["releases"], true["releases"]))
    except Problem as problem:
        raise Problem(f"statement: {problem}") from None
    if not right:
        raise Problem("statement: grid: does not follow from the noise and the clips that it states")


def _alike(said: dict[str, Any], true: dict[str, Any]) -> bool:
    """Return whether a row is right; the exponent must be that of the deviation it states."""
    if any(said[key] != true[key] for key in ("release", "noise", "clip")):
        return False
    if said["deviation"] is None or true["deviation"] is None:
        return said["deviation"] is said["exponent"] is true["deviation"] is None
    close = math.isclose(said["deviation"], true["deviation"], rel_tol=TOLERANCE)
    return close and said["exponent"] == grid_exponent(said["deviation"])


def cells(grid: dict[str, Any]) -> str:
    """Return in a few words to which public grids everything was rounded."""
    found = sorted({row["exponent"] for row in grid["releases"] if row["exponent"] is not None})
    moving = any(row["exponent"] is None for row in grid["releases"])
    parts = [f"multiples of {', '.join(f'2^{exponent}' for exponent in found)}"] if found else []
    parts += ["a public grid that may change from round to round"] if moving else []
    return " and ".join(parts) or "no grid, since no noisy sum was released"


def grid_lines(grid: dict[str, Any]) -> list[str]:
    """Return in words to which grid each kind of release was rounded."""
    lines = []
    for row in grid["releases"]:
        noise = f"{row['release']}: noise multiplier {row['noise']:.4g}, clip {row['clip']:g}"
        if row["exponent"] is None:
            lines.append(f"{noise}; {MOVES}")
        else:
            cell = f"2^{row['exponent']} (about {2.0 ** row['exponent']:.2g})"
            lines.append(f"{noise}, so deviation {row['deviation']:.4g}; rounded to multiples of {cell}")
    return lines or ["no noisy sum was released"]
