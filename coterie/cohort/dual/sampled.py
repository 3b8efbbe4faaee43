"""Dual coordinates of a whole cohort: one number per example and output, which never leaves the silo.

In a round, a silo with duals a and stiffness s (correction x Omega_tt / 2 lam) looks for the move d that
minimises the sum of l*(-(a + d)) + w'Xd + s/2 |Xd|^2 (Hu, Guo, Li, Pei, Gong 2020, equation 7).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from ...protocol.streams import Dice, Streams
from ..dp_sgd import Cohort
from ..gradients.clipping import ROUNDING
from ..noise import add_noise_to_array, drawn_for, fill
from ..sampling import coins, slots_for
from .linear import Points, linear_shape, points_of

LEAST_CURVATURE = 1e-12
CACHED = 2**22  # bytes of sampled examples that are processed at a time


@dataclass(frozen=True, eq=False)
class DualRequest:
    """The arguments of one call to the dual door.

    `models` is `[runs, silos, P]`, `duals` `[runs, silos, longest, outputs]`, `stiffness` `[runs, silos]`,
    and `xi` `[runs, silos]` is the share of each move that is carried out. `present` says which silos take
    part and `steps` how many steps each takes, both `[runs, silos]`; None means all. `unproven` asks for
    the noise of a paper, without a guarantee; see `sdca`.
    """

    models: Tensor
    duals: Tensor
    stiffness: Tensor
    xi: Tensor
    present: Tensor | None = None
    steps: Tensor | None = None
    unproven: tuple[Tensor, Tensor] | None = None


def best_move(
    loss: str, score: np.ndarray, dual: np.ndarray, target: np.ndarray, curvature: np.ndarray
) -> np.ndarray:
    """Return the d that minimises l*(-(a + d)) + score d + curvature/2 d^2.

    The conjugates are -ay for hinge (with ay in [0, 1]), -ay + a^2/4 for squared, and the same with ay >= 0
    for squared hinge. For classes, the targets y are signs.
    """
    if loss in ("hinge", "one-against-rest"):
        wanted = target * np.minimum(np.maximum(target * dual + (1 - target * score) / curvature, 0), 1)
    else:
        wanted = dual + (target - score - dual / 2) / (0.5 + curvature)
    if loss == "squared-hinge":
        wanted = target * np.maximum(target * wanted, 0)
    move: np.ndarray = wanted - dual
    return move


@dataclass(frozen=True, eq=False)
class Pairs:
    """The (run, silo) pairs that take part, as arrays with one row per pair.

    `places` are their positions among all pairs, `silos` their silos, and `counts` their numbers of steps.
    `models` is `[pairs, outputs, features]`. Stiffness, clip and noise are those each pair steps with.
    """

    places: np.ndarray
    silos: np.ndarray
    counts: np.ndarray
    models: np.ndarray
    duals: np.ndarray
    stiffness: np.ndarray
    clip: np.ndarray
    noise: np.ndarray

    def part(self, cut: slice) -> Pairs:
        """Return some of the pairs."""
        return Pairs(*(getattr(self, field.name)[cut] for field in fields(self)))


def pairs_of(cohort: Cohort, request: DualRequest) -> Pairs:
    """Return the pairs that take part in a call."""
    active = np.ones(cohort.runs * len(cohort.work), dtype=bool)
    if request.present is not None:
        active = request.present.reshape(-1).cpu().numpy()
    counts = np.tile([work.steps for work in cohort.work], cohort.runs)
    if request.steps is not None:
        counts = request.steps.reshape(-1).cpu().numpy()
    places = np.flatnonzero(active)
    models = linear_shape(cohort.task).matrix(request.models).flatten(0, 1).cpu().numpy()[places]
    duals = request.duals.flatten(0, 1).cpu().numpy()[places]
    numbers = (request.stiffness, cohort.settings.clip, cohort.settings.noise)
    each = (part.reshape(-1).cpu().double().numpy()[places] for part in numbers)
    return Pairs(places, places % len(cohort.work), counts[places], models, duals, *each)


def solve_apart(
    cohort: Cohort, request: DualRequest, streams: Streams, round_: int, call: int
) -> tuple[Tensor, Tensor]:
    """Move Poisson samples of duals, each using only released numbers and itself; return sums and duals.

    A step samples examples at the rate of the silo's work. The dual a_i of a sampled example moves by d_i,
    which depends only on the model, a_i and the example. The products d_i x_i are clipped and summed, noise
    is added, and the noisy sum moves the model for the next step. The first result is xi times the total
    of the noisy sums.

    Formal guarantee: a_i is a function of example i, its own coins and released numbers. Therefore, whatever
    the coins of the other examples, replacing one example by a null example changes the sum of a step,
    before noise, by at most `clip` if that example is in the sample, and not at all otherwise. So each step
    is a Poisson-sampled Gaussian sum with the noise multiplier `noise`, although the silo keeps its duals.
    If persons are protected, all of this is true of a person: persons are sampled, all duals of a person move
    together, and the products of all rows of a person are added up before they are clipped.
    (Scores and sums are float64: in float32, the rounding of one example's score could depend on which
    other examples are in the sample.)
    """
    points, pairs = points_of(cohort.examples, cohort.task), pairs_of(cohort, request)
    if not len(pairs.places):
        return torch.zeros_like(request.models), request.duals
    hits, slots, drawn, dice = _draw(cohort, pairs, streams, round_, call)
    row = 8 * points.x.shape[1] * max(work.expected for work in cohort.work) * points.each
    width = max(1, int(CACHED / row))
    parts = []
    for start in range(0, len(pairs.places), width):
        cut = slice(start, start + width)
        batches = hits[cut], None if slots is None else slots[cut]
        parts.append(_apart(cohort, points, pairs.part(cut), batches, drawn[cut], dice[cut]))
    total, reached = (np.concatenate(each) for each in zip(*parts, strict=True))
    return answer(cohort, request, pairs, total, reached - pairs.duals)


def _apart(
    cohort: Cohort,
    points: Points,
    pairs: Pairs,
    batches: tuple[np.ndarray, np.ndarray | None],
    drawn: np.ndarray,
    dice: list[Dice],
) -> tuple[np.ndarray, np.ndarray]:
    """Take the steps of some pairs; return the total of the noisy sums and the duals reached.

    `batches` are hits `[pairs, steps, longest]` and, in a metered training, the slots of each step's hits.
    """
    hits, slots = batches
    deviation = np.where(pairs.noise == 0, 0.0, pairs.noise) * np.where(pairs.noise == 0, 1.0, pairs.clip)
    together = np.array([cohort.work[k].expected for k in pairs.silos]) * points.each
    model, stiffness = pairs.models.astype(np.float64), pairs.stiffness[:, None, None]
    total, reached = np.zeros_like(model), pairs.duals.copy()
    rows = np.arange(len(pairs.places))[:, None]
    for step in range(hits.shape[1]):
        example, real = _sampled(hits[:, step], None if slots is None else slots[:, step])
        example, real = points.rows_of(example), real.repeat(points.each, axis=1)
        place = example + points.longest * pairs.silos[:, None]
        real = real & points.real[place]
        x, norm = points.x[place].astype(np.float64), points.squared_norm[place]
        dual, score = reached[rows, example], np.matmul(x, model.transpose(0, 2, 1))
        curvature = np.maximum((pairs.stiffness * together)[:, None] * norm, LEAST_CURVATURE)
        move = best_move(cohort.task.loss, score, dual, points.y[place], curvature[:, :, None])
        move = move * real[:, :, None]
        if points.each == 1:
            move = clipped_moves(move, np.sqrt(norm), pairs.clip[:, None])
            noisy = np.matmul(move.transpose(0, 2, 1), x)
        else:
            move, noisy = clipped_together(move, x, points.each, pairs.clip[:, None])
        add_noise_to_array(noisy, np.where(pairs.counts > step, deviation, 0.0), drawn[:, step], dice)
        noisy[pairs.counts <= step] = 0
        np.add.at(reached, (rows, example), move.astype(np.float32))
        total, model = total + noisy, model + stiffness * noisy
    return total, reached


def clipped_moves(move: np.ndarray, norm: np.ndarray, clip: np.ndarray) -> np.ndarray:
    """Shrink moves `[..., outputs]` so that a move times its example stays within the clip.

    `norm` is the norm of each example. A move that is not finite becomes zero. An infinite clip means no
    clipping.
    """
    length = np.sqrt((move.astype(np.float64) ** 2).sum(-1)) * norm
    good = np.isfinite(length)
    room = np.where(good, length, 1.0) * (1 + ROUNDING)
    factor = np.where(room > clip, clip / np.maximum(room, LEAST_CURVATURE), 1.0)
    return np.where(good[..., None], move, 0.0) * factor[..., None]


def clipped_together(
    move: np.ndarray, x: np.ndarray, each: int, clip: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Shrink the moves of persons so that all rows of a person together stay within the clip.

    Return the moves, and the sum of their products with `x`, `[pairs, outputs, features]`. `move` `[pairs,
    persons * each, outputs]` and `x` hold the rows of a person next to each other. If a move of a person is
    not finite, none of them moves. The sum adds up the very products whose lengths were compared with the
    clip: moves that cancel out may be far longer than what is left of them, and so may their rounding be.
    """
    by_person = (len(move), -1, each)
    moves, rows = (part.reshape(*by_person, part.shape[-1]) for part in (move.astype(np.float64), x))
    good = np.isfinite(moves).all((2, 3), keepdims=True)
    moves = np.where(good, moves, 0.0)
    products = np.matmul(moves.swapaxes(2, 3), rows)
    length = np.sqrt((products**2).sum((2, 3)))
    finite = np.isfinite(length)  # finite moves may have an infinite sum: then nothing moves
    room = np.where(finite, length, 0.0) * (1 + ROUNDING)
    factor = np.where(room > clip, clip / np.maximum(room, LEAST_CURVATURE), 1.0)[..., None, None]
    moves, products = (np.where(finite[..., None, None], part, 0.0) * factor for part in (moves, products))
    return moves.reshape(move.shape), products.sum(1)


def answer(
    cohort: Cohort, request: DualRequest, pairs: Pairs, sums: np.ndarray, moved: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Return the share xi of sums and moves as tensors; pairs that take no part contribute zero."""
    xi = request.xi.reshape(-1).cpu().numpy()[pairs.places]
    vectors = linear_shape(cohort.task).vector(torch.from_numpy(sums)).float().numpy()
    up = np.zeros((len(request.xi.reshape(-1)), vectors.shape[1]), dtype=np.float32)
    up[pairs.places] = xi[:, None] * vectors
    duals = request.duals.cpu().numpy().copy()
    flat = duals.reshape(-1, *duals.shape[2:])
    flat[pairs.places] += xi[:, None, None] * moved.astype(np.float32)
    device = request.models.device
    return torch.from_numpy(up).reshape(request.models.shape).to(device), torch.from_numpy(duals).to(device)


def dice_of(cohort: Cohort, pairs: Pairs, streams: Streams, round_: int, call: int) -> list[Dice]:
    """Return the dice of each pair."""
    names, silos = cohort.examples.names, len(cohort.work)
    return [streams.dice(k // silos, names[k % silos], round_, call) for k in pairs.places.tolist()]


def _draw(
    cohort: Cohort, pairs: Pairs, streams: Streams, round_: int, call: int
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, list[Dice]]:
    """Return coins `[pairs, steps, longest]`, slots of hits, material of noise, and the pairs' dice.

    Slots are `[pairs, steps, most slots]`, or None in a simulation; material is `[pairs, steps, P]`.
    """
    silos, shape = len(cohort.work), linear_shape(cohort.task)
    most = int(pairs.counts.max(initial=0))
    hits = np.zeros((len(pairs.places), most, max(cohort.examples.sizes)), dtype=bool)
    slots = np.zeros((len(pairs.places), most, max(map(slots_for, cohort.work))), dtype=np.int64)
    dice = dice_of(cohort, pairs, streams, round_, call)
    drawn, placed = drawn_for(dice, most, cohort.task.layout.size), False
    for row, place in enumerate(pairs.places.tolist()):
        work, count = cohort.work[place % silos], int(pairs.counts[row])
        hits[row, :count, : work.size] = coins(dice[row], work, work.steps)[:count]
        dealt = dice[row].slots(hits[row], slots_for(work))
        if dealt is not None:
            placed = True
            slots[row, :, : slots_for(work)] = dealt
        if pairs.noise[row] > 0:
            fill(dice[row], drawn[row, :count])
    return hits, slots if placed else None, drawn[..., shape.places()], dice


def _sampled(hits: np.ndarray, slots: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples in each row's sample, padded, and which of them are real.

    With `slots` `[rows, most slots]`, each hit stands in its slot; otherwise hits stand one after the other.
    """
    counts = hits.sum(1)
    row, column = np.nonzero(hits)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    longest = max(1, int(counts.max(initial=0))) if slots is None else slots.shape[1]
    place = place if slots is None else slots[row, place]
    examples = np.zeros((len(hits), longest), dtype=np.int64)
    real = np.zeros(examples.shape, dtype=bool)
    examples[row, place], real[row, place] = column, True
    return examples, real
