"""What methods may know about a task and its silos before a training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..cohort.dual.linear import check_norms, linear_shape
from ..data.federation import Federation
from ..errors import Problem
from ..tasks.task import Task


@dataclass(frozen=True, eq=False)
class PublicTask:
    """What a method may ask about a task (see `protocol.method.TaskFacts`)."""

    _task: Task

    @property
    def classes(self) -> int:
        """The number of classes; 0 for a numeric target, and for several targets."""
        return 0 if self._task.targets else self._task.classes

    def check_linear(self) -> None:
        """Raise a Problem unless the model is linear and its loss has a dual."""
        linear_shape(self._task)


@dataclass(frozen=True, eq=False)
class PublicFederation:
    """What a method may ask about the silos; no attribute leads to their examples."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    _norms: Callable[[], None]

    def check_norms(self) -> None:
        """Raise a Problem if an example is longer than 1, unless no silo has a budget."""
        self._norms()


def public_federation(federation: Federation, sizes: tuple[int, ...], private: bool) -> PublicFederation:
    """Return what a method may ask about silos of these sizes; `private` if any of them has a budget."""

    def norms() -> None:
        if private:
            check_norms(federation)

    return PublicFederation(federation.names, sizes, norms)


def check_counts(task: Task, federation: Federation) -> None:
    """Raise a Problem if a loss for counts meets a target below 0. (The error reveals that there is one.)"""
    if task.loss != "poisson":
        return
    for silo in federation.silos:
        if bool((silo.y < 0).any()):
            raise Problem(
                f"data: silo '{silo.name}' has a target below 0, but the loss 'poisson' is for counts: use"
                " 'squared' or 'huber', or scale the target with data.target_range"
            )
