"""Add noise to the sums of many pairs: seeded and fast, or exact and from a keystream, as the dice are."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ..noise.dice import KeyedDice
from ..noise.rounded import add_noise as add_exact_noise
from ..protocol.streams import FAST, Dice

# Numbers that a thread must have to pay off: after a product, torch's own threads hold the cores for a while.
WORTH_A_THREAD = 1_000_000
WORTH_A_CALL = 1_000  # numbers of a step that are worth a call of the dice of their own


def material_bytes(dice: list[Dice]) -> int:
    """Return the bytes that are drawn beforehand for the noise of a number."""
    return dice[0].material.itemsize if dice else FAST.itemsize


def drawn_for(dice: list[Dice], steps: int, size: int) -> np.ndarray:
    """Return zeros `[pairs, steps, size]` of the type that the dice fill in; each step is contiguous."""
    by_step = np.zeros((steps, len(dice), size), dtype=dice[0].material if dice else FAST)
    return by_step.swapaxes(0, 1)


def fill(dice: Dice, out: np.ndarray) -> None:
    """Draw the material of one pair's steps `[steps, size]`, which may lie apart in memory."""
    if out.flags.c_contiguous:
        dice.fill(out)
    elif out.shape[1] >= WORTH_A_CALL:
        for step in out:
            dice.fill(step)
    else:
        together = np.empty(out.shape, dtype=out.dtype)
        dice.fill(together)
        out[...] = together


def add_noise(sums: Tensor, deviation: Tensor, drawn: np.ndarray, dice: list[Dice]) -> Tensor:
    """Return float64 sums `[pairs, size]` plus noise of deviations `[pairs, 1]`; `sums` may change."""
    if drawn.dtype == FAST:
        sums += deviation * torch.from_numpy(drawn).to(sums.device)
        return sums
    values = sums.cpu().contiguous().numpy()
    _add_exactly(values, deviation.reshape(-1).double().cpu().numpy(), drawn, dice)
    return torch.from_numpy(values).to(sums.device)


def add_noise_to_array(sums: np.ndarray, deviation: np.ndarray, drawn: np.ndarray, dice: list[Dice]) -> None:
    """Add noise of each pair's deviation `[pairs]` to float64 sums `[pairs, ...]`, in place."""
    if drawn.dtype == FAST:
        sums += deviation.reshape(-1, *[1] * (sums.ndim - 1)) * drawn.reshape(sums.shape)
    else:
        flat = np.ascontiguousarray(sums).reshape(len(sums), -1)
        _add_exactly(flat, deviation, drawn.reshape(flat.shape), dice)
        sums[...] = flat.reshape(sums.shape)


def _add_exactly(values: np.ndarray, deviations: np.ndarray, drawn: np.ndarray, dice: list[Dice]) -> None:
    """Add exact noise to the rows of `values`, in place, on several cores where that pays."""
    keyed = [one for one in dice if isinstance(one, KeyedDice)]
    if len(keyed) != len(dice):
        raise ValueError("all pairs draw exact noise, or none does")
    words = np.ascontiguousarray(drawn)
    parts = max(1, min(torch.get_num_threads(), len(values), values.size // WORTH_A_THREAD))
    if parts == 1:
        add_exact_noise(values, deviations, words, keyed)
        return

    def add(rows: slice) -> None:
        add_exact_noise(values[rows], deviations[rows], words[rows], keyed[rows])

    bounds = np.linspace(0, len(values), parts + 1).astype(int).tolist()
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(add, itertools.starmap(slice, itertools.pairwise(bounds))))
