"""How passes are drawn: every example once, in a uniform step, on its own; and where their examples stand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.cohort import dp_sgd
from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.examples import Examples
from coterie.cohort.sampling import Draws, coins, slots_for, width_for
from coterie.errors import Problem
from coterie.noise.dice import KeyedDice
from coterie.noise.places import uniform_places
from coterie.privacy.events import Event
from coterie.privacy.pld.allocation import REDRAWN
from coterie.protocol.doors import ALLOCATION, DESCEND, SOLVE_DUAL, Noise, Work, epochs_of_work
from coterie.protocol.streams import Dice, SeededDice
from coterie.tasks.task import Task
from tests.helpers import refused
from tests.test_places import Given

KEY = b"passes".ljust(32)
CHANCE = 1e-6
SIZE, STEPS, PASSES = 6, 3, 30_000  # two examples per step are expected
WORK = Work(SIZE, 2, STEPS * PASSES, ALLOCATION)


def seeded() -> SeededDice:
    return SeededDice(*(np.random.Generator(np.random.SFC64(seed)) for seed in (1, 2)))


def keyed() -> KeyedDice:
    return KeyedDice(KEY)


BOTH = pytest.mark.parametrize("make", [seeded, keyed], ids=["seeded", "keyed"])


# The batches of passes, and what is wrong with others


def drawn(dice: Dice) -> np.ndarray:
    """Which examples are in which step: [passes, steps, examples]."""
    return coins(dice, WORK, WORK.steps).reshape(PASSES, STEPS, SIZE)


def check_passes(hits: np.ndarray) -> None:
    """Every example is in one step of each pass; steps are uniform, for pairs of examples and of passes."""
    assert (hits.sum(1) == 1).all(), "an example is not in exactly one step"
    steps = hits.argmax(1)
    pairs = [(steps[:, i], steps[:, k]) for i in range(SIZE) for k in range(i)]
    pairs += [(steps[:-1, i], steps[1:, i]) for i in range(SIZE)]
    for one, other in pairs:
        counts = np.bincount(one * STEPS + other, minlength=STEPS**2)
        assert stats.chisquare(counts).pvalue > CHANCE, (
            "the steps of examples are not independent and uniform"
        )


@BOTH
def test_every_example_is_in_one_step_drawn_on_its_own(make):
    hits = drawn(make())
    check_passes(hits)
    sizes = np.bincount(hits.sum(2).reshape(-1), minlength=SIZE + 1)[:6]
    expected = stats.binom(SIZE, 1 / STEPS).pmf(range(6))
    assert stats.chisquare(sizes, expected / expected.sum() * sizes.sum()).pvalue > CHANCE


def shuffled() -> np.ndarray:
    """Batches of equal size, cut from a shuffled data set."""
    order = np.argsort(np.random.default_rng(0).random((PASSES, SIZE)), axis=1) // (SIZE // STEPS)
    return np.arange(STEPS)[None, :, None] == order[:, None, :]


def poisson() -> np.ndarray:
    return coins(keyed(), Work(SIZE, 2, WORK.steps), WORK.steps).reshape(PASSES, STEPS, SIZE)


def repeated() -> np.ndarray:
    """The same allocation in two passes."""
    return np.repeat(drawn(keyed())[::2], 2, axis=0)


def small_only() -> np.ndarray:
    """Only passes without large batches, as if their slots were few."""
    dice = keyed()
    return np.stack([np.arange(STEPS)[:, None] == dice.allocate(SIZE, STEPS, 3) for _ in range(PASSES)])


@pytest.mark.parametrize("mutant", [shuffled, poisson, repeated, small_only], ids=lambda f: f.__name__)
def test_other_ways_to_draw_are_noticed(mutant: Callable[[], np.ndarray]):
    with pytest.raises(AssertionError, match=r"not in exactly one step|not independent and uniform"):
        check_passes(mutant())


@BOTH
def test_batches_do_not_depend_on_how_steps_are_cut_into_blocks(make):
    work = Work(50, 7, 24, ALLOCATION)
    whole, draws = coins(make(), work, 24), Draws(make(), work)
    parts = [np.empty((steps, 50), dtype=bool) for steps in (1, 3, 9, 2, 9)]
    for part in parts:
        draws.fill(part, slots_for(work))
    assert np.array_equal(whole, np.concatenate(parts))


@BOTH
def test_a_pass_of_one_step_has_everybody(make):
    assert coins(make(), Work(5, 5, 3, ALLOCATION), 3).all()


# Exact places


def test_places_are_the_remainders_of_words_that_favour_none():
    """2^64 = 1 mod 5: the word 0 is one too many, and only it is drawn again."""
    stream = Given([6, 0, 14, 0, 8])
    assert uniform_places(stream, 3, 5).tolist() == [1, 8 % 5, 4]
    assert not stream.given
    assert uniform_places(Given([0, 7]), 2, 2).tolist() == [0, 1]  # 2^64 is even: nothing to throw away
    assert uniform_places(Given([5, 0]), 2, 1).tolist() == [0, 0]


def test_a_crowded_pass_is_drawn_again_as_a_whole():
    """Against the exact law: of the 16 ways to put four examples in two steps, the 6 with two in each."""
    dice = KeyedDice(KEY)
    found = np.array([dice.allocate(4, 2, 2) @ (8, 4, 2, 1) for _ in range(12_000)])
    counts = np.bincount(found, minlength=16)
    even = np.array([bin(k).count("1") == 2 for k in range(16)])
    assert not counts[~even].any()
    assert stats.chisquare(counts[even]).pvalue > CHANCE


def test_nothing_is_drawn_again_if_it_fits():
    dice, words = KeyedDice(KEY), KeyedDice(KEY)._coins
    for _ in range(3):
        assert np.array_equal(dice.allocate(100, 7, 100), uniform_places(words, 100, 7))


WORKS = [
    Work(40, 8, 5, ALLOCATION),
    Work(320, 32, 10, ALLOCATION),
    Work(1000, 1, 1000, ALLOCATION),
    Work(60_000, 256, 235, ALLOCATION),
    Work(7, 7, 1, ALLOCATION),
    Work(5, 4, 2, ALLOCATION),
    Work(100_000, 30_000, 4, ALLOCATION),
]


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_a_pass_has_as_many_slots_as_the_accountant_pays_for_and_no_more(work):
    slots, width, law = slots_for(work), width_for((work,)), stats.binom(work.size, 1 / work.per_pass)
    assert slots % width == 0
    assert slots >= work.size or work.per_pass * law.sf(slots - 1) <= REDRAWN
    fewer = slots - width
    assert slots < work.size + width
    assert fewer == 0 or work.per_pass * law.sf(fewer - 1) > REDRAWN / 2


# Not a bit tells where a null example was


class Scripted(KeyedDice):
    """Dice whose allocation and slots are given; their noise is never looked at."""

    def __init__(self, steps: np.ndarray, slots: np.ndarray):
        super().__init__(KEY)
        self.given = steps, slots

    def allocate(self, size, steps, most):
        assert len(self.given[0]) == size
        return self.given[0]

    def slots(self, hits, slots):
        return np.stack(
            [np.append(self.given[1][hit], np.zeros(slots - hit.sum(), np.int64)) for hit in hits]
        )


class One:
    def __init__(self, dice):
        self.of_all = dice

    def dice(self, run, silo, round_, call):
        return self.of_all


def sums_of(null: bool, step: int, monkeypatch) -> np.ndarray:
    """The sums of a pass of three steps, before noise, with example 0 in a step and maybe null."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 30, 20, generator=generator) * torch.logspace(-3, 1, 30).reshape(1, -1, 1)
    y = torch.rand(1, 30, generator=generator)
    if null:
        x[0, 0], y[0, 0] = 0, 0
    task = Task(lambda: torch.nn.Sequential(torch.nn.Linear(20, 1, bias=False)), "squared", (20,))
    full, work = torch.ones(1, 1), Work(30, 10, 3, ALLOCATION)
    made = Cohort(task, Examples(("a",), (30,), x, y, 1.0), (work,), Settings(0 * full, 0.5 * full, full))
    others = np.random.default_rng(0)
    steps, slots = others.integers(0, 3, 30), others.permutation(slots_for(work))[:30]
    steps[0] = step
    caught = []
    with monkeypatch.context() as patch:
        patch.setattr(dp_sgd, "add_noise", lambda sums, *_: caught.append(sums.numpy().copy()) or sums)
        descend(made, torch.full((1, 1, 20), 0.1), One(Scripted(steps, slots)), 0, 0)
    return np.concatenate(caught)


def test_a_null_example_leaves_the_same_bits_wherever_it_is(monkeypatch):
    without = sums_of(True, 0, monkeypatch)
    for step in range(3):
        assert np.array_equal(sums_of(True, step, monkeypatch), without)
        moved = np.linalg.norm(sums_of(False, step, monkeypatch) - without, axis=1)
        assert 0 < moved[step] <= 0.5
        assert not np.delete(moved, step).any()


# One record: what is drawn, what is charged, what sums are divided by


def test_the_work_of_passes():
    work = Work(100, 32, 8, ALLOCATION)
    assert (work.per_pass, work.rate, work.expected) == (4, 0.25, 25.0)
    assert work.releases(2.0, 8) == Event("gaussian", 2.0, 0.25, 2, "allocation")
    assert DESCEND.releases(work, Noise(2.0), calls=3) == Event("gaussian", 2.0, 0.25, 6, "allocation")
    assert DESCEND.releases(work, Noise(2.0), calls=3).releases == DESCEND.sums_per_call(8) * 3
    assert epochs_of_work(100, 32, 3.0, ALLOCATION) == Work(100, 32, 12, ALLOCATION)
    assert epochs_of_work(5, 32, 2.0, ALLOCATION) == Work(5, 5, 2, ALLOCATION)
    assert math.isclose(work.expected * work.per_pass, work.size)


def test_parts_of_passes_and_other_samplers_are_refused():
    with refused("7 steps are not whole passes over 100 examples, which take 4 steps each"):
        Work(100, 32, 7, ALLOCATION)
    with refused("5 steps are not whole passes"):
        DESCEND.releases(Work(100, 32, 8, ALLOCATION), Noise(), 1, steps=5)
    with refused("'solve_dual' is proven for Poisson samples only: use train.sampling = 'poisson'"):
        SOLVE_DUAL.releases(Work(100, 32, 8, ALLOCATION), Noise())
    with pytest.raises(Problem, match="drawn by 'poisson' or 'allocation', got 'shuffle'"):
        Work(100, 32, 8, "shuffle")
