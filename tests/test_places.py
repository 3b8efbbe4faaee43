"""Where the examples of a metered batch stand: nobody learns from their places who was drawn."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.cohort import dp_sgd
from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.dual import sampled
from coterie.cohort.dual.sampled import DualRequest, solve_apart
from coterie.cohort.examples import Examples
from coterie.cohort.sampling import (
    Draws,
    coin_segments,
    lay_out_in_slots,
    slots_for,
    slots_of_segment,
    toss_segment,
)
from coterie.engines import simulation
from coterie.methods import MRMTL
from coterie.noise.dice import KeyedDice, _limit
from coterie.noise.keystream import Keystream
from coterie.noise.places import distinct_slots
from coterie.planning.schedule import Participation
from coterie.protocol.doors import Work
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import Task
from tests.helpers import experiment

KEY = b"places".ljust(32)
CHANCE = 1e-6
SIZE, FEATURES = 40, 30
WORKS = [
    Work(40, 8, 3),
    Work(320, 32, 2),
    Work(7, 7, 1),
    Work(1000, 1, 5),
    Work(5, 4, 2),
    Work(4096, 1024, 1),
]
IN_PASSES = [Work(40, 8, 5, "allocation"), Work(30, 10, 3, "allocation"), Work(1000, 400, 6, "allocation")]


class Scripted(KeyedDice):
    """Dice whose first batch and slots are given; their noise is never looked at."""

    def __init__(self, drawn: list[int], taken: list[int] | None):
        super().__init__(KEY)
        self.drawn, self.taken = drawn, taken

    def toss_batches(self, rate, hits, most):
        hits[...] = False
        hits[:, self.drawn] = True

    def slots(self, hits, slots):
        if self.taken is None:
            return None
        dealt = np.zeros((len(hits), slots), dtype=np.int64)
        dealt[:, : len(self.taken)] = self.taken
        return dealt


class ScriptedStreams:
    """The same dice for every silo."""

    def __init__(self, dice):
        self.of_all = dice

    def dice(self, run, silo, round_, call):
        return self.of_all


def cohort(null: int | None = None) -> Cohort:
    """Two silos whose examples have gradients of many sizes; one example of the first may be null."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, SIZE, FEATURES, generator=generator)
    x *= torch.logspace(-3, 1, SIZE).reshape(1, -1, 1)
    y = torch.rand(2, SIZE, generator=generator)
    if null is not None:
        x[0, null], y[0, null] = 0, 0
    task = Task(lambda: torch.nn.Sequential(torch.nn.Linear(FEATURES, 1, bias=False)), "squared", (FEATURES,))
    full = torch.ones(1, 2)
    work = (Work(SIZE, 16, 1),) * 2
    return Cohort(task, Examples(("a", "b"), (SIZE, SIZE), x, y, 1.0), work, Settings(full, 0.5 * full, full))


def by_descend(made: Cohort, streams):
    descend(made, torch.full((1, 2, FEATURES), 0.1), streams, 0, 0)


def by_duals(made: Cohort, streams):
    start, duals = torch.full((1, 2, FEATURES), 0.1), torch.zeros(1, 2, SIZE, 1)
    solve_apart(made, DualRequest(start, duals, torch.ones(1, 2), torch.ones(1, 2)), streams, 0, 0)


def sums_before_noise(release, made, drawn, taken, monkeypatch) -> np.ndarray:
    """The sums of both silos as the machine computes them, when these examples were drawn."""
    caught = []

    def tensor(sums, deviation, material, dice):
        caught.append(sums.numpy().copy())
        return sums

    def array(sums, deviation, material, dice):
        caught.append(sums.copy())

    with monkeypatch.context() as patch:
        patch.setattr(dp_sgd, "add_noise", tensor)
        patch.setattr(sampled, "add_noise_to_array", array)
        release(made, ScriptedStreams(Scripted(drawn, taken)))
    return np.concatenate([part.reshape(len(part), -1) for part in caught])


DRAWN = [0, 3, 5, 8, 11, 14, 17, 20, 22, 25, 28, 30, 33, 36, 38, 39]


@pytest.mark.parametrize("release", [by_descend, by_duals])
@pytest.mark.parametrize("example", [0, 5, 22, 39])
def test_not_drawn_and_null_give_the_same_bits(release, example, monkeypatch):
    taken = np.random.default_rng(example).permutation(slots_for(Work(SIZE, 16, 1)))[: len(DRAWN)].tolist()
    drawn = [k for k in DRAWN if k != example]
    others = [slot for k, slot in zip(DRAWN, taken, strict=True) if k != example]
    null = cohort(null=example)
    with_null = sums_before_noise(release, null, DRAWN, taken, monkeypatch)
    not_drawn = sums_before_noise(release, cohort(), drawn, others, monkeypatch)
    assert np.array_equal(with_null[0], not_drawn[0])
    # the drawn example moves its own silo's sum by at most the clip, and another silo's by no bit
    there = sums_before_noise(release, cohort(), DRAWN, taken, monkeypatch)
    assert 0 < np.linalg.norm(there[0] - not_drawn[0]) <= 0.5
    one_silo = replace(null, examples=replace(null.examples, x=null.examples.x.clone()))
    one_silo.examples.x[1] = cohort().examples.x[1]
    assert np.array_equal(sums_before_noise(release, one_silo, DRAWN, taken, monkeypatch)[1], there[1])


def test_without_slots_the_bits_tell_who_was_drawn(monkeypatch):
    """What slots are for: one after the other, later examples move and their sums are rounded otherwise."""
    with_null = sums_before_noise(by_descend, cohort(null=0), DRAWN, None, monkeypatch)
    not_drawn = sums_before_noise(by_descend, cohort(), DRAWN[1:], None, monkeypatch)
    assert not np.array_equal(with_null[0], not_drawn[0])


@pytest.mark.parametrize("works", [WORKS[:2], WORKS[1:4], WORKS[4:], IN_PASSES], ids=str)
def test_the_shape_of_a_metered_step_is_public(works):
    """Which rows there are, and whose they are, is the same for every key."""
    segments, _ = coin_segments(tuple(works), 2, 0, 5, b"\1" * 2 * len(works))
    shapes = set()
    for number in range(20):
        hits, slots = np.empty(segments[-1].end, dtype=bool), []
        for segment in segments:
            dice = KeyedDice(f"{number} {segment.pair}".encode().ljust(32))
            toss_segment(segment, Draws(dice, works[segment.silo]), hits)
            slots.append(slots_of_segment(segment, dice, hits))
        steps = lay_out_in_slots(hits, slots, segments, 5, 8)
        shapes.add(tuple((tuple(rows.pair.tolist()), tuple(rows.silo.tolist())) for rows in steps))
        for step, rows in enumerate(steps):
            for segment in segments:
                mine = rows.pair == segment.pair
                found = sorted(rows.example[mine][rows.real[mine]].tolist())
                batches = hits[segment.start : segment.end].reshape(segment.steps, segment.size)
                wanted = np.flatnonzero(batches[step]).tolist() if step < segment.steps else []
                assert found == wanted
    assert len(shapes) == 1


def choosing(slot: int, left: int) -> int:
    """Give a word whose upper half chooses a slot among those that are left."""
    return int((slot + 0.5) * 2**32 / left) << 32


def test_every_way_to_hand_out_slots_is_equally_likely():
    """By exhaustion: each choice among the slots that are left deals another way."""
    slots, count = 5, 3
    words = [[choosing(slot, slots - k) for slot in range(slots - k)] for k in range(count)]
    dealt = [
        tuple(distinct_slots(Given(list(given) + [7] * (slots - count)), np.array([count]), slots)[0, :count])
        for given in itertools.product(*words)
    ]
    assert sorted(dealt) == sorted(itertools.permutations(range(slots), count))


class Given:
    """A keystream of given words."""

    def __init__(self, words: list[int]):
        self.given = words

    def words(self, *shape):
        count = math.prod(shape)
        taken, self.given = self.given[:count], self.given[count:]
        return np.array(taken, dtype=np.uint64).reshape(shape)


def chosen_by(half: int, slots: int) -> int | None:
    """Give the slot that the upper half of a word chooses, or None if it is thrown away."""
    fallback = [choosing(0, slots)] * slots
    stream = Given([half << 32, *fallback[1:], *fallback])
    slot = int(distinct_slots(stream, np.array([1]), slots)[0, 0])
    return slot if stream.given else None


def test_a_word_that_favours_a_slot_is_drawn_again():
    """2^32 = 1 mod 3: the word 0 is one too many."""
    assert chosen_by(0, 3) is None
    assert chosen_by(1, 3) == 0
    assert chosen_by(0, 2) == 0  # 2^32 is even: nothing to throw away


@pytest.mark.parametrize("slots", [2, 3, 5, 6, 7, 11, 40, 97])
def test_every_slot_has_as_many_words(slots):
    """Counted at the ends of each slot's words; in between, nothing is thrown away."""
    starts = [-(-slot * 2**32 // slots) for slot in range(slots + 1)]
    for slot, (first, end) in enumerate(itertools.pairwise(starts)):
        kept = [chosen_by(half, slots) for half in (first, first + 1, end - 1)]
        assert kept[1:] == [slot, slot]
        assert kept[0] in (None, slot)
        assert end - first - (kept[0] is None) == 2**32 // slots


def test_a_batch_of_duals_has_all_its_slots():
    """However few were drawn: what is computed must not tell how many."""
    hits = np.zeros((2, 9), dtype=bool)
    hits[0, [2, 5]] = True
    slots = np.array([[4, 0, 1, 2, 3, 5], [0, 1, 2, 3, 4, 5]])
    examples, real = sampled._sampled(hits, slots)
    assert examples.shape == real.shape == (2, 6)
    assert real.nonzero()[1].tolist() == [0, 4]
    assert examples[0, [4, 0]].tolist() == [2, 5]


def test_slots_are_random():
    drawn = distinct_slots(Keystream(KEY), np.full(120_000, 2), 4)[:, :2]
    counts = np.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16)
    assert not counts[::5].any()  # never the same slot twice
    assert stats.chisquare(counts[counts > 0]).pvalue > CHANCE
    assert (counts > 0).sum() == 12


def test_more_examples_than_slots_are_refused():
    with pytest.raises(ValueError, match="5 examples does not fit into 4 slots"):
        distinct_slots(Keystream(KEY), np.array([1, 5]), 4)


@pytest.mark.parametrize("rate", [1e-4, 2.0**-12 * (1 + 2.0**-52), 1e-9, 1 / 3, 0.999])
def test_an_example_is_never_drawn_more_often_than_is_charged(rate):
    assert Fraction(rate) - Fraction(1, 2**64) < Fraction(_limit(rate), 2**64) <= Fraction(rate)


def test_large_batches_are_tossed_again_and_nothing_else_changes():
    """Against the exact conditional probabilities: independent coins, given that at most four are heads."""
    size, rate, most = 6, 0.4, 4
    hits = np.empty((200_000, size), dtype=bool)
    KeyedDice(KEY).toss_batches(rate, hits, most)
    patterns = hits @ (1 << np.arange(size))
    heads = np.array([bin(k).count("1") for k in range(2**size)])
    weight = np.where(heads <= most, rate**heads * (1 - rate) ** (size - heads), 0.0)
    counts = np.bincount(patterns, minlength=2**size)
    assert not counts[heads > most].any()
    allowed = heads <= most
    expected = weight[allowed] / weight.sum() * len(hits)
    assert stats.chisquare(counts[allowed], expected).pvalue > CHANCE
    # so, given the others, an example is drawn at the rate, or not at all if they fill the batch
    others, first = heads[patterns >> 1], hits[:, 0]
    for count in range(most):
        share = first[others == count]
        assert stats.binomtest(int(share.sum()), len(share), rate).pvalue > CHANCE
    assert not first[others == most].any()


def test_coins_do_not_depend_on_how_steps_are_cut_into_blocks():
    whole = np.empty((40, 50), dtype=bool)
    KeyedDice(KEY).toss_batches(0.3, whole, 14)
    dice, parts = KeyedDice(KEY), [np.empty((8, 50), dtype=bool) for _ in range(5)]
    for part in parts:
        dice.toss_batches(0.3, part, 14)
    assert np.array_equal(whole, np.concatenate(parts))
    assert whole.sum(1).max() <= 14


@pytest.mark.parametrize("work", WORKS, ids=str)
def test_slots_hold_most_batches(work):
    """Few batches are drawn again, and the mean batch is nearly the expected one."""
    slots, number = slots_for(work), stats.binom(work.size, work.rate)
    assert slots % 4 == 0
    assert work.expected <= slots < work.size + 8
    assert number.cdf(slots) > 0.83
    mean = sum(k * number.pmf(k) for k in range(min(slots, work.size) + 1)) / number.cdf(slots)
    assert 0.94 * work.expected < mean <= work.expected * (1 + 1e-9)


@pytest.mark.parametrize("metered", [True, False])
def test_silos_drawn_in_secret_work_one_at_a_time(federation, metered, monkeypatch):
    """Then no bit of an upload depends on who else was drawn."""
    made = experiment(federation, MRMTL(lam=0.5), rounds=1, seeds=(0, 1), participation=Participation(0.5))
    made = replace(made, privacy=replace(made.privacy, unit="silo"))
    plan, uploads, groups = made.plan(), [], []
    real_groups, real_merge = simulation._groups, simulation._merge
    monkeypatch.setattr(
        simulation, "_groups", lambda *given: groups.append(real_groups(*given)) or groups[-1]
    )
    monkeypatch.setattr(
        simulation, "_merge", lambda *given: uploads.append(given[-1].clone()) or real_merge(*given)
    )
    for absent in (None, 0):
        present = torch.ones(2, 3, dtype=torch.bool)
        present[:, absent] = absent is None
        monkeypatch.setattr(type(plan), "present_at", lambda *given, present=present: present)
        drawn = (lambda number, present=present: present) if metered else None
        list(
            simulation.simulate(
                made.running,
                made.cohort(plan),
                plan,
                made.roster,
                [0, 1],
                SeededStreams(made.keys),
                drawn=drawn,
            )
        )
    assert uploads[0][:, 0].any()
    assert not uploads[1][:, 0].any()
    if metered:
        assert torch.equal(uploads[0][:, 1:], uploads[1][:, 1:])
        assert [[part.tolist() for part in group] for group in groups] == [[[0], [1], [2]], [[1], [2]]]
    else:
        assert groups == [[None], [None]]


def test_a_round_in_which_nobody_was_drawn_releases_noise_only(federation, monkeypatch):
    made = experiment(federation, MRMTL(lam=0.5), rounds=1, seeds=(0,), participation=Participation(0.5))
    made = replace(made, privacy=replace(made.privacy, unit="silo"))
    plan, nobody, uploads = made.plan(), torch.zeros(1, 3, dtype=torch.bool), []
    real_merge = simulation._merge
    monkeypatch.setattr(type(plan), "present_at", lambda *given: nobody)
    monkeypatch.setattr(
        simulation, "_merge", lambda *given: uploads.append(given[-1].clone()) or real_merge(*given)
    )
    parts = (made.running, made.cohort(plan), plan, made.roster, [0], SeededStreams(made.keys))
    before, after = simulation.simulate(*parts, drawn=lambda number: nobody)
    assert not uploads[0].any()
    assert not torch.equal(before.shared, after.shared)
