"""What each silo gains over training alone, from the runs of a result."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .summaries import leading

if TYPE_CHECKING:
    from .result import Result, RunRecord

ALONE = "local"


@dataclass(frozen=True)
class Gains:
    """How much better each silo is with a method than `against` training alone, largest gain first.

    Each number is a mean over seeds, and positive if the method is better. Silos in which the measure is
    undefined are left out.
    """

    label: str
    against: str
    measure: str
    silos: Mapping[str, float]

    def facts(self) -> dict[str, Any]:
        """Return the gains as plain data."""
        return {
            "against": self.against,
            "measure": self.measure,
            "better": sum(gain > 0 for gain in self.silos.values()),
            "median": statistics.median(self.silos.values()) if self.silos else math.nan,
            "silos": dict(self.silos),
        }

    def line(self) -> str:
        """Return the gains in a sentence."""
        names = list(self.silos)
        first, last = names[0], names[-1]
        known = self.facts()
        return (
            f"{self.label} against {self.against}, in {self.measure}: {known['better']} of {len(names)} silos"
            f" gain; median {known['median']:+.3f}, from {self.silos[last]:+.3f} ({last}) to"
            f" {self.silos[first]:+.3f} ({first})."
        )


def gains_of(result: Result, measure: str | None = None) -> list[Gains]:
    """Return the gains of every method and setting, by the leading measure if none is named.

    Each is compared with the run of `local` that shares its settings, such as a learning rate, or else with
    the first one. There are none without a run of `local`.
    """
    groups: dict[str, list[RunRecord]] = {}
    for run in result.runs:
        groups.setdefault(run.label, []).append(run)
    alone = {label: runs for label, runs in groups.items() if runs[0].method == ALONE}
    if not alone:
        return []
    measure = measure or leading(result.runs, result.task.metric)
    made = []
    for label, runs in groups.items():
        if label in alone:
            continue
        against = _counterpart(runs[0], alone)
        silos = _differences(runs, alone[against], measure, result.task.higher_is_better)
        ranked = dict(sorted(silos.items(), key=lambda pair: -pair[1]))
        if ranked:
            made.append(Gains(label, against, measure, ranked))
    return made


def _counterpart(run: RunRecord, alone: Mapping[str, Sequence[RunRecord]]) -> str:
    """Return the label of the runs of `local` with the same settings, as far as they share any."""
    for label, others in alone.items():
        settings = others[0].settings
        if all(run.settings.get(key) == value for key, value in settings.items()):
            return label
    return next(iter(alone))


def _differences(
    runs: Sequence[RunRecord], alone: Sequence[RunRecord], measure: str, higher_is_better: bool
) -> dict[str, float]:
    """Return the mean difference of each silo over the seeds that both have."""
    others = {run.seed: run for run in alone}
    parts: dict[str, list[float]] = {}
    for run in runs:
        if run.seed not in others:
            continue
        known = run.measures.get(measure)
        better = higher_is_better if known is None else known.higher_is_better
        for name in run.silos:
            gain = value_of(run, name, measure) - value_of(others[run.seed], name, measure)
            if not math.isnan(gain):
                parts.setdefault(name, []).append(gain if better else -gain)
    return {name: statistics.fmean(gains) for name, gains in parts.items()}


def value_of(run: RunRecord, silo: str, measure: str) -> float:
    """Return a silo's value of a measure in a run; NaN where it is undefined."""
    if measure == run.metric:
        return run.silos[silo].score
    return run.measures[measure].silos[silo].value if measure in run.measures else math.nan
