"""Add noise to the sums of many pairs: seeded and fast, or exact and from a keystream, as the dice are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ..noise.dice import KeyedDice
from ..noise.rounded import add_noise as add_exact_noise
from ..protocol.streams import FAST, Dice

WORTH_A_THREAD = 50_000  # numbers that a thread must have to pay off


def material_bytes(dice: list[Dice]) -> int:
    """Return the bytes that are drawn beforehand for the noise of a number."""
    return dice[0].material.itemsize if dice else FAST.itemsize


def drawn_for(dice: list[Dice], steps: int, size: int) -> np.ndarray:
    """Return zeros `[pairs, steps, size]` of the type that the dice fill in."""
    return np.zeros((len(dice), steps, size), dtype=dice[0].material if dice else FAST)


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

    def add(rows: slice) -> None:
        add_exact_noise(values[rows], deviations[rows], words[rows], keyed[rows])

    parts = max(1, min(torch.get_num_threads(), len(values), values.size // WORTH_A_THREAD))
    bounds = np.linspace(0, len(values), parts + 1).astype(int).tolist()
    cuts = [slice(first, last) for first, last in zip(bounds[:-1], bounds[1:], strict=True)]
    if parts == 1:
        add(cuts[0])
    else:
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(add, cuts))
