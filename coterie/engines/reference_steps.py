"""Steps of the slow engine: momentum and Adam as sums over all gradients so far, as papers write them."""

from __future__ import annotations

from torch import Tensor

from ..protocol.optimizer import ADAM, Optimizer


class SlowSteps:
    """The steps of one silo in one call of a door; it keeps every gradient."""

    def __init__(self, optimizer: Optimizer, lr: float) -> None:
        self.optimizer, self.lr = optimizer, lr
        self.gradients: list[Tensor] = []

    def step(self, vector: Tensor, gradient: Tensor, pull: Tensor | None) -> Tensor:
        """Return the vector after a step along a mean gradient and a pull."""
        self.gradients.append(gradient.double())
        change = self.direction() + self.optimizer.weight_decay * vector.double()
        if pull is not None:
            change = change + pull.double()
        return (vector.double() - self.lr * change).float()

    def direction(self) -> Tensor:
        """Return the direction of the newest step."""
        count, decay = len(self.gradients), self.optimizer.decay
        means = [decay ** (count - 1 - place) * each for place, each in enumerate(self.gradients)]
        if self.optimizer.optimizer != "adam":
            return sum(means[1:], means[0])
        _, slow, least = ADAM
        squares = [slow ** (count - 1 - place) * each**2 for place, each in enumerate(self.gradients)]
        mean = sum(means[1:], means[0]) * (1 - decay) / (1 - decay**count)
        square = sum(squares[1:], squares[0]) * (1 - slow) / (1 - slow**count)
        return mean / (square**0.5 + least)
