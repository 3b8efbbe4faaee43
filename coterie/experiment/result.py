"""Results of runs: scores, spending, models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from .._json import finite
from ..data.new_rows import Rows
from ..data.preparation import Preparation
from ..errors import Problem, nearest
from ..privacy.accountant import shown_spent
from ..tasks.task import Task
from .frames import Row, counted, html_page, make_frame, text_table
from .saved_models import personal_model, save_model

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from .run import Study, Trained

SIMULATED = (
    "These are scores of a simulation. Statements do not cover test examples, and choosing a setting by these"
    " scores is tuning, which is not accounted for here."
)

UNACCOUNTED = "Tuning is not accounted for: picking the best row by its score costs more privacy than shown."


@dataclass(frozen=True)
class SiloRecord:
    """One silo in one run."""

    score: float
    epsilon: float
    delta: float
    noise: float


@dataclass(frozen=True)
class RunRecord:
    """One run; `gaps` are duality gaps after rounds, of a dual method without privacy.

    `history` lists scores over all silos after some rounds. `curves` are the scores of each silo after the
    same rounds, `losses` the mean losses on its training examples, in a run without privacy.
    """

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
    curves: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name: the method and its settings."""
        return label_of(self.method, self.settings)


def label_of(method: str, settings: dict[str, Any]) -> str:
    """Return a short name, such as `mr-mtl lam=1`."""
    shown = (f"{k}={v:.12g}" if isinstance(v, int | float) else f"{k}={v}" for k, v in settings.items())
    return " ".join((method, *shown))


def deviation(scores: Sequence[float]) -> float:
    """Return the standard deviation of several scores; NaN if one of them is not finite."""
    return statistics.stdev(scores) if all(map(math.isfinite, scores)) else math.nan


class Views(Protocol):
    """What draws results and saves them."""

    def figure(self, result: Result) -> Figure:
        """Draw a result."""
        ...

    def save(self, result: Result, folder: str | Path) -> None:
        """Save a result in a folder."""
        ...


@dataclass(repr=False, eq=False)
class Result:
    """Runs, with the personal vectors of each: `vectors[run]` is `[silos, P]`.

    `relations[run]` is Omega `[silos, silos]`, of methods that learn how silos are related.
    `trained[run]` is what is known about the experiment whose runs begin with that one, and `study` is what
    the user asked for; neither holds examples. `views` draws and saves. `preparation` is how raw rows become
    examples.
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
    study: Study | None = None
    views: Views | None = None
    preparation: Preparation | None = None

    def add(self, other: Result) -> None:
        """Add the runs of another result."""
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

    def __repr__(self) -> str:
        return "\n  ".join([self._title(), *text_table(self._shown()), *self._remarks()])

    def _repr_html_(self) -> str:
        """Return the summary as a table, for notebooks."""
        return html_page(self._title(), self._shown(), self._remarks())

    def _title(self) -> str:
        better = "higher" if self.task.higher_is_better else "lower"
        size = f"{counted(len(self.names), 'silo')}, {counted(len(self.runs), 'run')}"
        return f"Result: {size}, test {self.task.metric} over all silos ({better} is better)"

    def _shown(self) -> list[list[str]]:
        """Return the summary as rows of text, with a header."""
        rows = [["method", "mean", "std", "seeds", "epsilon at most"]]
        for row in self.summary:
            std = f"{row['std']:.4f}" if row["seeds"] > 1 else "-"
            label = label_of(row["method"], row["settings"])
            rows.append([label, f"{row['mean']:.4f}", std, str(row["seeds"]), shown_spent(row["epsilon"])])
        return rows

    def _remarks(self) -> list[str]:
        if self.tuning is not None and self.tuning.get("chosen") is not None:
            chosen = self.runs[self.tuning["chosen"]].label
            return [f"Chosen from {counted(self.tuning['ran'], 'trial')}: {chosen}"]
        return [UNACCOUNTED] if self.tuning is None and len(self.summary) > 1 else []

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each run and silo: its test score, and what it spent with which noise."""
        rows = [
            self._row(number, {"silo": name, "metric": run.metric, **asdict(silo)})
            for number, run in enumerate(self.runs)
            for name, silo in run.silos.items()
        ]
        return make_frame(rows, ["silo", "metric", "score", "epsilon", "delta", "noise"])

    def history(self) -> pd.DataFrame:
        """Return a row for each run, silo and recorded round: its test score and its training loss.

        The loss is NaN in runs with privacy, since no budget pays for showing it.
        """
        rows = [
            self._row(number, {"silo": name, "round": at, "score": scores[place], "loss": losses[place]})
            for number, run in enumerate(self.runs)
            for name, scores in run.curves.items()
            for losses in [run.losses.get(name) or [math.nan] * len(scores)]
            for place, (at, _) in enumerate(run.history)
        ]
        return make_frame(rows, ["silo", "round", "score", "loss"])

    def _row(self, number: int, facts: dict[str, Any]) -> Row:
        run = self.runs[number]
        return Row(number, run.method, run.settings, run.seed, facts)

    def plot(self) -> Figure:
        """Return a matplotlib figure with scores by method and silo, and scores over rounds."""
        if self.views is None:
            raise Problem("this result cannot be drawn, because it does not come from run or sweep")
        return self.views.figure(self)

    def save(self, folder: str | Path) -> None:
        """Write the folder that `coterie run` writes: result, plot, statements, models, configuration."""
        if self.views is None:
            raise Problem("this result cannot be saved, because it does not come from run or sweep")
        self.views.save(self, folder)

    def state(self) -> None:
        """Create the statements of all saved runs that do not have one yet."""
        for first, trained in self.trained.items():
            if any(run not in trained.statements for _, run in trained.saved()):
                self.trained[first] = trained.stated()
            self.published |= self.trained[first].published()

    def statement(self, silo: str, run: int = 0) -> dict[str, Any]:
        """Return the privacy statement of one silo in one run, with the content of its file."""
        place = self._place(silo, run)
        first = max((first for first in self.trained if first <= run), default=None)
        if first is None:
            raise Problem(
                f"there is no statement of run {run}, because this result does not come from run or sweep"
            )
        return self.trained[first].statement(run - first, place)

    def _place(self, silo: str, run: int) -> int:
        """Return the index of a silo; raise a Problem if the silo or the run does not exist."""
        if silo not in self.names:
            raise Problem(f"there is no silo '{silo}'; {nearest(str(silo), self.names)}")
        if not isinstance(run, int) or not 0 <= run < len(self.runs):
            raise Problem(f"there is no run {run}; there are {len(self.runs)}, from 0")
        return self.names.index(silo)

    def best(self) -> dict[str, Any]:
        """Return the row of the summary with the best mean (choosing by it is tuning)."""
        sign = 1 if self.task.higher_is_better else -1
        return max(self.summary, key=lambda row: (not math.isnan(row["mean"]), sign * row["mean"]))

    def to_json(self) -> dict[str, Any]:
        """Return everything but the models as plain data; an infinite epsilon (no privacy) becomes null."""
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
        """Return one silo's personal model as a vector of its trained parameters."""
        place = self._place(silo, run)
        if run not in self.vectors:
            raise Problem(
                f"the model of run {run} is not kept, because it finished before this run was resumed"
            )
        return self.vectors[run][place]

    def model(self, silo: str, run: int = 0) -> nn.Module:
        """Return one silo's personal model as a plain torch module."""
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
    """Return a distinct, harmless file name for each name."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:80].lstrip(".") or "_"
        seen[safe.lower()] = seen.get(safe.lower(), 0) + 1
        made.append(safe if seen[safe.lower()] == 1 else f"{safe}~{seen[safe.lower()]}")
    return made
