"""What is asked for, and what it would do and spend: `Study` and `StudyPlan`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Problem, plain_methods
from ..guard.checkpoint import key_of
from ..guard.coverage import Coverage, early_leavers, refusal_of
from ..planning.plan import Plan
from ..privacy.accountant import shown_spent
from ..privacy.ledger.custody import Custody
from .config.schema import Config
from .estimate import seconds
from .experiment import Experiment
from .file_names import file_names
from .frames import Row, counted, html_page, make_frame, text_table
from .listener import Listener

if TYPE_CHECKING:
    import pandas as pd

FACTS = ("rate", "steps", "noise", "epsilon", "delta", "bytes_up", "bytes_down")


@dataclass(frozen=True, eq=False)
class Study:
    """What is asked for: checked experiments on one federation, and their description.

    `config` describes them as a configuration file would.
    """

    config: Config
    experiments: tuple[Experiment, ...]

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
        changed = {key: str(Path(value).absolute()) for key, value in given.items() if value is not None}
        if not changed:
            return self
        privacy = self.config.privacy.model_copy(update=changed)
        return replace(self, config=self.config.model_copy(update={"privacy": privacy}))

    def without_examples(self) -> Study:
        """Return what can be described and stated, but not trained again."""
        return replace(self, experiments=tuple(map(without_examples, self.experiments)))

    @cached_property
    def folders(self) -> list[tuple[str, ...]]:
        """The name of each variant's folder, for each experiment; no two of the study are the same."""
        names = iter(file_names([label for experiment in self.experiments for label in experiment.labels]))
        return [tuple(itertools.islice(names, len(each.labels))) for each in self.experiments]

    def key(self, parts: Sequence[Any], examples: str = "") -> str:
        """Return the key of a checkpoint: a training resumes only if it is equal.

        `examples` is a digest of what the training works on.
        """
        beside = (examples, self.experiments[0].task.frozen_digest)
        return key_of([self.text, *parts, *(text for text in beside if text)])


@plain_methods
@dataclass(frozen=True, eq=False)
class StudyPlan:
    """What every silo will do and spend in each run of a study; nothing is trained.

    `coverage` says, for a study with ledgers, what each silo's ledger had left when it was planned.
    """

    study: Study
    plans: tuple[Plan, ...]
    coverage: tuple[Coverage, ...] = ()

    @property
    def refusal(self) -> str | None:
        """Why the ledgers would refuse this training, with all silos; None if it would begin."""
        return None if not self.coverage else refusal_of(self.coverage, self.study.alone)

    def __getstate__(self) -> Any:
        raise Problem(
            "a plan cannot be pickled or copied, because it holds the silos' examples: keep what to_frame()"
            " returns, and plan again from the data"
        )

    @property
    def notes(self) -> list[str]:
        """What a person should know before training."""
        notes = [*self.study.notes, *(note for plan in self.plans for note in plan.notes)]
        tuning = self.study.config.tuning
        if tuning is not None and tuning.trials != "all":
            notes.append("[tuning]: this is the plan of single runs; a sweep needs more noise")
            if self.study.ledger is not None:
                notes.append("[tuning]: whether the ledgers cover a sweep is checked when it begins")
        if self.coverage and (why := self.refusal or early_leavers(self.coverage)):
            notes.append(why)
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


def without_examples(experiment: Experiment) -> Experiment:
    """Return an experiment that can be stated and saved, but not trained again."""
    return replace(experiment, federation=experiment.federation.without_examples())
