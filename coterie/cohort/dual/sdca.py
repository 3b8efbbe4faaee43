"""Move dual coordinates one after the other (SDCA), in all silos and runs at once, and clip the upload.

Python takes one step per coordinate, on arrays with one row per pair. How a move affects the other examples
of its silo follows from their inner products, which are computed once if they fit into memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...protocol.doors import Work
from ...protocol.streams import Dice, Streams
from ...tasks.task import Task
from ..derived import derived
from ..dp_sgd import Cohort
from ..examples import Examples
from ..gradients.clipping import ROUNDING
from ..noise import add_noise_to_array, drawn_for
from .linear import Points, linear_shape, points_of
from .sampled import LEAST_CURVATURE, DualRequest, Pairs, answer, best_move, dice_of, pairs_of

SENSITIVITY = 2.0  # times the clip: one example may change the whole upload
BLOCK = 16  # turns after which the scores of all examples are updated


@np.errstate(over="ignore", invalid="ignore")  # values that are not finite count as zero
def solve_in_turn(
    cohort: Cohort, request: DualRequest, streams: Streams, round_: int, call: int
) -> tuple[Tensor, Tensor]:
    """Move duals one after the other, each taking earlier moves into account; return noisy uploads and duals.

    `steps` times `batch` coordinates move, in passes over the examples in random order. The upload X d is
    clipped as a whole.

    Formal guarantee: whatever a silo holds, its upload before noise has norm at most `clip`, so it differs
    by at most twice the clip between any two data sets. With noise of standard deviation 2 x clip x `noise`,
    a call is one Gaussian release, with the noise multiplier `noise`, of everything the silo has, including
    the duals it keeps.

    With `request.unproven` = (s, sigma2) nothing is guaranteed: the noise is that of Hu, Guo, Li, Pei, Gong
    2020, with standard deviation s / size on duals and 2 xi |d| sigma2 on uploads, d being the moves.
    """
    points, pairs = points_of(cohort.examples, cohort.task), pairs_of(cohort, request)
    if not len(pairs.places):
        return torch.zeros_like(request.models), request.duals
    silos = len(cohort.work)
    dual_noise = np.zeros_like(pairs.duals)
    dice = dice_of(cohort, pairs, streams, round_, call)
    orders, drawn = [], drawn_for(dice, 1, cohort.task.layout.size)[:, 0]
    for row, place in enumerate(pairs.places.tolist()):
        work = cohort.work[place % silos]
        members = order(dice[row], work, int(pairs.counts[row]))
        orders.append(_rows_in_turn(points, members, place % silos))
        if request.unproven is not None:
            count = work.size * points.each
            material = np.empty((count, dual_noise.shape[2]), dtype=drawn.dtype)
            dice[row].fill(material)
            dual_noise[row, :count] = dice[row].noisy(np.zeros(material.shape), 1.0, material) / work.size
        if pairs.noise[row] > 0 or request.unproven is not None:
            dice[row].fill(drawn[row])
    drawn = drawn[:, linear_shape(cohort.task).places()]
    reached = _moved(cohort, points, pairs, orders)
    moved = np.where(np.isfinite(reached), reached, pairs.duals) - pairs.duals
    x = points.x.reshape(silos, points.longest, -1)
    if request.unproven is not None:
        on_duals, sigma = (part.reshape(-1).cpu().double().numpy()[pairs.places] for part in request.unproven)
        sums = _products(moved.transpose(0, 2, 1), x, pairs.silos)
        length = 2 * sigma * np.sqrt((moved.astype(np.float64) ** 2).sum((1, 2)))
        share = request.xi.reshape(-1).cpu().double().numpy()[pairs.places]
        noisy = sums.astype(np.float64)
        add_noise_to_array(noisy, length, drawn, dice)
        return answer(cohort, request, pairs, noisy, moved + (on_duals / share)[:, None, None] * dual_noise)
    sums = _products(moved.transpose(0, 2, 1), x, pairs.silos).astype(np.float64)
    room = np.sqrt((sums**2).sum((1, 2))) * (1 + ROUNDING)
    good = np.isfinite(room)  # finite moves may have an infinite sum: then nothing is sent
    room = np.where(good, room, 0.0)
    sums, moved = (np.where(good[:, None, None], part, 0.0) for part in (sums, moved))
    factor = np.where(room > pairs.clip, pairs.clip / np.maximum(room, LEAST_CURVATURE), 1.0)[:, None, None]
    deviation = np.where(pairs.noise > 0, SENSITIVITY * pairs.noise, 0.0)
    scale = np.where(pairs.noise > 0, pairs.clip, 1.0)
    noisy = factor * sums
    add_noise_to_array(noisy, deviation * scale, drawn, dice)
    return answer(cohort, request, pairs, noisy, factor * moved)


def order(dice: Dice, work: Work, steps: int) -> np.ndarray:
    """Return the examples in the order in which their duals move: random passes over all of them."""
    wanted = round(steps * work.expected)
    passes = [dice.permutation(work.size) for _ in range(-(-wanted // work.size))]
    return np.concatenate([np.zeros(0, dtype=np.int64), *passes])[:wanted]


def _rows_in_turn(points: Points, members: np.ndarray, silo: int) -> np.ndarray:
    """Return the rows of members of a silo in their order, without padding."""
    rows = points.rows_of(members)
    return rows if points.each == 1 else rows[points.real[rows + points.longest * silo]]


def _moved(cohort: Cohort, points: Points, pairs: Pairs, orders: list[np.ndarray]) -> np.ndarray:
    """Return the duals after all moves, computed block by block."""
    silos, longest = len(cohort.work), points.longest
    lengths = np.array([len(examples) for examples in orders], dtype=np.int64)
    padded = np.zeros((len(orders), lengths.max(initial=0)), dtype=np.int64)
    for row, examples in enumerate(orders):
        padded[row, : len(examples)] = examples
    real = np.arange(padded.shape[1]) < lengths[:, None]
    reached, stiffness = pairs.duals.copy(), pairs.stiffness.astype(np.float32)[:, None, None]
    x, model = points.x.reshape(silos, longest, -1), pairs.models.copy()
    known = 4 * silos * longest**2 <= cohort.memory / 4
    scores = _products(x, model.transpose(0, 2, 1), pairs.silos, first=True) if known else np.empty(0)
    for start in range(0, padded.shape[1], BLOCK):
        cut = slice(start, start + BLOCK)
        block = Block(padded[:, cut], padded[:, cut] + longest * pairs.silos[:, None], real[:, cut])
        if known:
            rows = _grams(cohort.examples, cohort.task)[block.rows]
            among = np.take_along_axis(rows, block.examples[:, None, :], axis=2)
            score = np.take_along_axis(scores, block.examples[:, :, None], axis=1)
            moves = _turns(cohort.task.loss, points, pairs.stiffness, reached, score, among, block)
            scores += stiffness * np.matmul(rows.transpose(0, 2, 1), moves)
        else:
            moving = points.x[block.rows]
            among = np.matmul(moving, moving.transpose(0, 2, 1))
            score = np.matmul(moving, model.transpose(0, 2, 1))
            moves = _turns(cohort.task.loss, points, pairs.stiffness, reached, score, among, block)
            model += stiffness * np.matmul(moves.transpose(0, 2, 1), moving)
    return reached


class Block(NamedTuple):
    """A block of turns, all `[pairs, turns]`: the examples that move, their rows, and which are real."""

    examples: np.ndarray
    rows: np.ndarray
    real: np.ndarray


def _turns(
    loss: str,
    points: Points,
    stiffness: np.ndarray,
    reached: np.ndarray,
    score: np.ndarray,
    among: np.ndarray,
    block: Block,
) -> np.ndarray:
    """Move duals one after the other, in place, and return the moves `[pairs, turns, outputs]`.

    `score` `[pairs, turns, outputs]` holds the scores before the block, `among` the inner products of the
    block's examples.
    """
    pairs = np.arange(len(reached))
    curvature = np.maximum(stiffness[:, None] * points.squared_norm[block.rows], LEAST_CURVATURE)
    curvature, target = curvature.astype(np.float32)[:, :, None], points.y[block.rows]
    real, scaled = (
        block.real[:, :, None],
        stiffness.astype(np.float32)[:, None, None, None] * among[..., None],
    )
    moves = np.empty_like(score)
    for turn in range(score.shape[1]):
        moving = (pairs, block.examples[:, turn])
        dual = reached[moving]
        move = best_move(loss, score[:, turn], dual, target[:, turn], curvature[:, turn]) * real[:, turn]
        reached[moving] = dual + move
        moves[:, turn] = move
        score[:, turn + 1 :] += scaled[:, turn, turn + 1 :] * move[:, None]
    return moves


@derived
def _grams(examples: Examples, task: Task) -> np.ndarray:
    """Return the inner products of each silo's examples, `[rows, longest]`."""
    points = points_of(examples, task)
    x = points.x.reshape(len(examples.names), points.longest, -1)
    products: np.ndarray = np.matmul(x, x.transpose(0, 2, 1))
    return products.reshape(-1, points.longest)


def _products(left: np.ndarray, right: np.ndarray, silos: np.ndarray, first: bool = False) -> np.ndarray:
    """Multiply matrices of pairs by those of their silos, which are the `first` factor or the second."""
    if len(silos) == len(left if first else right) and (silos == np.arange(len(silos))).all():
        products: np.ndarray = np.matmul(left, right)
        return products
    if first:
        return np.stack([left[k] @ of_pair for k, of_pair in zip(silos, right, strict=True)])
    return np.stack([of_pair @ right[k] for k, of_pair in zip(silos, left, strict=True)])
