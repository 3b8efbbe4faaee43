"""The doors: the only way from a method to examples.

A method never sees a batch, a gradient, a clip or a noise multiplier. It asks, and what
it gets has already been sampled, clipped, noised and counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from .settings import PerRun

NEEDS_CLASSES = "imitation compares predicted classes, so it does not work with a numeric target"
CERTIFIES_NOTHING = (
    "the noise of the paper on dual coordinates certifies nothing: only for silos without a budget"
    " (budgets = 'none', or epsilon inf)"
)


class Oracle(ABC):
    """What a method may ask of the examples of its silos in one round.

    `round` is the number of the round, from 0, of `rounds`: public facts.
    """

    round: int
    rounds: int

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
        """Train from `start` for the silo's local work and give the new vectors `[runs, silos, P]`.

        `toward` and `strength` add a pull to each step: `strength * (w - toward)`; a strength may differ
        from number to number. With `imitate` in its place the model also imitates what these vectors
        predict: `strength` times the divergence is in the loss of each example, so it is clipped with it.
        `home=True` trains without noise: what comes out is raw, and must stay at home.
        """

    @abstractmethod
    def fisher(self, vectors: Tensor) -> Tensor:
        """Give how much each number of vectors matters to each silo's examples: `[runs, silos, P]`.

        The mean of squared gradients. It is raw, so it is refused under the unit 'example'.
        """

    @abstractmethod
    def select(self, candidates: Tensor, share: float) -> Tensor:
        """Choose for each silo the candidate `[runs, candidates, P]` that fits its examples best.

        A private choice: the numbers of errors (losses above 1 count as 1) are compared with noise
        added. `share` is what all choices of the training may take of epsilon. Gives the places of
        the chosen ones, `[runs, silos]`.
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
        """Move duals `[runs, silos, ...]`, one an example, at the model `start`; give what that adds to X a.

        Begin with `Start.duals`. `stiffness` `[runs, silos, 1]` is what a unit of that sum moves the model
        by, `xi` the share of a move that is made. What is given beside the vectors `[runs, silos, P]` is
        sealed: a method keeps it and gives it back to this door, and cannot look into it. Each example's
        move is clipped and sums are noised; with `whole` duals move one after the other, and the upload is
        clipped as one and noised for all that the silo has. Needs a linear model. `unproven` is the noise
        of a paper in place of ours, `[runs, silos, 1]` each: only for silos without a budget.
        """
