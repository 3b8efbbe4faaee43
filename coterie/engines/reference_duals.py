"""Dual coordinates of one silo in the slow engine: one example at a time, each minimum by bisection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..cohort.sampling import coins
from ..data.federation import Silo
from ..protocol.doors import Work
from ..protocol.optimizer import Optimizer
from ..protocol.streams import Dice
from ..tasks.task import Task


def with_noise(sums: np.ndarray, deviation: float, dice: Dice) -> np.ndarray:
    """Return sums with the noise of a door."""
    material = np.empty(sums.shape, dtype=dice.material)
    dice.fill(material)
    return dice.noisy(sums, deviation, material)


@dataclass(frozen=True, eq=False)
class Terms:
    """What one silo trains with in one run."""

    work: Work
    lr: float
    clip: float
    noise: float
    choice: float = 0.0
    optimizer: Optimizer = Optimizer()
    proximal: bool = False


class Members(NamedTuple):
    """The rows of everybody who may be drawn in a silo, and how many rows each has at most."""

    rows: list[list[int]]
    each: int


@dataclass(frozen=True, eq=False)
class SlowDuals:
    """One silo's examples, read through the module's own gradients; duals move one by one."""

    task: Task
    silo: Silo
    scale: float
    terms: Terms
    stiffness: float
    members: Members

    def places(self, i: int) -> list[tuple[int, int]]:
        """Return the rows of one who was drawn, each with the place of its dual."""
        return [(row, i * self.members.each + place) for place, row in enumerate(self.members.rows[i])]

    def features(self, row: int) -> np.ndarray:
        """Return what each parameter adds to each output of an example: `[outputs, P]`."""
        x = self.silo.x[row : row + 1].float() * self.scale
        vector = torch.zeros(self.task.layout.size, requires_grad=True)
        outputs = self.task.predict(self.task.layout.unflatten(vector), x)[0]
        rows = [torch.autograd.grad(output, vector, retain_graph=True)[0] for output in outputs]
        return torch.stack(rows).double().numpy()

    def targets(self, row: int) -> list[float]:
        """Return the number, or the signs, that the outputs of an example should have."""
        y = self.silo.y[row]
        if not self.task.classes:
            return [float(y)]
        wanted = [1] if self.task.outputs == 1 else range(self.task.outputs)
        return [1.0 if int(y) == k else -1.0 for k in wanted]

    def moves(self, row: int, model: np.ndarray, dual: np.ndarray, together: float) -> np.ndarray:
        """Return the best move of each dual of an example."""
        phi, moves = self.features(row), []
        for output, target in enumerate(self.targets(row)):
            score = float(phi[output] @ model)
            curvature = self.stiffness * together * float(phi[output] @ phi[output])
            moves.append(slow_move(self.task.loss, score, float(dual[output]), target, curvature))
        return np.array(moves)

    def apart(self, start: Tensor, duals: np.ndarray, steps: int, dice: Dice) -> tuple[Tensor, Tensor]:
        """Move sampled duals, each independently of the others."""
        work, (clip, noise) = self.terms.work, (self.terms.clip, self.terms.noise)
        hits = coins(dice, work, work.steps)
        model, reached, total = start.double().numpy(), duals.copy(), np.zeros(len(start))
        for step in range(steps):
            noisy = np.zeros(len(model))
            for i in np.flatnonzero(hits[step]):
                rows, together = self.places(int(i)), work.expected * self.members.each
                moves = [self.moves(row, model, reached[dual], together) for row, dual in rows]
                change = sum(move @ self.features(row) for move, (row, _) in zip(moves, rows, strict=True))
                length = float(np.linalg.norm(change))
                factor = 1.0 if length <= clip else clip / length
                noisy += factor * change
                for move, (_, dual) in zip(moves, rows, strict=True):
                    reached[dual] += factor * move
            if noise:
                noisy = with_noise(noisy, noise * clip, dice)
            model, total = model + self.stiffness * noisy, total + noisy
        return torch.from_numpy(total).float(), torch.from_numpy(reached - duals).float()

    def in_turn(self, start: Tensor, duals: np.ndarray, steps: int, dice: Dice) -> tuple[Tensor, Tensor]:
        """Move duals one after the other; clip and noise their sum as a whole."""
        clip, noise = self.terms.clip, self.terms.noise
        total, moved = self._turns(start, duals, steps, dice)
        length = float(np.linalg.norm(total))
        factor = 1.0 if length <= clip else clip / length
        noisy = factor * total
        if noise:
            noisy = with_noise(noisy, 2 * clip * noise, dice)
        return torch.from_numpy(noisy).float(), torch.from_numpy(factor * moved).float()

    def unproven(
        self, start: Tensor, duals: np.ndarray, steps: int, dice: Dice, noise: tuple[float, float]
    ) -> tuple[Tensor, Tensor]:
        """Move duals one after the other, with a paper's noise on the duals and on their sum."""
        total, moved = self._turns(start, duals, steps, dice)
        size, outputs = self.terms.work.size, duals.shape[1]
        beside, count = np.zeros_like(duals), size * self.members.each
        beside[:count] = with_noise(np.zeros((count, outputs)), 1.0, dice) / size
        noisy = with_noise(total, 2 * float(np.linalg.norm(moved)) * noise[1], dice)
        return torch.from_numpy(noisy).float(), torch.from_numpy(moved + noise[0] * beside).float()

    def _turns(
        self, start: Tensor, duals: np.ndarray, steps: int, dice: Dice
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of moves made one after the other, and the moves."""
        work, queue = self.terms.work, list[int]()
        model, reached, total = start.double().numpy(), duals.copy(), np.zeros(len(start))
        for _ in range(round(steps * work.expected)):
            queue = queue or dice.permutation(work.size).tolist()
            for row, dual in self.places(queue.pop(0)):
                move = self.moves(row, model, reached[dual], 1.0)
                change = move @ self.features(row)
                model, total = model + self.stiffness * change, total + change
                reached[dual] = reached[dual] + move
        return total, reached - duals


def slow_move(loss: str, score: float, dual: float, target: float, curvature: float) -> float:
    """Return the best move by bisection: the point where the slope of the objective changes sign."""
    low, high = {
        "squared": (-1e9, 1e9),
        "hinge": (min(0.0, target), max(0.0, target)),
        "one-against-rest": (min(0.0, target), max(0.0, target)),
        "squared-hinge": (0.0, 1e9) if target > 0 else (-1e9, 0.0),
    }[loss]
    low, high = low - dual, high - dual

    def slope(move: float) -> float:
        bend = 0.0 if loss in ("hinge", "one-against-rest") else (dual + move) / 2
        return -target + bend + score + curvature * move

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return (low + high) / 2
