"""Results of runs: scores, spending, models."""

from __future__ import annotations

import inspect
import math
from dataclasses import asdict, dataclass, field
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from .._json import finite
from ..data.new_rows import Rows
from ..data.preparation import Preparation
from ..errors import Problem, as_path, nearest, plain_methods, shown
from ..measures.measured import Measured
from ..privacy.accountant import shown_spent
from ..protocol.method import Method
from ..protocol.settings import settings_of
from ..tasks.task import Task
from . import result_frames
from .frames import counted, html_page, text_table
from .gains import gains_of
from .saved_models import personal_model, save_model
from .summaries import leading, measure_lines, summarise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from .study import Study
    from .trained import Trained

WHAT = {"simulation": "simulation", "metered": "metered run"}
SCORED = {
    kind: f"These are scores of a {what}, without noise. Statements do not cover test examples, and choosing"
    " a setting by these scores is tuning, which is not accounted for here."
    for kind, what in WHAT.items()
}

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
    same rounds, `losses` the mean losses on its training examples, in a run without privacy. `measures` are
    all measures of the models at the end. `constant` is what constant predictions score at best, one for each
    silo, and `no_better` are the silos whose models score no better than theirs. `learned` is what the server
    knows about each silo at the end, such as its cluster or its lam, from what silos released.
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
    measures: dict[str, Measured] = field(default_factory=dict)
    constant: float = math.nan
    no_better: tuple[str, ...] = ()
    learned: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name: the method and its settings."""
        return label_of(self.method, self.settings)


def label_of(method: str, settings: dict[str, Any]) -> str:
    """Return a short name, such as `mr-mtl lam=1`."""
    shown = (f"{k}={v:.12g}" if isinstance(v, int | float) else f"{k}={v}" for k, v in settings.items())
    return " ".join((method, *shown))


class Views(Protocol):
    """What draws results and saves them."""

    def figure(self, result: Result) -> Figure:
        """Draw a result."""
        ...

    def silos(self, result: Result) -> Figure:
        """Draw the silos of a result."""
        ...

    def save(self, result: Result, folder: str | Path) -> None:
        """Save a result in a folder."""
        ...


@plain_methods
@dataclass(repr=False, eq=False)
class Result:
    """Runs, with the personal vectors of each: `vectors[run]` is `[silos, P]`.

    `relations[run]` is Omega `[silos, silos]`, of methods that learn how silos are related.
    `trained[run]` is what is known of the experiment whose runs begin with that one, and `study` what was
    asked for; both hold no examples. `views` draws and saves. `preparation` is how raw rows become examples:
    where features were standardized, it holds the mean and deviation of every silo's own examples, so such a
    result is not to be shared.
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
        return summarise(self.runs)

    @property
    def kind(self) -> str:
        """Whether these runs were "metered", or are a "simulation" whose noise its operator knows."""
        charged = self.study is not None and self.study.ledger is not None
        return "metered" if charged or any(each.metered for each in self.trained.values()) else "simulation"

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
        summary = self.summary
        more = [name for name in (summary[0]["measures"] if summary else ()) if name != self.task.metric]
        rows = [["method", "mean", "std", *more, "seeds", "epsilon at most"]]
        for row in summary:
            std = f"{row['std']:.4f}" if row["seeds"] > 1 else "-"
            label = label_of(row["method"], row["settings"])
            means = [f"{row['measures'][name]['mean']:.4f}" for name in more]
            seeds, spent = str(row["seeds"]), shown_spent(row["epsilon"])
            rows.append([label, f"{row['mean']:.4f}", std, *means, seeds, spent])
        return rows

    def _remarks(self) -> list[str]:
        remarks = [UNACCOUNTED] if self.tuning is None and len(self.summary) > 1 else []
        if self.tuning is not None and self.tuning.get("chosen") is not None:
            chosen = self.runs[self.tuning["chosen"]].label
            remarks = [f"Chosen from {counted(self.tuning['ran'], 'trial')}: {chosen}"]
        return [*remarks, *measure_lines(self), *(f"note: {note}" for note in self.notes)]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each run and silo: its test score, and what it spent with which noise."""
        return result_frames.scores(self)

    def history(self) -> pd.DataFrame:
        """Return a row for each run, silo and round: its score and, without privacy, its training loss."""
        return result_frames.history(self)

    def measures(self) -> pd.DataFrame:
        """Return a row for each run, measure and silo, and for all silos ("all"): the value and its interval.

        The interval is about the test rows; its level is 95 %. A value is NaN where it is undefined.
        """
        return result_frames.measures(self)

    def gains(self, measure: str | None = None) -> pd.DataFrame:
        """Return each silo's gain over training alone (`local` in the same runs), largest first.

        The gain is in the leading measure unless another is named: a mean over seeds, positive if better.
        """
        return result_frames.gains(self, measure)

    def learned(self) -> pd.DataFrame:
        """Return a row for each run and silo with what the server learned of it: its cluster, or its lam."""
        return result_frames.learned(self)

    def plot(self) -> Figure:
        """Return a matplotlib figure with scores by method and silo, and scores over rounds."""
        if self.views is None:
            raise Problem("this result cannot be drawn, because it does not come from run or sweep")
        return self.views.figure(self)

    def plot_silos(self) -> Figure:
        """Return a matplotlib figure with each silo's gain over training alone, its cluster and its lam."""
        if self.views is None:
            raise Problem("this result cannot be drawn, because it does not come from run or sweep")
        return self.views.silos(self)

    def save(self, folder: str | Path) -> None:
        """Write the folder that `coterie run` writes: result, plot, statements, models, configuration."""
        if self.views is None:
            raise Problem("this result cannot be saved, because it does not come from run or sweep")
        self.views.save(self, as_path("folder", folder))

    def state(self) -> None:
        """Create the statements of all saved runs that do not have one yet."""
        for first, trained in self.trained.items():
            if any(run not in trained.statements for _, run in trained.stated_runs()):
                self.trained[first] = trained.stated()
            self.published |= self.trained[first].published()

    def statement(
        self, silo: str, run: int | None = None, *, method: Any = None, seed: int | None = None
    ) -> dict[str, Any]:
        """Return the privacy statement of one silo in one run, as its file has it.

        The run is named by its method or by its number (see `find_run`).
        """
        place, run = self._place(silo), self.find_run(run, method, seed)
        first = max((first for first in self.trained if first <= run), default=None)
        if first is None:
            raise Problem(
                f"there is no statement of run {run}, because this result does not come from run or sweep"
            )
        return self.trained[first].statement(run - first, place)

    def find_run(self, run: int | None = None, method: Any = None, seed: int | None = None) -> int:
        """Return the number of a run, from 0; raise `Problem` if it is not clear which one is meant.

        `method` is a name ("ditto"), the label of a row ("ditto lam=0.2") or the method itself. Where they
        are not given, the run is the first seed of the only method and setting, or the choice of a sweep.
        """
        number: Any = run
        count = len(self.runs)
        if number is not None:
            if method is not None or seed is not None:
                raise Problem("run: it says the method and the seed already; give the one or the others")
            if isinstance(number, bool) or not isinstance(number, Integral) or not 0 <= int(number) < count:
                raise Problem(f"there is no run {shown(number)}; there are {count}, from 0")
            return int(number)
        if method is None and seed is None and self.tuning is not None:
            chosen = self.tuning.get("chosen")
            if chosen is not None:
                return int(chosen)
        names = _names_of(method)
        fits = [n for n, each in enumerate(self.runs) if not names or names & {each.label, each.method}]
        labels = list(dict.fromkeys(self.runs[n].label for n in fits))
        known = list(dict.fromkeys(each.label for each in self.runs))
        if not fits:
            raise Problem(f"there is no run of '{min(names)}'; {nearest(min(names), known)}")
        if len(labels) > 1:
            raise Problem(f"which method? give one of them as method=: {', '.join(map(repr, labels))}")
        if seed is None:
            return fits[0]
        seeds = {self.runs[n].seed: n for n in fits}
        if seed not in seeds:
            raise Problem(f"there is no run of '{labels[0]}' with seed {shown(seed)}; known: {sorted(seeds)}")
        return seeds[seed]

    def _place(self, silo: str) -> int:
        """Return the place of a silo."""
        if str(silo) not in self.names:
            raise Problem(f"there is no silo '{silo}'; {nearest(silo, self.names)}")
        return self.names.index(str(silo))

    @property
    def leading(self) -> str:
        """The measure by which methods are compared: the first of the metrics."""
        return leading(self.runs, self.task.metric)

    def best(self) -> dict[str, Any]:
        """Return the summary's row with the best mean of the leading measure (choosing by it is tuning)."""

        def place(row: dict[str, Any]) -> tuple[bool, float]:
            score = {"mean": row["mean"], "higher_is_better": self.task.higher_is_better}
            led = score if self.leading == self.task.metric else row["measures"][self.leading]
            return not math.isnan(led["mean"]), led["mean"] if led["higher_is_better"] else -led["mean"]

        return max(self.summary, key=place)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the models as plain data; an infinite epsilon (no privacy) becomes null."""
        content: dict[str, Any] = finite(
            {
                "kind": self.kind,
                "scores": SCORED[self.kind],
                "metric": self.task.metric,
                "higher_is_better": self.task.higher_is_better,
                "tuning": self.tuning or (UNACCOUNTED if len(self.summary) > 1 else None),
                "notes": self.notes,
                "remarks": measure_lines(self),
                "leading": self.leading,
                "gains": {gains.label: gains.facts() for gains in gains_of(self)},
                "summary": self.summary,
                "runs": [asdict(run) for run in self.runs],
                "published": self.published,
            }
        )
        return content

    def vector(
        self, silo: str, run: int | None = None, *, method: Any = None, seed: int | None = None
    ) -> Tensor:
        """Return one silo's personal model as a vector of its trained parameters (run: see `find_run`)."""
        place, run = self._place(silo), self.find_run(run, method, seed)
        if run not in self.vectors:
            raise Problem(
                f"the model of run {run} is not kept, because it finished before this run was resumed"
            )
        return self.vectors[run][place]

    def model(
        self, silo: str, run: int | None = None, *, method: Any = None, seed: int | None = None
    ) -> nn.Module:
        """Return one silo's personal model as a plain torch module (run: see `find_run`).

        It takes prepared examples as a tensor `[examples, ...]`: those of the federation, or what `prepare`
        makes of raw rows.
        """
        return self.task.to_module(self.vector(silo, run, method=method, seed=seed))

    def prepare(self, silo: str, rows: Rows) -> Tensor:
        """Return raw rows as the tensor that one silo's module takes (see `Preparation.inputs`)."""
        self._place(silo)
        if self.preparation is None:
            raise Problem("this federation was made of tensors: only you know how raw rows became examples")
        return self.preparation.inputs(rows, silo)

    def predict(
        self, silo: str, rows: Rows, run: int | None = None, *, method: Any = None, seed: int | None = None
    ) -> pd.DataFrame:
        """Return what one silo's personal model predicts for raw rows (see `PersonalModel.predict`).

        The run is named by its method or by its number (see `find_run`).
        """
        run = self.find_run(run, method, seed)
        vector, label = self.vector(silo, run), self.runs[run].label
        return personal_model(self.task, vector, self.preparation, str(silo), label).predict(rows)

    def save_model(
        self,
        silo: str,
        path: str | Path,
        run: int | None = None,
        *,
        method: Any = None,
        seed: int | None = None,
    ) -> None:
        """Save one silo's personal model, whole; `load_model` reads it (run: see `find_run`)."""
        run = self.find_run(run, method, seed)
        vector, label = self.vector(silo, run), self.runs[run].label
        first = max((first for first in self.trained if first <= run), default=None)
        raw = first is not None and self.trained[first].is_raw(run - first, self._place(silo))
        save_model(as_path("path", path), self.task, vector, self.preparation, str(silo), label, raw)


def _names_of(method: Any) -> set[str]:
    """Return the labels and names that a method is known by in results; none if it is not given."""
    if method is None:
        return set()
    if isinstance(method, Method):
        settings = {name: getattr(method, name) for name in settings_of(method)}
        return {label_of(method.title, settings)}
    if inspect.isclass(method) and issubclass(method, Method):
        return {method.name}
    if not isinstance(method, str):
        raise Problem(f"method: expected the name of a method, got {shown(method)}")
    return {method}
