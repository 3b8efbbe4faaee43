"""How noise lies in memory, and how many threads add it, never changes what is released."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.cohort import noise
from coterie.noise.dice import KeyedDice
from coterie.protocol.streams import SeededStreams


def keyed(pairs: int) -> list[KeyedDice]:
    return [KeyedDice(bytes([k + 1]) * 32) for k in range(pairs)]


def seeded(pairs: int) -> list:
    return [SeededStreams(((0, 0),)).dice(0, f"s{k}", 0, 0) for k in range(pairs)]


@pytest.mark.parametrize("make", [keyed, seeded])
@pytest.mark.parametrize("size", [1, 29, noise.WORTH_A_CALL, noise.WORTH_A_CALL + 1])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_pair_draws_its_steps_one_after_the_other(make, size, steps):
    drawn, expected = noise.drawn_for(make(3), steps, size), np.zeros((3, steps, size))
    expected = expected.astype(drawn.dtype)
    for pair, (dice, again) in enumerate(zip(make(3), make(3), strict=True)):
        noise.fill(dice, drawn[pair])
        again.fill(expected[pair])
    np.testing.assert_array_equal(drawn, expected)
    assert all(drawn[:, step].flags.c_contiguous for step in range(steps))


def test_a_pair_with_fewer_steps_leaves_the_others_alone():
    drawn = noise.drawn_for(keyed(2), 4, 50)
    noise.fill(keyed(2)[1], drawn[1, :2])
    assert drawn[1, :2].all()
    assert not drawn[0].any()
    assert not drawn[1, 2:].any()


@pytest.mark.parametrize("pairs", [2, 3, 5])
def test_threads_add_the_same_exact_noise(monkeypatch, pairs):
    results = []
    for worth, threads in ((10**9, 1), (1, 2), (1, 3)):
        monkeypatch.setattr(noise, "WORTH_A_THREAD", worth)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        dice, sums = keyed(pairs), torch.linspace(-2, 2, pairs * 500, dtype=torch.float64).reshape(pairs, 500)
        drawn = noise.drawn_for(dice, 2, 500)
        for pair, one in enumerate(dice):
            noise.fill(one, drawn[pair])
        deviation = torch.arange(pairs).reshape(-1, 1) * 0.7
        results.append(noise.add_noise(sums, deviation, drawn[:, 1], dice))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0][1], torch.linspace(-2, 2, pairs * 500).double().reshape(pairs, 500)[1])
