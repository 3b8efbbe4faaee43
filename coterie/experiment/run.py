"""Plan and train the methods of a study: with ledgers all of them, or none if they cannot pay for all.

`Study` is what is asked for, `StudyPlan` what it would do and spend, `Result` what came out. A `Store` keeps
a training in a folder, so that it can be interrupted and resumed; a `Listener` hears how far it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from ..errors import Problem
from ..guard.checkpoint import key_of
from ..guard.claims import certify, claims_of
from ..guard.interrupts import InterruptAfterRound, InterruptsHeld
from ..guard.meter import Meter, make_meter
from ..guard.session import Pace, Session
from ..planning.plan import Plan
from ..privacy.accountant import shown_spent
from ..privacy.ledger.custody import Custody
from ..privacy.ledger.filters import Spent
from ..privacy.statement.build import statement_cache
from .config.schema import Config
from .estimate import seconds
from .experiment import Experiment
from .frames import Row, counted, html_page, make_frame, text_table
from .result import Result, RunRecord, file_names
from .statements import published_facts, statement_of

if TYPE_CHECKING:
    import pandas as pd

FACTS = ("rate", "steps", "noise", "epsilon", "delta", "bytes_up", "bytes_down")
Statements = dict[int, list[dict[str, Any]]]


@dataclass(frozen=True, eq=False)
class Study:
    """What is asked for: checked experiments on one federation, and their description.

    `config` describes them as a configuration file would. `fingerprint` stands for what no file can
    describe, such as examples in memory.
    """

    config: Config
    experiments: tuple[Experiment, ...]
    fingerprint: str = ""

    def __repr__(self) -> str:
        labels = ", ".join(label for experiment in self.experiments for label in experiment.labels)
        return f"Study({self.experiments[0].federation!r}: {labels})"

    @property
    def notes(self) -> list[str]:
        """What a person should know before anything is planned, each note once."""
        return list(dict.fromkeys(note for experiment in self.experiments for note in experiment.notes))

    @property
    def ledger(self) -> Path | None:
        """The folder of the ledgers, if the study is metered."""
        return None if self.config.privacy.ledger is None else Path(self.config.privacy.ledger)

    @property
    def alone(self) -> bool:
        """Whether the study is a single run."""
        return sum(len(experiment.keys) for experiment in self.experiments) == 1

    @cached_property
    def text(self) -> str:
        """The description, by which a folder recognises the study."""
        return self.config.to_toml()

    @property
    def custody(self) -> Custody:
        """Which keys sign the ledgers, and which witness keeps their heads."""
        return Custody.of(self.config.privacy.keys, self.config.privacy.witness)

    def with_ledger(
        self, folder: str | Path | None, keys: str | Path | None = None, witness: str | Path | None = None
    ) -> Study:
        """Return the study metered by the ledgers of a folder, with these keys and this witness."""
        given = {"ledger": folder, "keys": keys, "witness": witness}
        changed = {key: str(value) for key, value in given.items() if value is not None}
        if not changed:
            return self
        privacy = self.config.privacy.model_copy(update=changed)
        return replace(self, config=self.config.model_copy(update={"privacy": privacy}))

    def without_examples(self) -> Study:
        """Return what can be described and stated, but not trained again."""
        return replace(self, experiments=tuple(map(without_examples, self.experiments)))

    def key(self, parts: Sequence[Any]) -> str:
        """Return the key of a checkpoint: a training resumes only if it is equal."""
        beside = (self.fingerprint, self.experiments[0].task.frozen_digest)
        return key_of([self.text, *parts, *(text for text in beside if text)])


@dataclass(frozen=True, eq=False)
class StudyPlan:
    """What every silo will do and spend in each run of a study; nothing is trained."""

    study: Study
    plans: tuple[Plan, ...]

    @property
    def notes(self) -> list[str]:
        """What a person should know before training."""
        notes = [*self.study.notes, *(note for plan in self.plans for note in plan.notes)]
        tuning = self.study.config.tuning
        if tuning is not None and tuning.trials != "all":
            notes.append("[tuning]: this is the plan of single runs; a sweep needs more noise")
        return list(dict.fromkeys(notes))

    @cached_property
    def seconds(self) -> tuple[float, ...]:
        """Estimates of how long each experiment takes on this machine, from steps on made-up examples."""
        return tuple(seconds(experiment, plan) for experiment, plan in self.pairs())

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each run and silo: what it does, with which noise, what it spends and sends."""
        rows: list[Row] = []
        for experiment, plan in self.pairs():
            first = len({row.run for row in rows})
            for run, (seed, number) in enumerate(experiment.keys):
                settings = experiment.variants[number].shown
                for silo in plan.silos[run]:
                    facts = {key: getattr(silo, key) for key in FACTS}
                    facts |= {"silo": silo.name, "examples": silo.work.size, "budget": silo.limit}
                    rows.append(Row(first + run, experiment.method.title, settings, seed, facts))
        return make_frame(rows, ["silo", "examples", "budget", *FACTS])

    def __repr__(self) -> str:
        return "\n  ".join([self._title(), *text_table(self._shown()), *(f"note: {n}" for n in self.notes)])

    def _repr_html_(self) -> str:
        """Return the plan as a table, for notebooks."""
        return html_page(self._title(), self._shown(), self.notes)

    def _title(self) -> str:
        first = self.study.experiments[0]
        runs = sum(len(experiment.keys) for experiment in self.study.experiments)
        size = f"{counted(len(first.federation), 'silo')}, {counted(runs, 'run')}"
        return f"Plan: {size} of {counted(first.training.rounds, 'round')}; nothing is trained yet"

    def _shown(self) -> list[list[str]]:
        """Return rows of text, one for each method and setting, over all silos of its first seed."""
        rows = [["method", "steps per silo", "noise", "epsilon at most", "bytes up", "bytes down"]]
        for experiment, plan in self.pairs():
            shown: set[int] = set()
            for run, (_, number) in enumerate(experiment.keys):
                if number in shown:
                    continue
                shown.add(number)
                silos = plan.silos[run]
                steps = between(sorted({silo.steps for silo in silos}), "{:d}")
                noise = between(sorted({silo.noise for silo in silos}), "{:.3f}")
                spent = shown_spent(max(silo.epsilon for silo in silos))
                up, down = (sum(getattr(silo, key) for silo in silos) for key in ("bytes_up", "bytes_down"))
                rows.append([experiment.labels[number], steps, noise, spent, f"{up:,}", f"{down:,}"])
        return rows

    def pairs(self) -> Iterator[tuple[Experiment, Plan]]:
        """Return each experiment with its plan."""
        return zip(self.study.experiments, self.plans, strict=True)


def between(values: Sequence[float], form: str) -> str:
    """Return the smallest and the largest of sorted numbers as text; one number where they look the same."""
    low, high = form.format(values[0]), form.format(values[-1])
    return low if low == high else f"{low} to {high}"


def _ignore(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Listener:
    """What a caller hears while a study is planned and trained; each function may be left out.

    `on_note(text)`: something to know before training. `on_planning(method, done, total)`: noise was found
    for `done` of `total` silos (0 of 0 where it begins), then `on_planned(method)`. `on_round(experiment,
    number, score)`: a round is done; the score is None in most rounds. `on_stopping()`: Ctrl-C was pressed,
    and the round is finished first.
    """

    on_note: Callable[[str], None] = _ignore
    on_planning: Callable[[str, int, int], None] = _ignore
    on_planned: Callable[[str], None] = _ignore
    on_round: Callable[[Experiment, int, float | None], None] = _ignore
    on_stopping: Callable[[], None] = _ignore


@dataclass(frozen=True, eq=False)
class Trained:
    """What is kept of a trained experiment: its settings and its plan, but no examples.

    `statements[run]` are those of all silos, made when it was trained; of a metered training there are no
    others, since ledgers change.
    """

    experiment: Experiment
    plan: Plan
    metered: bool = False
    statements: Statements = field(default_factory=dict)

    chosen: int | None = None

    def saved(self) -> list[tuple[str, int]]:
        """Return the runs whose statements and models are saved, each after the name of its folder.

        Of a sweep that is the chosen trial, else the first seed of each variant.
        """
        names = file_names(self.experiment.labels)
        if self.chosen is not None:
            return [(names[self.experiment.keys[self.chosen][1]], self.chosen)]
        seeds = len(self.experiment.training.seeds)
        return [(name, number * seeds) for number, name in enumerate(names)]

    def statement(self, run: int, k: int) -> dict[str, Any]:
        """Return the statement of silo k in one run."""
        if run in self.statements:
            return self.statements[run][k]
        if self.metered or self.chosen is not None:
            raise Problem(
                f"there is no statement of run {run}: of a metered training the first seed of each setting is"
                " stated, and of a sweep the chosen trial"
            )
        return statement_of(self.experiment, self.plan, run, k)

    def stated(self, meter: Meter | None = None) -> Trained:
        """Return the same with the statements of the first run of each variant."""
        cache = statement_cache()
        silos = range(len(self.plan.silos[0]))
        statements = {
            run: self.statements.get(run)
            or [statement_of(self.experiment, self.plan, run, k, meter, cache) for k in silos]
            for _, run in self.saved()
        }
        cache.save()
        return replace(self, metered=self.metered or meter is not None, statements=statements)

    def published(self) -> dict[str, dict[str, Any]]:
        """Return what papers would report for each variant and silo, as far as it was stated."""
        labels, keys = self.experiment.labels, self.experiment.keys
        return {
            labels[keys[run][1]]: {content["silo"]: published_facts(content) for content in contents}
            for run, contents in self.statements.items()
        }


class Store(Protocol):
    """Where a training is kept: a folder with its result, statements, models and checkpoints."""

    @property
    def path(self) -> Path:
        """The folder."""
        ...

    def open(self, study: Study) -> list[RunRecord]:
        """Make the folder, or find a study in it that was interrupted; return its finished runs."""
        ...

    def has(self, experiment: Experiment, plan: Plan, runs: list[RunRecord], metered: bool) -> bool:
        """Whether an experiment is finished in the folder."""
        ...

    def read(self, trained: Trained) -> tuple[Trained, dict[int, Tensor]]:
        """Return a finished experiment with its statements, and the models `[silos, P]` of runs."""
        ...

    def save_experiment(self, trained: Trained, result: Result) -> None:
        """Write the statements and models of the first run of each variant."""
        ...

    def save_run(
        self, experiment: Experiment, label: str, statements: list[dict[str, Any]], vectors: Tensor
    ) -> None:
        """Write the statement and the model of every silo of a run."""
        ...

    def save(self, result: Result, complete: bool) -> None:
        """Write the result as a whole."""
        ...

    def discard(self) -> None:
        """Remove a folder in which nothing was trained yet."""
        ...


class Stopped(KeyboardInterrupt):
    """Ctrl-C ended a training whose folder can be resumed."""

    def __init__(self, folder: Path, finished: Sequence[str]) -> None:
        done = ", ".join(finished) or "nothing yet"
        super().__init__(f"stopped; finished and saved in '{folder}': {done}; run it again to resume")
        self.folder, self.finished = folder, tuple(finished)


def plan_study(study: Study, listener: Listener | None = None) -> StudyPlan:
    """Plan every experiment; report all that cannot be planned in one error."""
    listener = listener or Listener()
    plans: list[Plan] = []
    problems: list[Problem] = []
    several = len(study.experiments) > 1
    for experiment in study.experiments:
        name = experiment.method.name

        def hear(done: int, total: int, name: str = name) -> None:
            listener.on_planning(name, done, total)

        listener.on_planning(name, 0, 0)
        try:
            plans.append(experiment.plan(hear))
        except Problem as problem:
            problems.append(type(problem)(f"{experiment.labels[0]}: {problem}") if several else problem)
        listener.on_planned(name)
    if len(problems) > 1:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise Problem(f"{len(problems)} of {len(study.experiments)} methods cannot run:{lines}")
    if problems:
        raise problems[0]
    return StudyPlan(study, tuple(plans))


def train_study(
    study: Study,
    plan: StudyPlan | None = None,
    listener: Listener | None = None,
    store: Store | None = None,
) -> Result:
    """Plan a study unless it has a plan, and train it; with a store, save each method as it ends.

    With ledgers nothing is trained unless they pay for all methods. A single run whose silos have no ledgers
    yet makes them, each with the budget of the run.
    """
    listener = listener or Listener()
    experiments = study.experiments
    public = study.without_examples()
    result = Result(experiments[0].task, experiments[0].federation.names, notes=study.notes, study=public)
    for note in study.notes:
        listener.on_note(note)
    finished = [] if store is None else store.open(study)
    meters: list[Meter | None] = []
    pace = Pace()
    try:
        planned = plan or plan_study(study, listener)
        plans = planned.plans
        for note in planned.notes:
            if note not in result.notes:
                result.notes.append(note)
                listener.on_note(note)
        meters = meters_for(study, plans[0] if study.alone else None)
        places = [None if store is None else store.path / f".checkpoint-{n}" for n in range(len(plans))]
        done = [
            store is not None and store.has(experiment, own, finished, meter is not None)
            for experiment, own, meter in zip(experiments, plans, meters, strict=True)
        ]
        begun = [
            is_done or (at is not None and at.exists()) for is_done, at in zip(done, places, strict=True)
        ]
        _check_together(experiments, plans, meters, begun)
        for number, (experiment, own, meter) in enumerate(zip(experiments, plans, meters, strict=True)):
            trained = Trained(public.experiments[number], own, meter is not None)
            if store is not None and done[number]:
                runs = [run for run in finished if run.label in experiment.labels]
                result.add(_read_back(store, trained, runs, result))
                continue
            session = Session(
                places[number],
                study.key([number, experiment.labels]),
                meter,
                study.config.train.checkpoint,
                partial=study.alone,
                pace=pace,
            )
            new = train_one(experiment, own, session, listener, resumable=store is not None)
            with InterruptsHeld():
                if store is not None or meter is not None:
                    trained = trained.stated(meter)
                new.trained, new.published = {0: trained}, trained.published()
                if store is not None:
                    store.save_experiment(trained, new)
                result.add(new)
                if store is not None:
                    store.save(result, complete=False)
                session.finish()
        if store is not None:
            with InterruptsHeld():
                store.save(result, complete=True)
    except Problem:
        if store is not None:
            store.discard()
        raise
    except KeyboardInterrupt:
        if store is None:
            raise
        raise Stopped(store.path, list(dict.fromkeys(run.label for run in result.runs))) from None
    finally:
        if meters and meters[0] is not None:
            meters[0].close()
    return result


def without_examples(experiment: Experiment) -> Experiment:
    """Return an experiment that can be stated and saved, but not trained again."""
    return replace(experiment, federation=experiment.federation.without_examples())


def train_one(
    experiment: Experiment, plan: Plan, session: Session, listener: Listener, resumable: bool
) -> Result:
    """Train one experiment; where it can be resumed, Ctrl-C lets the round end first."""

    def hear(number: int, score: float | None) -> None:
        listener.on_round(experiment, number, score)

    with contextlib.ExitStack() as held:
        if resumable:
            stopping = held.enter_context(InterruptAfterRound(listener.on_stopping))
            session = replace(session, stopping=stopping)
        return experiment.train(plan, hear, session)


def _read_back(store: Store, trained: Trained, runs: list[RunRecord], whole: Result) -> Result:
    """Return the result of an experiment that was finished before."""
    trained, vectors = store.read(trained)
    before = Result(whole.task, whole.names, runs, vectors, published=trained.published())
    before.trained, before.preparation = {0: trained}, trained.experiment.federation.preparation
    return before


def meters_for(study: Study, alone: Plan | None) -> list[Meter | None]:
    """Open the ledgers that a study asks for; new ones get the budgets of a run that is `alone`."""
    if study.ledger is None:
        return [None] * len(study.experiments)
    for experiment in study.experiments:
        experiment.check_metered()
    federation, privacy = study.experiments[0].federation, study.config.privacy
    budgets: Sequence[tuple[float, float] | None] = [None] * len(federation)
    if alone is not None:
        most = max(silo.budget for silo in alone.silos[0])
        given = privacy.noise is not None  # then a budget is what a silo spends, by how often it comes
        budgets = [(most if given else silo.budget, silo.delta) for silo in alone.silos[0]]
    first = make_meter(study.ledger, federation, budgets, privacy.unit, study.custody)
    return [first.another() for _ in study.experiments]


def _check_together(
    experiments: Sequence[Experiment],
    plans: Sequence[Plan],
    meters: Sequence[Meter | None],
    begun: Sequence[bool],
) -> None:
    """Refuse before anything is trained if the ledgers do not pay for all that is still to be trained."""
    waiting = [(e, plan) for e, plan, is_begun in zip(experiments, plans, begun, strict=True) if not is_begun]
    if meters[0] is None or len(waiting) < 2:
        return
    asked = [
        [claim for experiment, plan in waiting for claim in claims_of(experiment.method.title, plan, k)]
        for k in range(len(meters[0].ledgers))
    ]
    certify(claim for claims in asked for claim in claims)
    for k, (ledger, claims) in enumerate(zip(meters[0].ledgers, asked, strict=True)):
        try:
            ledger.check_all(claims)
        except Spent as problem:
            raise meters[0].refusal(k, problem, len(claims)) from None
