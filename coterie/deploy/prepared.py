"""A training that a guard can do work for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ..cohort.dp_sgd import Cohort
from ..cohort.examples import stack
from ..engines.network import SiloSide
from ..engines.simulation import steps_of
from ..engines.start import SeededStart
from ..experiment.experiment import Experiment
from ..experiment.statements import Issue
from ..planning.plan import Plan
from .plan_file import PlanFile


@dataclass(frozen=True, eq=False)
class Prepared:
    """A training that a guard can do work for: its plan, its experiment, and its half of the engine."""

    file: PlanFile
    experiment: Experiment
    plan: Plan
    place: int

    @property
    def issue(self) -> Issue:
        """How the silo's statement is issued."""
        model = self.file.content["config"].get("model", {}).get("name", "linear")
        return Issue(configuration=self.file.hash, model=model, run=self.file.training)

    @cached_property
    def side(self) -> SiloSide:
        """The silo's half of the engine."""
        experiment, k, name = self.experiment, self.place, self.file.names[self.place]
        settings = experiment.settings(self.plan)
        own = settings.pick([k])
        own_data = experiment.federation.pick([name])
        examples = stack(own_data, "train", experiment.training.device, experiment.rows_each)
        cohort = Cohort(experiment.task, examples, (experiment.work[k],), own, experiment.training.memory)
        rounds = experiment.training.rounds
        roster = replace(experiment.roster, steps=steps_of(experiment.work, settings), rounds=rounds)
        start = SeededStart(experiment.task, [experiment.keys[0][0]], roster, rounds)
        return SiloSide(experiment.running, cohort, self.plan, k, start)
