"""The doors: the only way from a method to examples.

A method never sees a batch, a gradient, a clip or a noise multiplier. It asks for an operation, and the
result it receives has already been sampled, clipped, noised and counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor

from ..errors import Refused, nearest
from .settings import PerRun

NEEDS_CLASSES = (
    "imitation compares predicted classes, so it does not work with a numeric target, or with several targets"
)
DOORS = ("descend", "fisher", "select", "solve_dual", "round", "rounds")
CERTIFIES_NOTHING = (
    "the noise of the paper on dual coordinates certifies nothing; it is allowed only for silos without a"
    " budget (budgets = 'none', or epsilon inf)"
)


class Oracle(ABC):
    """What a method may ask of the examples of its silos in one round.

    `round` counts from 0 up to `rounds - 1`; both numbers are public.
    """

    __slots__ = ()
    round: int
    rounds: int

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an `AttributeError` that names the door that was meant."""
            raise AttributeError(f"the oracle has no '{name}'; {nearest(name, DOORS)}")

    @abstractmethod
    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
        imitate: Tensor | None = None,
    ) -> Tensor:
        """Train from `start` for the silo's local work and return the new vectors `[runs, silos, P]`.

        `toward` and `strength` add a pull to the gradient of each step: `strength * (w - toward)`. The
        strength may differ between parameters. With `imitate` instead of `toward`, the model also imitates
        the predictions of these vectors: `strength` times the divergence is part of each example's loss,
        so it is clipped with it. `home=True` trains without noise; the result is raw and must stay in the
        silo.
        """

    @abstractmethod
    def fisher(self, vectors: Tensor) -> Tensor:
        """Return how much each parameter matters to each silo's examples: `[runs, silos, P]`.

        This is the mean of squared gradients. It is raw, so it is refused under the unit 'example'.
        """

    @abstractmethod
    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Return the index of the candidate that fits each silo's examples best, `[runs, silos]`.

        `candidates` is `[runs, candidates, P]`. The choice is private: the numbers of errors (losses above
        1 count as 1) are compared after noise is added. `share` is the part of epsilon that all choices of
        the training may spend together.
        """

    @abstractmethod
    def solve_dual(
        self,
        start: Tensor,
        duals: Tensor,
        *,
        stiffness: Tensor,
        xi: PerRun = 1.0,
        whole: bool = False,
        unproven: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Move the duals at the model `start`; return what the moves add to X a, and the new duals.

        There is one dual per example, `[runs, silos, ...]`; begin with `Start.duals`. `stiffness`
        `[runs, silos, 1]` is how far one unit of the sum X a moves the model, and `xi` is the share of each
        move that is made. The returned sums are `[runs, silos, P]`. The returned duals are sealed: a method
        keeps them and passes them back to this door, but cannot look into them. Each example's move is
        clipped and the sums are noised. With `whole`, the duals move one after the other; the upload is
        clipped as a whole, and its noise covers all of the silo's examples at once. Requires a linear model.
        `unproven` replaces our noise by a paper's, as two tensors `[runs, silos, 1]`; it is allowed only for
        silos without a budget.
        """


def doors_of(oracle: Oracle) -> Oracle:
    """Return the doors of an oracle and nothing else of it: what a method gets in its place."""
    return _Doors(oracle)


class _Doors(Oracle):
    """Passes calls on to an oracle that is none of its attributes.

    So no attribute leads from what a method holds to examples, and none that it writes changes a round or its
    noise. What this is worth: it stops mistakes. Code in the same process that means harm can still find the
    oracle, through closures, frames or the garbage collector.
    """

    __slots__ = ("_ask", "_open")
    _open: Callable[..., Any]
    _ask: Callable[[str], int]

    def __init__(self, oracle: Oracle) -> None:
        doors: dict[str, Callable[..., Any]] = {
            "descend": oracle.descend,
            "fisher": oracle.fisher,
            "select": oracle.select,
            "solve_dual": oracle.solve_dual,
        }
        for name, value in (
            ("_open", lambda door, *given, **named: doors[door](*given, **named)),
            ("_ask", lambda fact: getattr(oracle, fact)),
        ):
            object.__setattr__(self, name, value)

    @property
    def round(self) -> int:  # type: ignore[override]
        """The number of the round, from 0."""
        return self._ask("round")

    @property
    def rounds(self) -> int:  # type: ignore[override]
        """The number of rounds."""
        return self._ask("rounds")

    def __setattr__(self, name: str, value: Any) -> None:
        raise Refused(f"a method writes the attribute '{name}' of its oracle: methods must be pure")

    def descend(
        self,
        start: Tensor,
        *,
        toward: Tensor | None = None,
        strength: PerRun | Tensor = 0.0,
        home: bool = False,
        imitate: Tensor | None = None,
    ) -> Tensor:
        """Train from `start`."""
        given = {"toward": toward, "strength": strength, "home": home, "imitate": imitate}
        return self._open("descend", start, **given)  # type: ignore[no-any-return]

    def fisher(self, vectors: Tensor) -> Tensor:
        """Return how much each parameter matters."""
        return self._open("fisher", vectors)  # type: ignore[no-any-return]

    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Return a private choice."""
        return self._open("select", candidates, share)  # type: ignore[no-any-return]

    def solve_dual(
        self,
        start: Tensor,
        duals: Tensor,
        *,
        stiffness: Tensor,
        xi: PerRun = 1.0,
        whole: bool = False,
        unproven: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Move duals."""
        given = {"stiffness": stiffness, "xi": xi, "whole": whole, "unproven": unproven}
        return self._open("solve_dual", start, duals, **given)  # type: ignore[no-any-return]
