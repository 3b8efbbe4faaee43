"""Dual coordinates one after the other (SDCA), in all silos and runs at once; the upload is clipped whole.

Python takes a step for each coordinate, on arrays with a row for each pair. What a move does to the other
examples of its silo is read off their products, which are made once where they fit into the memory.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from ..streams import Streams
from ..task import Task
from .descend import Cohort
from .duals import LEAST_CURVATURE, Asked, Pairs, answer, best_move, pairs_of
from .examples import Examples
from .gradients import ROUNDING
from .linear import Points, linear_shape, points_of
from .sampling import Work

SENSITIVITY = 2.0  # times the clip: one example may change all of an upload
BLOCK = 64  # coordinates whose products are made at a time, where those of all do not fit


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
    points, pairs = points_of(cohort.task, cohort.examples), pairs_of(cohort, asked)
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
    """Give the duals after all moves."""
    silos, longest = len(cohort.work), points.longest
    lengths = np.array([len(own) for own in orders], dtype=np.int64)
    padded = np.zeros((lengths.max(initial=0), len(orders)), dtype=np.int64)
    for row, own in enumerate(orders):
        padded[: len(own), row] = own
    real = np.arange(len(padded))[:, None] < lengths
    reached, loss = pairs.duals.copy(), cohort.task.loss
    x = points.x.reshape(silos, longest, -1)
    if 4 * silos * longest**2 <= cohort.memory / 4:
        scores = _products(x, pairs.models.transpose(0, 2, 1), pairs.silos, first=True)
        rows = padded + longest * pairs.silos
        grams = _grams(cohort.task, cohort.examples)
        _turns(loss, points, pairs.stiffness, reached, scores, (padded, padded, rows, real), grams, rows)
        return reached
    model = pairs.models.copy()
    for start in range(0, len(padded), BLOCK):
        part = padded[start : start + BLOCK]
        own = points.x[part.T + longest * pairs.silos[:, None]]
        grams = np.matmul(own, own.transpose(0, 2, 1))
        count = len(part)
        before = reached.copy()
        scores = np.matmul(own, model.transpose(0, 2, 1))
        local = np.broadcast_to(np.arange(count)[:, None], part.shape)
        rows = part + longest * pairs.silos
        among = local + count * np.arange(part.shape[1])
        turns = (local, part, rows, real[start : start + BLOCK])
        _turns(loss, points, pairs.stiffness, reached, scores, turns, grams.reshape(-1, count), among)
        moves = _products((reached - before).transpose(0, 2, 1), x, pairs.silos)
        model = model + pairs.stiffness[:, None, None].astype(np.float32) * moves
    return reached


def _turns(
    loss: str,
    points: Points,
    stiffness: np.ndarray,
    reached: np.ndarray,
    scores: np.ndarray,
    turns: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    grams: np.ndarray,
    among: np.ndarray,
) -> None:
    """Move duals one after the other, in place; `scores` are kept up by the products of examples.

    `turns` are, `[turns, pairs]`: where a score stands, the example, its row among all, and whether it is
    real; `among` says which row of the products is its own.
    """
    slots, examples, rows, real = turns
    count, width = slots.shape[1], grams.shape[1]
    curvature = np.maximum(stiffness * points.squared_norm[rows], LEAST_CURVATURE).astype(np.float32)
    target, scale = points.y[rows].transpose(0, 2, 1), (stiffness * real).astype(np.float32)
    flat = np.ascontiguousarray(scores.transpose(2, 0, 1)).reshape(-1, count * width)
    duals = reached.reshape(-1, reached.shape[2])
    slots = slots + width * np.arange(count)
    examples = examples + reached.shape[1] * np.arange(count)
    held, change = np.empty((2, count, width), dtype=np.float32)
    for turn in range(len(slots)):
        own = examples[turn]
        dual = duals[own].T
        move = best_move(loss, flat[:, slots[turn]], dual, target[turn], curvature[turn])
        duals[own] = (dual + move * real[turn]).T
        np.take(grams, among[turn], axis=0, out=held, mode="clip")
        for score, step in zip(flat, scale[turn] * move, strict=True):
            np.multiply(held, step[:, None], out=change)
            score += change.reshape(-1)


@functools.lru_cache(maxsize=1)
def _grams(task: Task, examples: Examples) -> np.ndarray:
    """Give the products of each silo's examples, `[rows, longest]`."""
    points = points_of(task, examples)
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
