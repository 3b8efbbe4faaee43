"""What a person spends in total who has rows in several silos."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Problem, as_path, nearest, reason
from ..planning.accounting import accounting_of
from ..planning.plan import Plan
from ..privacy.accountant import epsilon_of
from ..privacy.events import Event, grouped
from .study import StudyPlan

COLUMN = "silos"
Overlap = tuple[str, ...]


@dataclass(frozen=True)
class PersonTotal:
    """The largest total of a person in one training: in which silos, and (epsilon, delta) over all of these.

    Epsilon is infinite if one of the silos has no budget.
    """

    label: str
    silos: Overlap
    epsilon: float
    delta: float

    def to_json(self) -> dict[str, Any]:
        """Return the total as plain data."""
        return {
            "method": self.label,
            "silos": list(self.silos),
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
        }

    def __str__(self) -> str:
        whose = f"a person with rows in {', '.join(self.silos)}"
        if math.isinf(self.epsilon):
            return f"{self.label}: nothing protects {whose}, because one of these silos has no budget"
        return (
            f"{self.label}: {whose} spends at most epsilon {self.epsilon:.4g} in total, at delta"
            f" {self.delta:g}; by the overlaps, nobody spends more"
        )


def person_totals(planned: StudyPlan, overlaps: str | Path | Sequence[Sequence[str]]) -> list[PersonTotal]:
    """Return the largest total of a person in each training: over its seeds and the silos that may share one.

    `overlaps` lists these silos: each entry holds the names of the silos that have rows of one person. It
    may be the path of a CSV file with a column `silos`, in which names are separated by semicolons. What the
    silos release is composed as one sequence, at the largest of their deltas.
    """
    experiments = planned.study.experiments
    if any(experiment.privacy.unit != "person" for experiment in experiments):
        raise Problem("overlaps: totals of persons need privacy.unit = 'person'")
    names = experiments[0].federation.names
    listed = (
        _read(overlaps)
        if isinstance(overlaps, str | Path)
        else [tuple(map(str, entry)) for entry in overlaps]
    )
    _check(listed, names)
    totals = []
    for experiment, plan in planned.pairs():
        runs: dict[int, list[PersonTotal]] = {}  # who takes part in which rounds differs between seeds
        for run, (_, variant) in enumerate(experiment.keys):
            largest = _largest(experiment.labels[variant], plan, run, listed, names)
            runs.setdefault(variant, []).append(largest)
        totals += [max(each, key=lambda total: total.epsilon) for each in runs.values()]
    return totals


def _largest(
    label: str, plan: Plan, run: int, overlaps: Sequence[Overlap], names: Sequence[str]
) -> PersonTotal:
    """Return the largest total over all overlaps; silos that release the same are composed only once."""
    claims = [accounting_of(plan).claim("", plan, run, k) for k in range(len(names))]
    known: dict[tuple[tuple[Event, ...], float], float] = {}
    found = []
    for silos in overlaps:
        own = [claims[names.index(silo)] for silo in silos]
        events = grouped(event for claim in own for event in claim.events(0, claim.rounds))
        key = events, max(claim.delta for claim in own)
        bare = any(math.isinf(claim.epsilon) for claim in own)
        if key not in known:
            known[key] = math.inf if bare else epsilon_of(*key)
        found.append(PersonTotal(label, silos, known[key], key[1]))
    return max(found, key=lambda total: total.epsilon)


def _read(place: str | Path) -> list[Overlap]:
    """Read a file of overlaps."""
    path = as_path("overlaps", place)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file)
            columns = table.fieldnames or []
            rows = list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Problem(f"overlaps: cannot read '{path}': {reason(error)}") from error
    if COLUMN not in columns:
        raise Problem(f"overlaps: '{path}' has no column '{COLUMN}'; {nearest(COLUMN, columns)}")
    return [tuple(name.strip() for name in (row[COLUMN] or "").split(";") if name.strip()) for row in rows]


def _check(overlaps: Sequence[Overlap], names: Sequence[str]) -> None:
    """Raise one `Problem` for everything that is wrong with overlaps."""
    problems = [] if overlaps else ["expected at least one entry, got none"]
    for number, silos in enumerate(overlaps, 1):
        problems += [
            f"entry {number}: there is no silo '{silo}'; {nearest(silo, names)}"
            for silo in silos
            if silo not in names
        ]
        if not silos:
            problems.append(f"entry {number}: expected names of silos, separated by semicolons, got none")
        if len(set(silos)) < len(silos):
            problems.append(f"entry {number}: a silo is named twice")
    if problems:
        raise Problem("overlaps: " + "; ".join(problems))
