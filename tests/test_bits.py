"""The attack on bits: who knows everything but one example and the noise asks whether a release is possible.

Float32 noise on a float64 sum leaves numbers that cannot occur. One that cannot occur without the example
betrays it, however large the noise is. The attack is run on both kinds of streams: the seeded ones of a simulation
(float32 noise; it succeeds, so it is a real attack) and the keyed ones of a metered training (it guesses).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from coterie.cohort import dp_sgd
from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.dual import sampled, sdca
from coterie.cohort.dual.sampled import DualRequest, solve_apart
from coterie.cohort.dual.sdca import solve_in_turn
from coterie.cohort.examples import Examples
from coterie.cohort.merging import PrivateMerger
from coterie.guard.secret_streams import EntropyStreams
from coterie.methods import IFCA, MRMTL, Dual, FedAvg
from coterie.noise.dice import KeyedDice
from coterie.noise.rounded import grid_exponent
from coterie.protocol.doors import Work
from coterie.protocol.merging import MergeRule
from coterie.protocol.roster import Roster
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import Task
from tests.helpers import experiment, reference_vectors, vectors

SILOS, PARAMETERS, ROWS, NOISE, CLIP = 1000, 650, 4, 64.0, 0.25
CHANCE = 1e-6


def seeded():
    return SeededStreams(((0, 0),))


def keyed():
    names = [f"s{k}" for k in range(SILOS)]
    streams = EntropyStreams({name: name.encode().ljust(32) for name in names})
    for name in names:
        streams.begin(name, "row")
    return streams


class Products(nn.Module):
    """A linear model without bias."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, PARAMETERS))

    def forward(self, x):
        return x @ self.weight.T


def cohort(rate=1.0):
    """A thousand silos, each a release: all examples are in every batch, and each is clipped."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SILOS, ROWS, PARAMETERS, generator=generator)
    x /= 2 * x.norm(dim=-1, keepdim=True)
    y = 3 + torch.rand(SILOS, ROWS, generator=generator)
    names = tuple(f"s{k}" for k in range(SILOS))
    full = torch.ones(1, SILOS)
    task = Task(Products, "squared", (PARAMETERS,))
    examples = Examples(names, (ROWS,) * SILOS, x, y, 1.0)
    settings = Settings(ROWS * full, CLIP * full, NOISE * full)
    return Cohort(task, examples, (Work(ROWS, ROWS, 1),) * SILOS, settings)


def without(made: Cohort, silos) -> Cohort:
    """The cohort in which the first example of some silos is a null example."""
    x, y = made.examples.x.clone(), made.examples.y.clone()
    x[silos, 0] = 0
    y[silos, 0] = 0
    return replace(made, examples=replace(made.examples, x=x, y=y))


def by_descend(made, streams):
    """One step from zero with lr = batch: what is released is the noisy sum."""
    return -descend(made, torch.zeros(1, SILOS, PARAMETERS), streams, 0, 0)[0].double().numpy()


def request():
    start, duals = torch.zeros(1, SILOS, PARAMETERS), torch.zeros(1, SILOS, ROWS, 1)
    return DualRequest(start, duals, torch.ones(1, SILOS), torch.ones(1, SILOS), None)


def by_duals(made, streams):
    return solve_apart(made, request(), streams, 0, 0)[0][0].double().numpy()


def by_duals_in_turn(made, streams):
    return solve_in_turn(made, request(), streams, 0, 0)[0][0].double().numpy()


def sums_of(release, made, monkeypatch):
    """The sums, as the machine computes them, of everything but the noise."""
    caught = []

    def tensor(sums, deviation, drawn, dice):
        caught.append(sums.double().numpy().copy())
        return sums

    def array(sums, deviation, drawn, dice):
        caught.append(sums.reshape(len(sums), -1).copy())

    with monkeypatch.context() as patch:
        patch.setattr(dp_sgd, "add_noise", tensor)
        patch.setattr(sampled, "add_noise_to_array", array)
        patch.setattr(sdca, "add_noise_to_array", array)
        release(made, seeded())
    return np.concatenate(caught)


def impossible(released: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which releases are no float32 noise plus a known sum, rounded to float32: `[silos]`."""
    near, seen = (released - known).astype(np.float32), released.astype(np.float32)
    candidates = [near]
    for way in (-np.inf, np.inf):
        other = near
        for _ in range(2):
            other = np.nextafter(other, np.float32(way))
            candidates.append(other)
    possible = np.zeros(released.shape, dtype=bool)
    for noise in candidates:
        possible |= (known + noise.astype(np.float64)).astype(np.float32) == seen
    return ~possible.all(axis=1)


def attack(release, streams, monkeypatch, seed=1):
    """Return how many of a thousand guesses are right, and how often the truth was refuted."""
    made = cohort()
    generator = np.random.default_rng(seed)
    there = generator.random(SILOS) < 0.5
    hidden = without(made, torch.from_numpy(np.flatnonzero(~there)))
    with_it = sums_of(release, made, monkeypatch)
    without_it = sums_of(release, without(made, slice(None)), monkeypatch)
    released = release(hidden, streams)
    no_with, no_without = impossible(released, with_it), impossible(released, without_it)
    guess = np.where(no_with == no_without, generator.random(SILOS) < 0.5, no_without)
    refuted = np.where(there, no_with, no_without)
    return int((guess == there).sum()), int(refuted.sum()), released


DOORS = [by_descend, by_duals, by_duals_in_turn]


@pytest.mark.parametrize("release", DOORS)
def test_the_attack_reads_the_bits_of_float32_noise(release, monkeypatch):
    """A simulation's noise is float32, and anyone with the seed knows it anyway. The attack is real."""
    right, refuted, _ = attack(release, seeded(), monkeypatch)
    assert refuted == 0
    assert stats.binomtest(right, SILOS, 0.5).pvalue < CHANCE


@pytest.mark.parametrize("release", DOORS)
def test_the_attack_guesses_where_noise_is_exact(release, monkeypatch):
    right, _, released = attack(release, keyed(), monkeypatch)
    assert stats.binomtest(right, SILOS, 0.5).pvalue > CHANCE
    deviation = NOISE * CLIP * (2 if release is by_duals_in_turn else 1)
    cells = released / 2.0 ** grid_exponent(deviation)
    assert np.array_equal(cells, np.rint(cells)), "a release lies between points of the grid"
    # the low bits of a cell are even coins, whatever the sum was
    low = np.rint(cells).astype(np.int64) & 0xF
    assert stats.chisquare(np.bincount(low.reshape(-1), minlength=16)).pvalue > CHANCE
    assert np.std(released) == pytest.approx(deviation, rel=0.01)


@pytest.mark.parametrize("where", ["server", "silos"])
def test_merges_lie_on_the_grid(where):
    """With a cohort of four the mean is a quarter of the sum."""
    names = ("s0", "s1", "s2", "s3")
    roster = Roster(names, torch.ones(4), torch.ones(1, 4))
    uploads = torch.randn(1, 4, 5000, generator=torch.Generator().manual_seed(2))
    rule = MergeRule(torch.full((1,), NOISE), torch.ones(1), 4.0, where=where)
    merged = PrivateMerger.of(roster, rule, keyed(), uploads).mean(uploads)[0, 0].double().numpy()
    deviation = rule.scale * NOISE
    cells = 4 * merged / 2.0 ** grid_exponent(deviation)
    assert np.array_equal(cells, np.rint(cells))
    low = np.rint(cells).astype(np.int64) & 0xF
    assert stats.chisquare(np.bincount(low, minlength=16)).pvalue > CHANCE
    draws = 1 if where == "server" else 4
    assert stats.kstest(4 * merged / (deviation * math.sqrt(draws)), "norm").pvalue > CHANCE


def test_rows_of_a_mix_lie_on_the_grid():
    names = ("s0", "s1")
    roster = Roster(names, torch.ones(2), torch.ones(1, 2))
    uploads = torch.randn(1, 2, 3000, generator=torch.Generator().manual_seed(2))
    rule = MergeRule(torch.full((1,), NOISE), torch.ones(1), 2.0)
    matrix = torch.tensor([[0.3, 0.7], [1.0, 0.0]])
    rows = PrivateMerger.of(roster, rule, keyed(), uploads).mix(uploads, matrix)[0].double().numpy()
    reach = float(matrix.double().norm(dim=0).max())
    cells = rows / 2.0 ** grid_exponent(NOISE * reach)
    assert np.array_equal(cells, np.rint(cells))
    assert abs(np.corrcoef(rows)[0, 1]) < 5 / math.sqrt(3000)


class Known:
    """Keyed streams of one run whose keys are known, for both engines."""

    def __init__(self, run=0):
        self.run = run

    def dice(self, run, silo, round_, call):
        return KeyedDice(hashlib.sha256(f"{self.run + run} {silo} {round_} {call}".encode()).digest())

    def merging(self, run, silo, round_):
        return KeyedDice(hashlib.sha256(f"merge {self.run + run} {silo} {round_}".encode()).digest())

    def for_run(self, run):
        return Known(self.run + run)


@pytest.mark.parametrize("method", [FedAvg(), MRMTL(lam=0.5), IFCA(clusters=2), Dual()], ids=lambda m: m.name)
def test_both_engines_agree_on_exact_noise(method, federation):
    """What is drawn does not depend on the order in which an engine asks for it."""
    made = experiment(federation, method)
    fast = vectors(made, Known())[0]
    assert torch.allclose(fast, reference_vectors(made, 0, Known()), atol=1e-4)


def test_a_private_choice_has_the_scale_that_is_planned(monkeypatch, federation):
    """In float64, as it was certified: nothing pays for a smaller one."""
    scales = []
    real = KeyedDice.choose
    monkeypatch.setattr(
        KeyedDice,
        "choose",
        lambda self, penalties, scale: scales.append(scale) or real(self, penalties, scale),
    )
    made = experiment(federation, IFCA(clusters=2))
    vectors(made, Known())
    assert set(scales) == {silo.choice_noise for silo in made.plan().silos[0]}
