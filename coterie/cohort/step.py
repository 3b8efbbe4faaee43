"""One gradient step of many (run, silo) pairs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..protocol.optimizer import ADAM, Optimizer
from ..tasks.layout import Layout


def damped(lr: Tensor, strength: Tensor, proximal: Tensor | None = None) -> Tensor:
    """Return learning rates `[pairs, 1]` with which a step does not pull beyond its target.

    If lr x strength is above 1, or where `proximal`, the rate becomes lr / (1 + lr x strength). The step is
    then that of the proximal method, which balances gradient and pull whatever the learning rate.
    """
    pull = lr * strength.amax(-1, keepdim=True)
    strong = pull > 1 if proximal is None else proximal | (pull > 1)
    return torch.where(strong, lr / (1 + pull), lr)


@dataclass(frozen=True, eq=False)
class Moments:
    """What momentum and Adam remember within one call of a door, `[pairs, P]`, and steps taken `[pairs, 1]`.

    All are overwritten, step by step. Only Adam needs `squares`.
    """

    mean: Tensor
    squares: Tensor | None
    steps: Tensor

    def at(self, places: Tensor) -> Moments:
        """Return a copy for some of the pairs."""
        squares = None if self.squares is None else self.squares[places]
        return Moments(self.mean[places], squares, self.steps[places])

    def put(self, places: Tensor, part: Moments) -> None:
        """Write back what was taken with `at`."""
        self.mean[places], self.steps[places] = part.mean, part.steps
        if self.squares is not None and part.squares is not None:
            self.squares[places] = part.squares

    def direction(self, gradient: Tensor, optimizer: Optimizer) -> Tensor:
        """Take in a mean gradient; return the direction of the step."""
        self.steps.add_(1)
        if self.squares is None:
            return self.mean.mul_(optimizer.decay).add_(gradient)
        _, decay, least = ADAM
        self.mean.lerp_(gradient, 1 - optimizer.decay)
        self.squares.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        mean = self.mean / (1 - optimizer.decay**self.steps)
        return mean / ((self.squares / (1 - decay**self.steps)).sqrt() + least)


@dataclass(frozen=True, eq=False)
class StepRule:
    """How each pair steps; all tensors are `[pairs, ...]`.

    A step divides a sum of gradients by the `expected` batch size and multiplies it by `lr`. The optional
    `pull` is a target `[pairs, P]` and a strength. Pull and weight decay act apart from momentum and Adam.
    """

    lr: Tensor
    expected: Tensor
    pull: tuple[Tensor, Tensor] | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)

    def at(self, places: Tensor) -> StepRule:
        """Return the rule for some of the pairs."""
        pull = None if self.pull is None else (self.pull[0][places], self.pull[1][places])
        return StepRule(self.lr[places], self.expected[places], pull, self.optimizer)

    def begin(self, vectors: Tensor) -> Moments | None:
        """Return what steps from these vectors remember, all zero; None if they are plain."""
        if self.optimizer.is_plain:
            return None
        squares = torch.zeros_like(vectors) if self.optimizer.optimizer == "adam" else None
        return Moments(torch.zeros_like(vectors), squares, torch.zeros_like(vectors[:, :1]))

    def moved(self, vectors: Tensor, sums: Tensor, moments: Moments | None = None) -> Tensor:
        """Return the vectors after one step along the mean gradient and the pull, reading each once."""
        if moments is None:
            return torch.addcmul(self._pulled(vectors), sums.float(), -self.lr / self.expected)
        direction = moments.direction(sums.float() / self.expected, self.optimizer)
        decayed = torch.addcmul(direction, vectors, torch.as_tensor(self.optimizer.weight_decay))
        return torch.addcmul(self._pulled(vectors), decayed, -self.lr)

    def moved_by_parts(
        self, vectors: Tensor, layout: Layout, sums: dict[str, Tensor], moments: Moments | None = None
    ) -> Tensor:
        """Take the same step from sums by parameter name, overwriting `vectors`.

        If `sums` is empty, the gradient is zero.
        """
        if moments is not None:
            whole = layout.flatten(sums) if sums else torch.zeros_like(vectors)
            return self.moved(vectors, whole, moments)
        vectors, rate = self._pulled(vectors), -self.lr / self.expected
        for name, value in layout.unflatten(vectors).items() if sums else ():
            value.addcmul_(sums[name].float(), rate.reshape(-1, *[1] * (value.dim() - 1)))
        return vectors

    def _pulled(self, vectors: Tensor) -> Tensor:
        return vectors if self.pull is None else vectors.lerp(self.pull[0], self.lr * self.pull[1])
