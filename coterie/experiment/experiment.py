"""From data, methods and budgets to results: which runs an experiment has, and how they are trained."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..cohort.dp_sgd import Cohort, Settings
from ..cohort.examples import stack
from ..cohort.features import with_features
from ..cohort.gradients.clipping import rows_within
from ..cohort.sampling import LARGEST_BATCH, slots_for
from ..cohort.score import score
from ..data.federation import Federation
from ..data.persons import check_room
from ..engines.simulation import personal_vectors, simulate
from ..errors import Problem
from ..guard.checkpoint import History, Recorded
from ..guard.claims import secret_draw
from ..guard.session import Session
from ..measures.catalogue import Metric
from ..methods.adaptive_clip import AdaptiveClip
from ..planning.accounting import ACCOUNTING, Accounting
from ..planning.plan import Plan, absent_remarks
from ..planning.request import MergeTerms, Request
from ..planning.schedule import Schedule, check_dropping, draw_schedule
from ..planning.silo_plan import Terms, clip_remarks, secure_remarks, terms_of
from ..planning.training import Training, check_device, check_passes, check_stepping
from ..privacy.budget import PerSilo, Privacy, check_budgets, per_silo, values_of
from ..protocol.doors import Work
from ..protocol.method import Method
from ..protocol.roster import Roster
from ..protocol.settings import for_runs, settings_of
from ..protocol.state import State
from ..protocol.streams import SeededStreams
from ..protocol.tree import map_leaves
from ..tasks.task import Task
from . import learning_rate
from .diagnostics import Watch
from .id_check import check_ids
from .measures import measures_of
from .notes import notes_of
from .outcome import Outcome, make_result
from .public_facts import PublicTask, check_counts, public_federation
from .result import Result, label_of
from .variant import Variant, shown_setting


@dataclass(frozen=True, eq=False)
class Experiment:
    """Runs of one method that train together: every variant with every seed, or only those `picked`.

    `metrics` are the measures of its result; none stands for those that suit the task.
    """

    federation: Federation
    task: Task
    method: Method
    privacy: Privacy
    training: Training
    picked: tuple[tuple[int, int], ...] | None = None
    budgets: str = "own"
    metrics: tuple[Metric, ...] = ()

    @cached_property
    def variants(self) -> list[Variant]:
        """The variants, in the order of the lists."""
        own = {name: getattr(self.method, name) for name in settings_of(self.method)}
        axes: dict[str, list[Any]] = {
            name: list(value) if isinstance(value, tuple) else [value] for name, value in own.items()
        }
        axes |= {
            "lr": values_of(self.training.lr),
            "epsilon": values_of(self.privacy.epsilon)[: 1 if self.budgets == "none" else None],
            "clip": values_of(self.privacy.clip),
            "noise": values_of(0.0 if self.privacy.noise is None else self.privacy.noise),
        }
        variants = []
        for choice in itertools.product(*axes.values()):
            picked = dict(zip(axes, choice, strict=True))
            shown = {k: shown_setting(v) for k, v in picked.items() if k in own or len(axes[k]) > 1}
            if self.budgets != "own":
                shown["budgets"] = self.budgets
            settings = {k: picked[k] for k in own}
            rest = (picked[key] for key in ("lr", "epsilon", "clip", "noise"))
            variants.append(Variant(shown, settings, *rest))
        return variants

    @cached_property
    def keys(self) -> tuple[tuple[int, int], ...]:
        """The (seed, number of the variant) of each run: all of them, or only those `picked`."""
        if self.picked is not None:
            return self.picked
        return tuple((seed, v) for v in range(len(self.variants)) for seed in self.training.seeds)

    @cached_property
    def labels(self) -> list[str]:
        """The label of each variant: its method and settings."""
        return [label_of(self.method.title, variant.shown) for variant in self.variants]

    def streams(self) -> SeededStreams:
        """Return the random streams of all runs; no two runs share noise, whatever their methods."""
        return SeededStreams(tuple((seed, self.labels[v]) for seed, v in self.keys))

    def _per_run(self, choose: Callable[[Variant], PerSilo], key: str) -> Tensor:
        seed, names = self.privacy.budget_seed, self.federation.names
        rows = [per_silo(key, choose(variant), names, seed) for variant in self.variants]
        return torch.tensor([rows[v] for _, v in self.keys], dtype=torch.float64)

    @cached_property
    def own_epsilon(self) -> Tensor:
        """The silos' own budgets, `[runs, silos]`."""
        return self._per_run(lambda v: v.epsilon, "privacy.epsilon")

    @cached_property
    def epsilon(self) -> Tensor:
        """What silos may spend, `[runs, silos]`: their own budgets, or what `budgets` makes of them."""
        own = self.own_epsilon
        if self.budgets == "minimum":
            return own.amin(1, keepdim=True).expand_as(own).contiguous()
        if self.budgets == "maximum":
            return own.amax(1, keepdim=True).expand_as(own).contiguous()
        return torch.full_like(own, math.inf) if self.budgets == "none" else own

    def not_covered(self, run: int, k: int) -> tuple[str, ...]:
        """Return what silo k's budget does not cover, including any spending above what it agreed to."""
        own, given = float(self.own_epsilon[run, k]), float(self.epsilon[run, k])
        more = "any amount" if math.isinf(given) else f"{given:g}"
        over = f"spending above the silo's own budget of {own:g}: '{self.budgets}' let it spend {more}"
        return (*self.federation.not_covered, *([over] if given > own else []))

    @cached_property
    def delta(self) -> Tensor:
        """The silos' deltas, `[runs, silos]`."""
        return self._per_run(lambda _: self.privacy.delta, "privacy.delta")

    @cached_property
    def clip(self) -> Tensor:
        """The clips, `[runs, silos]`; infinite without privacy."""
        clip = self._per_run(lambda v: v.clip, "privacy.clip")
        return torch.where(torch.isinf(self.epsilon), math.inf, clip)

    @cached_property
    def terms(self) -> list[Terms]:
        """The terms of each run under the unit 'silo', where one noise and one clip serve all silos."""
        if self.budgets in ("uniform", "closed-form"):
            raise Problem(f"budgets: '{self.budgets}' is allowed only with unit = 'example'")
        clip = self._per_run(lambda v: v.clip, "privacy.clip")
        given = self.privacy.noise is not None
        noise = self._per_run(lambda v: v.noise, "privacy.noise") if given else None
        return terms_of(self.epsilon, self.delta, clip, noise)

    @property
    def accounting(self) -> Accounting:
        """How the unit that privacy protects is planned, charged and stated."""
        return ACCOUNTING[self.privacy.unit]

    @cached_property
    def lr(self) -> Tensor:
        """The learning rates, `[runs, silos]`; NaN where they follow from the plan."""
        rows = [learning_rate.numbers_of(variant.lr, self.federation.names) for variant in self.variants]
        return torch.tensor([rows[v] for _, v in self.keys], dtype=torch.float64)

    @cached_property
    def work(self) -> tuple[Work, ...]:
        """The local work of each silo."""
        return tuple(self.training.work(size) for size in self.sizes)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The declared number of training examples of each silo, or of persons if these are protected."""
        return self.federation.protected_sizes(self.privacy.unit)

    @property
    def rows_each(self) -> int | None:
        """The most rows of one person that a training uses; None if rows need not be told apart."""
        return self.federation.rows_each(self.privacy.unit)

    @cached_property
    def running(self) -> Method:
        """The method, with one value of each setting per run."""
        chosen = {
            name: tuple(self.variants[v].settings[name] for _, v in self.keys)
            for name, field in settings_of(self.method).items()
            if not field.metadata.get("fixed")
        }
        running = for_runs(self.method, chosen)
        if self.privacy.quantile is None:
            return running
        return AdaptiveClip(method=running, first=tuple(terms.first_clip for terms in self.terms))

    @cached_property
    def roster(self) -> Roster:
        """The public facts about the silos."""
        sizes = torch.tensor(self.sizes, dtype=torch.float64, device=self.training.device)
        return Roster(
            self.federation.names, sizes, self.epsilon.to(self.training.device), each=self.rows_each or 1
        )

    @cached_property
    def schedule(self) -> Schedule:
        """Which silos take part in which rounds, and how much each does."""
        return draw_schedule(self.training, [seed for seed, _ in self.keys], self.federation.names, self.work)

    @property
    def present(self) -> Tensor | None:
        """Which silos take part in which rounds, `[rounds, runs, silos]`; None if all of them always do."""
        return self.schedule.present

    def check(self) -> None:
        """Raise `Problem` if a setting does not fit the data, the model or the method."""
        check_device(self.training.device)
        self.task.module.to(self.training.device)
        check_ids(self.task, self.federation)
        check_room(self.rows_each, self.sizes, self.training.memory)
        rows_within(self.task, self.training.memory, self.roster.each)
        check_passes(self.training, self.federation.names, self.sizes)
        check_stepping(self.training, self.method)
        check_dropping(self.training, self.federation.names, self.work, self.privacy, self.budgets)
        check_counts(self.task, self.federation)
        private = not bool(torch.isinf(self.epsilon).all())
        self.method.check(PublicTask(self.task), public_federation(self.federation, self.sizes, private))
        clip = [c for v in self.variants for c in per_silo("privacy.clip", v.clip, self.federation.names)]
        check_budgets(self.epsilon.flatten().tolist(), self.delta.flatten().tolist(), clip)
        _ = self.lr  # raises a Problem for what is no learning rate

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before anything is planned."""
        return tuple(notes_of(self))

    def check_metered(self) -> None:
        """Raise `Problem` for a training that no ledger can account for."""
        if self.budgets in ("maximum", "none"):
            raise Problem(f"method: budgets = '{self.budgets}' is for comparison only; no ledger covers it")
        if (most := max(map(slots_for, self.work))) > LARGEST_BATCH:
            raise Problem(
                f"train.batch: a metered batch has up to {most:,} examples, but the rounding of its sum is"
                f" paid for up to {LARGEST_BATCH:,}: use smaller batches"
            )
        share = self.training.participation
        drawn = share is not None and share.sampler == "poisson" and share.share < 1
        if self.privacy.unit == "silo" and self.training.dropping is not None and drawn:
            raise Problem(
                "train.drop, train.uneven: not allowed with a ledger if whole silos are drawn in secret"
            )

    def plan(self, on_progress: Callable[[int, int], None] | None = None) -> Plan:
        """Return what every silo will do and spend, without training."""
        privacy, layout = self.privacy, self.task.layout
        given = self._per_run(lambda v: v.noise, "privacy.noise") if privacy.noise is not None else None
        request = Request(
            method=self.running,
            roster=replace(self.roster, sizes=self.roster.sizes.cpu(), epsilon=self.roster.epsilon.cpu()),
            work=self.work,
            layers=tuple(layout.lengths),
            names=tuple(layout.names),
            rounds=self.training.rounds,
            delta=self.delta,
            clip=self._per_run(lambda v: v.clip, "privacy.clip"),
            schedule=self.schedule,
            participation=self.training.participation,
            spending=self.budgets,
            merging=MergeTerms(
                given,
                privacy.noise_by,
                privacy.sensitivity,
                privacy.quantile,
                privacy.dropouts,
                privacy.colluding,
            ),
            on_progress=on_progress,
        )
        plan = self.accounting.plan(request)
        title = self.method.title
        notes = [
            *self.running.remarks(request.roster, plan.present),
            *absent_remarks(plan, title, self.budgets == "uniform"),
            *(clip_remarks(plan, title) + secure_remarks(plan, title)),
            *learning_rate.remarks(self.lr, self.settings(plan).lr),
        ]
        return replace(plan, notes=tuple(dict.fromkeys(notes)))

    def settings(self, plan: Plan) -> Settings:
        """Return what each run and silo trains with."""
        device = self.training.device
        clip = self.clip if plan.unit.noise_in_doors else torch.full_like(self.clip, math.inf)
        rates = learning_rate.chosen(self.lr, self.task, plan, clip, self.work, self.training)
        lr, clip, noise = (value.float().to(device) for value in (rates, clip, plan.noise()))
        balanced = learning_rate.proximal(self.lr, self.method)
        return Settings(lr, clip, noise, plan.choice_noise().to(device), self.training.optimizer, balanced)

    def cohort(self, plan: Plan) -> Cohort:
        """Return the silos, ready to train."""
        examples = stack(self.federation, "train", self.training.device, self.rows_each)
        task, examples = with_features(self.task, examples, self.training.memory)
        return Cohort(task, examples, self.work, self.settings(plan), self.training.memory)

    def train(
        self,
        plan: Plan | None = None,
        on_round: Callable[[int, float | None], None] | None = None,
        session: Session | None = None,
    ) -> Result:
        """Train all runs and return their result.

        `on_round` is called after each round with its number and, from time to time, the mean score (else
        None). A `session` writes checkpoints and charges the ledgers. With a meter, the noise comes from the
        system's entropy instead of the seeds.
        """
        session = session or Session()
        if session.meter is not None:
            self.check_metered()
        plan = plan or self.plan()
        began = time.perf_counter()
        cohort, meter = self.cohort(plan), session.meter
        test = stack(self.federation, "test", self.training.device)
        weight = torch.tensor(test.sizes, dtype=torch.float64) / sum(test.sizes)
        every = max(1, self.training.rounds // 20)
        opened = session.begin(self.method.title, plan)
        point = opened.checkpoint
        history: History = list(point.history) if point else []
        start = None
        if point is not None:
            kept = map_leaves(lambda leaf: leaf.to(cohort.device), (point.state.shared, point.state.own))
            start = State(point.state.round, *kept)
        seeds = [seed for seed, _ in self.keys]
        streams = self.streams() if meter is None else meter.streams
        drawn = None if meter is None else secret_draw(plan, meter.streams)
        scores = vectors = torch.empty(0)
        watch = Watch(self.running, cohort, self.training.rounds)
        known = (self.running, cohort, plan, self.roster, seeds)
        for state in simulate(*known, streams, start, opened.before, drawn):
            shown = None
            watch.see(state)
            if state.round % every == 0 or state.round == self.training.rounds:
                vectors = personal_vectors(self.running, state, len(self.federation))
                scores = score(self.task, test, vectors, self.training.memory).double().cpu()
                totals = (scores * weight).sum(1)
                if not history or history[-1][0] < state.round:
                    losses = self._training_losses(cohort, vectors)
                    history.append(Recorded(state.round, totals.tolist(), scores.tolist(), losses))
                shown = float(totals.mean())
            opened.after(state, history)
            if on_round is not None:
                try:
                    on_round(state.round, shown)
                except Exception:
                    opened.end_early(state, history)
                    raise
        seconds = time.perf_counter() - began
        notes = [*self.notes, *plan.notes, *(meter.notes() if meter is not None else [])]
        if broken := int((~torch.isfinite(vectors).all(-1)).sum()):
            notes.append(
                f"{self.method.name}: {broken} of {vectors[..., 0].numel()} models diverged (their numbers"
                " are not finite) and have no score: lower train.lr, or the strength of the pull"
            )
        measures = measures_of(self, test, vectors)
        trained = Outcome(scores, vectors.cpu(), history, seconds, opened.spent(), measures)
        return watch.add_to(make_result(self, plan, trained, notes))

    def _training_losses(self, cohort: Cohort, vectors: Tensor) -> list[list[float] | None]:
        """Return the mean training loss of each silo in each run; None for a run with privacy."""
        bare = torch.isinf(self.epsilon).all(1).tolist()
        if not any(bare):
            return [None] * len(bare)
        memory = self.training.memory
        means = iter(
            score(cohort.task, cohort.examples, vectors[torch.tensor(bare)], memory, losses=True).tolist()
        )
        return [next(means) if is_bare else None for is_bare in bare]


def experiments(
    federation: Federation,
    task: Task,
    methods: Sequence[tuple[Method, str]],
    privacy: Privacy,
    training: Training,
    metrics: tuple[Metric, ...] = (),
) -> list[Experiment]:
    """Return one checked experiment for each (method, how it uses silos' budgets)."""
    planned = [
        Experiment(federation, task, method, privacy, training, budgets=budgets, metrics=metrics)
        for method, budgets in methods
    ]
    seen: set[str] = set()
    for experiment in planned:
        for label in experiment.labels:
            if label in seen:
                raise Problem(f"'{label}' appears twice; list each method and setting only once")
            seen.add(label)
        experiment.check()
    return planned
