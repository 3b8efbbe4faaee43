"""What is kept of a trained experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import Problem
from ..guard.meter import Meter
from ..planning.plan import Plan
from ..privacy.statement.build import statement_cache
from .experiment import Experiment
from .file_names import file_names
from .statements import Issue, published_facts, statement_of

Statements = dict[int, list[dict[str, Any]]]


@dataclass(frozen=True, eq=False)
class Trained:
    """What is kept of a trained experiment: its settings and its plan, but no examples.

    `statements[run]` are those of all silos, made when it was trained; of a metered training there are no
    others, since ledgers change. `folders` are the names under which each variant is saved, which no other
    variant of the study has.
    """

    experiment: Experiment
    plan: Plan
    metered: bool = False
    statements: Statements = field(default_factory=dict)

    chosen: int | None = None
    folders: tuple[str, ...] = ()
    issue: Issue = field(default_factory=Issue)

    def saved(self) -> list[tuple[str, int]]:
        """Return the runs whose statements and models are saved, each after the name of its folder.

        Of a sweep that is the chosen trial, else the first seed of each variant.
        """
        names = self.folders or file_names(self.experiment.labels)
        if self.chosen is not None:
            return [(names[self.experiment.keys[self.chosen][1]], self.chosen)]
        seeds = len(self.experiment.training.seeds)
        return [(name, number * seeds) for number, name in enumerate(names)]

    def is_raw(self, run: int, k: int) -> bool:
        """Return whether no privacy protects the personal model of silo k in one run."""
        return self.plan.counts.raw_personal or math.isinf(self.plan.silos[run][k].epsilon)

    def stated_runs(self) -> list[tuple[str, int]]:
        """Return the runs that have statements, each after the folder of its statements.

        Those are the saved ones and, if the training was metered, all others: each spends of a budget.
        """
        saved = self.saved()
        if not self.metered or self.chosen is not None:
            return saved
        names, first = self.folders or file_names(self.experiment.labels), {run for _, run in saved}
        others = [
            (f"{names[variant]}/seed-{seed}", run)
            for run, (seed, variant) in enumerate(self.experiment.keys)
            if run not in first
        ]
        return [*saved, *others]

    def statement(self, run: int, k: int) -> dict[str, Any]:
        """Return the statement of silo k in one run."""
        if run in self.statements:
            return self.statements[run][k]
        if self.metered or self.chosen is not None:
            raise Problem(f"there is no statement of run {run}: a sweep states its chosen trial")
        return statement_of(self.experiment, self.plan, run, k, issue=self.issue)

    def stated(self, meter: Meter | None = None) -> Trained:
        """Return the same with the statements of all runs that have one."""
        cache, silos = statement_cache(), range(len(self.plan.silos[0]))
        about = (self.experiment, self.plan)
        statements = {
            run: self.statements.get(run)
            or [statement_of(*about, run, k, meter, cache, self.issue) for k in silos]
            for _, run in self.stated_runs()
        }
        cache.save()
        return replace(self, statements=statements)

    def published(self) -> dict[str, dict[str, Any]]:
        """Return what papers would report for each variant and silo, as far as it was stated."""
        labels, keys = self.experiment.labels, self.experiment.keys
        return {
            labels[keys[run][1]]: {content["silo"]: published_facts(content) for content in contents}
            for run, contents in self.statements.items()
            if run in {saved for _, saved in self.saved()}
        }
