"""What came out of runs: scores, spending, models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .._json import finite
from ..data.new_rows import Rows
from ..data.preparation import Preparation
from ..errors import Problem, nearest
from ..tasks.task import Task
from .saved_models import personal_model, save_model

if TYPE_CHECKING:
    import pandas as pd

if TYPE_CHECKING:
    from .config.schema import Config
    from .run import Trained

SIMULATED = (
    "Scores are those of a simulation: test examples are not covered by the statements, and choosing a"
    " setting by them is tuning, which is not accounted here."
)

UNACCOUNTED = (
    "tuning not accounted: who keeps the best of these rows by their scores spends more than they say"
)


@dataclass(frozen=True)
class SiloRecord:
    """One silo in one run."""

    score: float
    epsilon: float
    delta: float
    noise: float


@dataclass(frozen=True)
class RunRecord:
    """One run; `gaps` are duality gaps after rounds, of a dual method without privacy."""

    method: str
    settings: dict[str, Any]
    seed: int
    metric: str
    score: float
    silos: dict[str, SiloRecord]
    seconds: float
    bytes_up: int
    bytes_down: int
    history: list[tuple[int, float]]
    gaps: list[tuple[int, float]] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Method and settings in one word or two."""
        return label_of(self.method, self.settings)


def label_of(method: str, settings: dict[str, Any]) -> str:
    """Give a short name: `mr-mtl lam=1`."""
    shown = (f"{k}={v:.12g}" if isinstance(v, int | float) else f"{k}={v}" for k, v in settings.items())
    return " ".join((method, *shown))


def deviation(scores: Sequence[float]) -> float:
    """Give the standard deviation of several scores; none, if one of them is no number."""
    return statistics.stdev(scores) if all(map(math.isfinite, scores)) else math.nan


@dataclass
class Result:
    """Runs, with the personal vectors of each: `vectors[run]` is `[silos, P]`.

    `relations[run]` is Omega `[silos, silos]`, of methods that learn how silos are related.
    `trained[run]` is what is known of the experiment whose runs begin with that one, and `config` describes
    the study.
    `preparation` is how raw rows become examples.
    """

    task: Task
    names: tuple[str, ...]
    runs: list[RunRecord] = field(default_factory=list)
    vectors: dict[int, Tensor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tuning: dict[str, Any] | None = None
    published: dict[str, dict[str, Any]] = field(default_factory=dict)
    relations: dict[int, Tensor] = field(default_factory=dict)
    trained: dict[int, Trained] = field(default_factory=dict)
    config: Config | None = None
    preparation: Preparation | None = None

    def add(self, other: Result) -> None:
        """Take in the runs of another result."""
        self.vectors |= {len(self.runs) + r: v for r, v in other.vectors.items()}
        self.relations |= {len(self.runs) + r: omega for r, omega in other.relations.items()}
        self.trained |= {len(self.runs) + r: trained for r, trained in other.trained.items()}
        self.runs += other.runs
        self.preparation = self.preparation or other.preparation
        self.published |= other.published
        self.notes += [note for note in other.notes if note not in self.notes]

    @property
    def summary(self) -> list[dict[str, Any]]:
        """Mean and deviation over seeds for each method and setting; epsilon is the largest."""
        groups: dict[str, list[RunRecord]] = {}
        for run in self.runs:
            groups.setdefault(run.label, []).append(run)
        rows = []
        for members in groups.values():
            scores = [run.score for run in members]
            rows.append(
                {
                    "method": members[0].method,
                    "settings": members[0].settings,
                    "metric": members[0].metric,
                    "mean": statistics.fmean(scores),
                    "std": deviation(scores) if len(scores) > 1 else 0.0,
                    "seeds": len(scores),
                    "epsilon": max(s.epsilon for run in members for s in run.silos.values()),
                    "seconds": sum(run.seconds for run in members),
                    "bytes_up": members[0].bytes_up,
                    "bytes_down": members[0].bytes_down,
                }
            )
        return rows

    def best(self) -> dict[str, Any]:
        """Give the row of the summary with the best mean (choosing by it is tuning)."""
        sign = 1 if self.task.higher_is_better else -1
        return max(self.summary, key=lambda row: (not math.isnan(row["mean"]), sign * row["mean"]))

    def to_json(self) -> dict[str, Any]:
        """Give all but the vectors as plain data; an infinite epsilon (no privacy) becomes null."""
        content: dict[str, Any] = finite(
            {
                "simulation": SIMULATED,
                "metric": self.task.metric,
                "higher_is_better": self.task.higher_is_better,
                "tuning": self.tuning or (UNACCOUNTED if len(self.summary) > 1 else None),
                "notes": self.notes,
                "summary": self.summary,
                "runs": [asdict(run) for run in self.runs],
                "published": self.published,
            }
        )
        return content

    def vector(self, silo: str, run: int = 0) -> Tensor:
        """Give one silo's personal vector."""
        if silo not in self.names:
            raise Problem(f"there is no silo '{silo}'; {nearest(silo, self.names)}")
        if run not in self.vectors:
            raise Problem(f"there is no run {run}; there are {len(self.runs)}, from 0")
        return self.vectors[run][self.names.index(silo)]

    def model(self, silo: str, run: int = 0) -> nn.Module:
        """Give one silo's personal model as a plain module."""
        return self.task.to_module(self.vector(silo, run))

    def predict(self, silo: str, rows: Rows, run: int = 0) -> pd.DataFrame:
        """Return what one silo's personal model predicts for raw rows (see `PersonalModel.predict`)."""
        vector = self.vector(silo, run)
        model = personal_model(self.task, vector, self.preparation, silo, self.runs[run].label)
        return model.predict(rows)

    def save_model(self, silo: str, path: str | Path, run: int = 0) -> None:
        """Save one silo's personal model, whole; `load_model` reads it."""
        vector = self.vector(silo, run)
        save_model(path, self.task, vector, self.preparation, silo, self.runs[run].label)


def file_names(names: Sequence[str]) -> list[str]:
    """Give a distinct, harmless file name for each silo."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:80].lstrip(".") or "_"
        seen[safe.lower()] = seen.get(safe.lower(), 0) + 1
        made.append(safe if seen[safe.lower()] == 1 else f"{safe}~{seen[safe.lower()]}")
    return made
