"""Dual coordinates one after the other (SDCA), in all silos and runs at once; the upload is clipped whole.

Python takes a step for each coordinate, on arrays with a row for each pair. What a move does to the other
examples of its silo is read off their products, which are made once where they fit into the memory.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...protocol.doors import Work
from ...protocol.streams import Streams
from ...tasks.task import Task
from ..derived import derived
from ..dp_sgd import Cohort
from ..examples import Examples
from ..gradients.clipping import ROUNDING
from .linear import Points, linear_shape, points_of
from .sampled import LEAST_CURVATURE, Asked, Pairs, answer, best_move, pairs_of

SENSITIVITY = 2.0  # times the clip: one example may change all of an upload
BLOCK = 16  # turns after which the scores of all are brought up to date


@np.errstate(over="ignore", invalid="ignore")  # what is not finite counts as nothing
def solve_in_turn(
    cohort: Cohort, asked: Asked, streams: Streams, round_: int, call: int
) -> tuple[Tensor, Tensor]:
    """Move duals one after the other, each seeing those before it; give noisy uploads and duals.

    `steps` times `batch` coordinates, in passes over the examples in random order. The upload X d is
    clipped whole.

    Formal guarantee: whatever a silo holds, its upload before noise lies within `clip` of 0, so any two
    data sets move it by at most twice the clip. With noise of deviation 2 x clip x `noise`, a call is one
    Gaussian release with the multiplier `noise` of all that the silo has, kept duals included.

    With `asked.unproven` = (s, sigma2) there is no guarantee at all: noise is that of Hu, Guo, Li, Pei, Gong
    2020, of deviation s / size on duals and 2 xi |d| sigma2 on uploads, d the moves themselves.
    """
    points, pairs = points_of(cohort.examples, cohort.task), pairs_of(cohort, asked)
    if not len(pairs.places):
        return torch.zeros_like(asked.models), asked.duals
    silos = len(cohort.work)
    beside = np.zeros_like(pairs.duals)
    orders, drawn = [], np.zeros((len(pairs.places), cohort.task.layout.size), dtype=np.float32)
    for row, place in enumerate(pairs.places.tolist()):
        name, own = cohort.examples.names[place % silos], cohort.work[place % silos]
        sampler, dice = streams.generators(place // silos, name, round_, call)
        orders.append(order(sampler, own, int(pairs.counts[row])))
        if asked.unproven is not None:
            beside[row, : own.size] = (
                dice.standard_normal((own.size, beside.shape[2]), dtype=np.float32) / own.size
            )
        if pairs.noise[row] > 0 or asked.unproven is not None:
            dice.standard_normal(dtype=np.float32, out=drawn[row])
    noises = linear_shape(cohort.task).matrix(torch.from_numpy(drawn)).double().numpy()
    reached = _moved(cohort, points, pairs, orders)
    moved = np.where(np.isfinite(reached), reached, pairs.duals) - pairs.duals
    x = points.x.reshape(silos, points.longest, -1)
    if asked.unproven is not None:
        spread, sigma = (part.reshape(-1).cpu().double().numpy()[pairs.places] for part in asked.unproven)
        sums = _products(moved.transpose(0, 2, 1), x, pairs.silos)
        length = 2 * sigma * np.sqrt((moved.astype(np.float64) ** 2).sum((1, 2)))
        share = asked.xi.reshape(-1).cpu().double().numpy()[pairs.places]
        noisy = sums + length[:, None, None] * noises
        return answer(cohort, asked, pairs, noisy, moved + (spread / share)[:, None, None] * beside)
    sums = _products(moved.transpose(0, 2, 1), x, pairs.silos).astype(np.float64)
    room = np.sqrt((sums**2).sum((1, 2))) * (1 + ROUNDING)
    good = np.isfinite(room)  # moves that are finite may add up to what is not: then nothing is sent
    room = np.where(good, room, 0.0)
    sums, moved = (np.where(good[:, None, None], part, 0.0) for part in (sums, moved))
    factor = np.where(room > pairs.clip, pairs.clip / np.maximum(room, LEAST_CURVATURE), 1.0)[:, None, None]
    deviation = np.where(pairs.noise > 0, SENSITIVITY * pairs.noise, 0.0)
    scale = np.where(pairs.noise > 0, pairs.clip, 1.0)
    noisy = factor * sums + (deviation * scale)[:, None, None] * noises
    return answer(cohort, asked, pairs, noisy, factor * moved)


def order(sampler: np.random.Generator, work: Work, steps: int) -> np.ndarray:
    """Give the examples in the order in which their duals move: passes in random order."""
    wanted = round(steps * work.expected)
    passes = [sampler.permutation(work.size) for _ in range(-(-wanted // work.size))]
    return np.concatenate([np.zeros(0, dtype=np.int64), *passes])[:wanted]


def _moved(cohort: Cohort, points: Points, pairs: Pairs, orders: list[np.ndarray]) -> np.ndarray:
    """Give the duals after all moves, which are made a block at a time."""
    silos, longest = len(cohort.work), points.longest
    lengths = np.array([len(own) for own in orders], dtype=np.int64)
    padded = np.zeros((len(orders), lengths.max(initial=0)), dtype=np.int64)
    for row, own in enumerate(orders):
        padded[row, : len(own)] = own
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
            own = points.x[block.rows]
            among, score = np.matmul(own, own.transpose(0, 2, 1)), np.matmul(own, model.transpose(0, 2, 1))
            moves = _turns(cohort.task.loss, points, pairs.stiffness, reached, score, among, block)
            model += stiffness * np.matmul(moves.transpose(0, 2, 1), own)
    return reached


class Block(NamedTuple):
    """Some turns, `[pairs, turns]`: the examples that move, their rows among all, and which are real."""

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
    """Move duals one after the other, in place, and give the moves `[pairs, turns, outputs]`.

    `score` `[pairs, turns, outputs]` are those before the block, `among` the products of its examples.
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
        own = (pairs, block.examples[:, turn])
        dual = reached[own]
        move = best_move(loss, score[:, turn], dual, target[:, turn], curvature[:, turn]) * real[:, turn]
        reached[own] = dual + move
        moves[:, turn] = move
        score[:, turn + 1 :] += scaled[:, turn, turn + 1 :] * move[:, None]
    return moves


@derived
def _grams(examples: Examples, task: Task) -> np.ndarray:
    """Give the products of each silo's examples, `[rows, longest]`."""
    points = points_of(examples, task)
    x = points.x.reshape(len(examples.names), points.longest, -1)
    products: np.ndarray = np.matmul(x, x.transpose(0, 2, 1))
    return products.reshape(-1, points.longest)


def _products(left: np.ndarray, right: np.ndarray, silos: np.ndarray, first: bool = False) -> np.ndarray:
    """Multiply matrices of pairs with those of their silos, which are the first factor or the second."""
    if len(silos) == len(left if first else right) and (silos == np.arange(len(silos))).all():
        whole: np.ndarray = np.matmul(left, right)
        return whole
    if first:
        return np.stack([left[k] @ own for k, own in zip(silos, right, strict=True)])
    return np.stack([own @ right[k] for k, own in zip(silos, left, strict=True)])
