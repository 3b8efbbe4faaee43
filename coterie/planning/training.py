"""How long and how fast silos train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import PlainlyMade, Problem, nearest
from ..privacy.budget import Swept
from ..protocol.doors import ALLOCATION, POISSON, Work, epochs_of_work
from ..protocol.method import Method, wrapped_by
from ..protocol.optimizer import NEEDS_PLAIN_STEPS, Optimizer
from .schedule import Dropping, Participation

MOST = 1_000_000
SAMPLERS = {"poisson": POISSON, "passes": ALLOCATION}  # of events, by the values of train.sampling


@dataclass(frozen=True)
class Training(metaclass=PlainlyMade):
    """How long and how fast silos train.

    A call of a training door is `epochs` passes over a silo's examples, or `steps` batches. With the
    `sampling` "poisson" every example is in every batch with the same probability, and passes are expected
    ones. With "passes" every example is in exactly one batch of each pass, drawn at random. `lr` is one
    number, one per silo, a list for one run per value, or "auto". `participation` says which silos take part
    in a round (None: all of them), and `dropping` which of these drop out or do less. `memory` bounds the
    working memory of a step, in bytes.
    """

    rounds: int = 50
    epochs: float = 1.0
    steps: int | None = None
    batch: int = 32
    lr: Swept = "auto"
    seeds: tuple[int, ...] = (0,)
    participation: Participation | None = None
    memory: int = 2**30
    device: str = "cpu"
    dropping: Dropping | None = None
    sampling: str = "poisson"
    optimizer: Optimizer = Optimizer()

    def __post_init__(self) -> None:
        for key in ("rounds", "batch", "steps"):
            value = getattr(self, key)
            whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST
            if not whole and not (key == "steps" and value is None):
                raise Problem(f"train.{key}: expected a whole number from 1 to {MOST}, got {value!r}")
        if not (math.isfinite(self.epochs) and 0 < self.epochs <= MOST):
            raise Problem(f"train.epochs: expected a number > 0, got {self.epochs!r}")
        if self.sampling not in SAMPLERS:
            raise Problem(
                f"train.sampling: unknown sampling {self.sampling!r}; {nearest(str(self.sampling), SAMPLERS)}"
            )
        if self.sampling == "passes" and self.steps is None and self.epochs != round(self.epochs):
            raise Problem(
                "train.epochs: expected a whole number with train.sampling = 'passes', got"
                f" {self.epochs!r}; round it, or use train.sampling = 'poisson'"
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise Problem(f"train.seeds: expected one or more different seeds, got {list(self.seeds)}")

    def work(self, size: int) -> Work:
        """Return the local work of a silo with this many examples."""
        sampler = SAMPLERS[self.sampling]
        if self.steps is not None:
            return Work(size, min(self.batch, size), self.steps, sampler)
        return epochs_of_work(size, self.batch, self.epochs, sampler)


def check_passes(training: Training, names: Sequence[str], sizes: Sequence[int]) -> None:
    """Raise `Problem` if silos train by passes but would not take whole ones."""
    if training.sampling != "passes":
        return
    if training.dropping is not None and training.dropping.uneven:
        raise Problem(
            "train.uneven: with train.sampling = 'passes' silos take whole passes, so none can take fewer"
            " steps; use train.sampling = 'poisson'"
        )
    if training.steps is None:
        return
    each = {name: math.ceil(size / training.batch) for name, size in zip(names, sizes, strict=True)}
    broken = [name for name, steps in each.items() if training.steps % steps]
    if broken:
        common = math.lcm(*each.values())
        other = f", or train.steps to a multiple of {common}" if common <= MOST else ""
        raise Problem(
            f"train.steps: {training.steps} steps are not whole passes for {len(broken)} silo(s), such as"
            f" '{broken[0]}', which takes {each[broken[0]]} steps per pass; set train.epochs instead{other}"
        )


def check_stepping(training: Training, method: Method) -> None:
    """Raise `Problem` if a method cannot step as told, or if there are fewer rounds than warm-up ones."""
    optimizer = training.optimizer
    if optimizer.warmup >= training.rounds:
        raise Problem(
            f"train.warmup: {optimizer.warmup} rounds of warm-up leave none of {training.rounds}; use fewer"
        )
    if optimizer.changed and (strict := takes_plain_steps(method)):
        keys = ", ".join(f"train.{key}" for key in optimizer.changed)
        raise Problem(NEEDS_PLAIN_STEPS.format(method=strict[0].name, keys=keys))


def takes_plain_steps(method: Method) -> list[Method]:
    """Return the methods, of this one and those it runs, that rely on plain steps of one size."""
    return [each for each in (method, *wrapped_by(method)) if each.linear or each.plain_steps]


def check_device(device: str) -> None:
    """Raise `Problem` if a device cannot be used."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        found = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        why = (
            "torch finds no GPU" if str(device).startswith("cuda") and len(found) == 1 else "it is not known"
        )
        raise Problem(
            f"train.device: '{device}' cannot be used here, because {why}; use {' or '.join(found)}"
        ) from error
