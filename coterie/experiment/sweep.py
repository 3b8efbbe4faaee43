"""Tuning that is charged for: a random number of trials, of which a noised score chooses the best.

Each trial draws one of the configured settings. All trials use the same noise, calibrated so that the chosen
model keeps to each silo's budget against anyone who sees only that model. Against the server and the other
silos, which see every trial, the costs of all trials add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._seeds import seed_for
from ..cohort.examples import stack
from ..errors import Problem
from ..guard.checkpoint import digest_of
from ..guard.claims import claims_of
from ..guard.meter import Meter
from ..measures.catalogue import Metric
from ..noise.dice import KeyedGenerator
from ..planning.plan import Plan
from ..privacy.calibration import Target, noise_for
from ..privacy.events import Event
from ..privacy.ledger.claim import Claim
from ..privacy.trials import Trials, draw_trials
from ..privacy.tuning import noise_for_tuning, server_epsilon
from ..protocol.state import State
from ..protocol.streams import Dice
from .config.schema import Tuning
from .experiment import Experiment
from .trial_scores import trial_scores, tuned_metric

SHARE_FOR_SCORE = 0.1  # of epsilon, which the release of a score alone may spend
TRIALS_SEEN, CHOSEN_SEEN = ("server", "silos"), ("shared", "personal")


@dataclass(frozen=True)
class Sweep:
    """A sweep: how the number of trials is drawn, the settings drawn, and what scores release.

    `scores[k]` is the release of silo k's score, or None if the score is not protected. If `public`, only
    the scores of silos without privacy count.
    """

    trials: Trials
    drawn: tuple[int, ...]
    scores: tuple[Event | None, ...]
    public: bool = False

    def stages(self, plan: Plan, k: int) -> tuple[tuple[int, tuple[Event, ...]], ...]:
        """Return what one trial releases of silo k: its training and, in the last round, its score."""
        stages = claims_of("", plan, k)[0].stages
        more = self.scores[k]
        if more is None:
            return stages
        rounds, events = stages[-1]
        before = ((rounds - 1, events),) if rounds > 1 else ()
        return (*stages[:-1], *before, (1, (*events, more)))

    def best(self, label: str, plan: Plan, k: int) -> Claim:
        """Return the claim of the chosen trial on silo k, charged before the number of trials is drawn."""
        chosen = self._run(f"{label}, the best trial", plan, k, CHOSEN_SEEN)
        return _certified(replace(chosen, trials=self.trials))

    def asks(self, label: str, plan: Plan, k: int) -> list[Claim]:
        """Return the claim of all trials together on silo k."""
        ran = len(self.drawn)
        trial = self._run(f"{label}, {ran} trials", plan, k, TRIALS_SEEN)
        stages = tuple((rounds, tuple(_times(e, ran) for e in events)) for rounds, events in trial.stages)
        return [_certified(replace(trial, stages=stages))]

    def _run(self, label: str, plan: Plan, k: int, seen: tuple[str, ...]) -> Claim:
        return Claim(label, "example", plan.silos[0][k].delta, 0.0, self.stages(plan, k), seen)

    def facts(self, plan: Plan, k: int) -> dict[str, Any]:
        """Return what a statement says about tuning."""
        trial, how = self._run("", plan, k, CHOSEN_SEEN), self.trials
        return {
            "distribution": how.distribution,
            "mean": how.mean,
            "shape": how.shape,
            "most": how.most,
            "ran": len(self.drawn),
            "delta": trial.delta,
            "score": "public" if self.scores[k] is None else "noised and charged",
            "trial": [vars(event) for event in trial.events(0, trial.rounds)],
        }


def _certified(plan: Claim) -> Claim:
    return replace(plan, epsilon=plan.certified(0, plan.rounds))


def _times(event: Event, count: int) -> Event:
    return replace(event, count=event.count * count)


def trials_of(tuning: Tuning, settings: int) -> Trials:
    """Return the distribution of the number of trials; its mean defaults to the number of settings."""
    mean = float(settings) if tuning.mean is None else tuning.mean
    return Trials(tuning.trials, mean, tuning.shape, tuning.most)


def check_sweep(experiment: Experiment, tuning: Tuning, metered: bool) -> None:
    """Raise `Problem` for an experiment that a sweep cannot account for."""
    if len(experiment.training.seeds) > 1:
        raise Problem("train.seeds: a sweep draws its own trials; give one seed")
    if len({repr(variant.epsilon) for variant in experiment.variants}) > 1:
        raise Problem("privacy.epsilon: the budget cannot be tuned; give one value, not a list")
    if len(experiment.variants) < 2:
        raise Problem(
            "a sweep needs a list to choose from, such as train.lr = [0.1, 0.3] or a method's setting"
        )
    if experiment.privacy.unit != "example":
        raise Problem("privacy.unit: a sweep supports only the unit 'example'")
    if experiment.training.dropping is not None:
        raise Problem(
            "train.drop, train.uneven: in a sweep every silo must do all of its work in every round"
        )
    if experiment.training.participation is not None:
        raise Problem("train.participation: in a sweep every silo must take part in every round")
    if experiment.budgets != "own":
        raise Problem(f"budgets: a sweep supports only silos' own budgets, got '{experiment.budgets}'")
    public = torch.isinf(experiment.epsilon[0])
    if tuning.score == "public" and not public.any():
        raise Problem(
            "tuning.score: 'public' uses the scores of silos without privacy (epsilon inf), but there are"
            " none; use 'noised'"
        )
    tuned_metric(tuning.metric, experiment.task)
    if metered and tuning.most is None:
        raise Problem(
            "tuning.most: required in a metered sweep; the ledgers must be able to cover this many trials"
        )


def draw(trials: Trials, settings: int, generator: np.random.Generator | KeyedGenerator) -> tuple[int, ...]:
    """Return the setting of every trial, drawn at random."""
    count = draw_trials(trials, generator)
    return tuple(int(setting) for setting in generator.integers(0, settings, count))


def generator_of(seed: int, meter: Meter | None) -> np.random.Generator | KeyedGenerator:
    """Return the generator of a draw; in a metered sweep, keyed by secrets and the rows charged for it.

    Anyone who wants to draw again must charge new rows, and so pays again.
    """
    return (
        np.random.default_rng(seed_for(seed, "sweep")) if meter is None else KeyedGenerator(meter.entropy())
    )


def score_events(experiment: Experiment, tuning: Tuning) -> tuple[Event | None, ...]:
    """Return the release of each silo's score: a bounded sum with noise, which spends a tenth of epsilon."""
    events: list[Event | None] = []
    for epsilon, delta in zip(experiment.epsilon[0].tolist(), experiment.delta[0].tolist(), strict=True):
        if tuning.score == "public" or math.isinf(epsilon):
            events.append(None)
        else:
            noise = noise_for(Target(epsilon * SHARE_FOR_SCORE, delta, 1.0, 1)).noise
            events.append(Event("gaussian", noise))
    return tuple(events)


def tuned_plan(
    experiment: Experiment, sweep: Sweep, on_progress: Callable[[int, int], None] | None = None
) -> Plan:
    """Return the plan of the trials, each with the noise at which the chosen model keeps to the budget.

    The epsilon of the plan is what all trials spend together.
    """
    plan = experiment.plan()
    if any(silo.selections for silo in plan.silos[0]):
        raise Problem(f"'{experiment.method.name}' makes private choices, which a sweep does not support")
    solved: dict[Any, tuple[float, float]] = {}
    silos = []
    for k, silo in enumerate(plan.silos[0]):
        beside = tuple(event for event in (sweep.scores[k],) if event is not None)
        sums = silo.sums(1.0) if silo.steps else None
        key = silo.budget, silo.delta, sums, beside
        if key not in solved:
            solved[key] = 0.0, math.inf
            if math.isfinite(silo.budget) and sums is not None:
                asked = silo.budget, silo.delta, sums.rate, sums.count, sweep.trials, beside, sums.sampler
                noise = noise_for_tuning(*asked).noise
                events = (replace(sums, noise=noise), *beside)
                solved[key] = noise, server_epsilon(events, max(1, len(sweep.drawn)), silo.delta)
        noise, spent = solved[key]
        silos.append(replace(silo, noise=noise, epsilon=spent))
        if on_progress is not None:
            on_progress(k + 1, len(plan.silos[0]))
    return replace(plan, silos=(tuple(silos),) * len(plan.silos))


def check_affordable(sweep: Sweep, plan: Plan, meter: Meter, label: str) -> None:
    """Raise `Problem` if a ledger could not cover the largest number of trials.

    This happens before anyone knows the number of trials: a ledger that refused only large numbers would
    change their distribution.
    """
    largest = replace(sweep, drawn=(0,) * (sweep.trials.most or 1))
    for k, ledger in enumerate(meter.ledgers):
        state = ledger.state()
        for asked in (*largest.asks(label, plan, k), sweep.best(label, plan, k)):
            if state.filter.affordable(state, asked, partial=False) < asked.rounds:
                raise Problem(
                    f"silo '{meter.names[k]}': for {sweep.trials.most} trials (tuning.most):"
                    f" {state.refusal(asked)}"
                )


def noised_scores(
    experiment: Experiment, sweep: Sweep, vectors: Tensor, meter: Meter | None, metric: Metric | None = None
) -> list[float]:
    """Return the released score of every trial, noised in each silo (see `trial_scores`).

    Only silos that were charged for the last round release a score. A repetition after a crash returns the
    same numbers, because the noise is keyed by the models and what is told of them.
    """
    test, task = stack(experiment.federation, "test", experiment.training.device), experiment.task
    metric = metric or tuned_metric(None, task)
    moved = vectors.to(experiment.training.device)
    scores = trial_scores(metric, task, test, moved, experiment.training.memory)
    told, silos = scores.told, len(scores.sizes)
    digest = digest_of(State(0, vectors, None))
    rounds = experiment.training.rounds
    seeded = experiment.streams()
    counted = torch.isinf(experiment.epsilon[0]) if sweep.public else torch.ones(silos, dtype=torch.bool)
    if meter is not None:
        there = meter.present(rounds - 1)
        counted = counted & torch.tensor([k in there for k in range(silos)])
    if not counted.any():
        raise Problem(
            "no silo is left to release a score, so nothing is chosen; raise the budgets of the ledgers"
        )
    for k, event in enumerate(sweep.scores):
        if event is None or not counted[k]:
            continue
        name = experiment.federation.names[k]
        for trial in range(len(told)):
            if meter is None:
                dice: Dice = seeded.dice(trial, name, rounds, 0)
            else:
                numbers = "\0".join(repr(number) for number in told[trial, k].tolist())
                asked = f"score\0{trial}\0{meter.claims[k]}\0{digest}\0{numbers}"
                dice = meter.streams.kept(name, asked)
            told[trial, k] = dice.noisy(told[trial, k], event.noise)
    deviations = np.array([0.0 if event is None else event.noise for event in sweep.scores])
    return scores.combined(deviations, counted.numpy())


def best_of(scores: list[float], higher_is_better: bool) -> int:
    """Return the index of the best score."""
    return max(range(len(scores)), key=lambda k: scores[k] if higher_is_better else -scores[k])
