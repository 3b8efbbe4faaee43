"""Exact noise: the distribution of every cell, the bounds behind the fast path, and the slow path, forced."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie import _grid
from coterie._grid import GRID
from coterie.errors import Problem
from coterie.noise import choice, quantile, rounded
from coterie.noise.choice import choose
from coterie.noise.dice import KeyedDice, KeyedGenerator
from coterie.noise.keystream import Keystream
from coterie.noise.rounded import add_noise, grid_exponent, settle

CHANCE = 1e-6
KEY = bytes(range(32))


def noisy(sums, deviation, key=KEY):
    return KeyedDice(key).noisy(np.asarray(sums, dtype=np.float64), deviation)


# the keystream


def test_the_keystream_is_aes_256_in_counter_mode():
    """FIPS 197, appendix C.3, as the first block: the counter starts at zero, so the plain text is the counter."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    blocks = b"".join(k.to_bytes(16, "big") for k in range(4))
    whole = Cipher(algorithms.AES256(KEY), modes.ECB()).encryptor().update(blocks)
    assert Keystream(KEY).words(8).tobytes() == whole


def test_a_keystream_only_moves_forward_and_pieces_join():
    whole = Keystream(KEY).words(100_000)
    stream = Keystream(KEY)
    parts = np.concatenate([stream.words(1), stream.words(9_999), stream.words(90_000)])
    assert np.array_equal(whole, parts)
    assert not np.array_equal(Keystream(b"\1" * 32).words(100), whole[:100])
    with pytest.raises(ValueError, match="32 bytes"):
        Keystream(b"short")


def test_bits_are_even():
    words = Keystream(KEY).words(200_000)
    ones = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).sum(0)
    assert stats.chisquare(np.stack([ones, 200_000 - ones]), axis=0).pvalue.min() > CHANCE / 64


# the quantile and its table


@given(st.floats(-9, 9))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_deviates_enclose_the_quantile(x):
    with mpmath.workprec(300):
        q = mpmath.erfc(abs(mpmath.mpf(x)) / mpmath.sqrt(2))
        low, high = quantile.deviate(q, 100)
        assert low - mpmath.mpf(2) ** -90 <= abs(x) <= high + mpmath.mpf(2) ** -90
        assert high - low <= mpmath.mpf(2) ** -99


@pytest.mark.parametrize("bits", [200, 500, 1000])
def test_deviates_of_tiny_tails(bits):
    """A lazily drawn q may be as small as chance makes it."""
    with mpmath.workprec(4 * bits):
        low, high = quantile.deviate(mpmath.ldexp(1, -bits), 60)
        root = mpmath.sqrt(2)
        assert mpmath.erfc(high / root) <= mpmath.ldexp(1, -bits) <= mpmath.erfc(low / root)


def test_the_table_is_what_the_script_makes():
    with np.load(rounded.files("coterie.noise") / "quantile.npz") as table:  # type: ignore[attr-defined]
        for octave, part in ((0, 0), (0, 31), (7, 13), (23, 0), (23, 31)):
            start, width = quantile.part_of(octave, part)
            middle = float(sum(quantile.deviate(start + width / 2, 80)) / 2)
            assert table["polynomials"][octave, part, 0] == pytest.approx(middle, abs=1e-12)
        assert np.array_equal(table["errors"], quantile.errors(table["polynomials"]))


def test_derivatives_of_the_quantile_are_those_of_the_proof():
    with mpmath.workprec(200):
        x = mpmath.mpf("1.3")
        v = mpmath.erfc(x / mpmath.sqrt(2)) / 2
        for order in (1, 2, 3):
            real = mpmath.diff(lambda u: sum(quantile.deviate(2 * u, 900)) / 2, v, order)
            claimed = (
                sum(c * x**k for k, c in enumerate(quantile.derivative_bounds(order)))
                / mpmath.npdf(x) ** order
            )
            assert abs(real) == pytest.approx(float(claimed), rel=1e-6)


def fast_deviate(q63):
    """What the compiled path computes, in numpy, for 63 bits of q."""
    raw = np.float64(q63).view(np.int64)
    index = ((62 + 1023 - (raw >> 52)) << 5) + ((raw >> 47) & 31)
    at = np.float64(raw & ((1 << 47) - 1)) * 2.0**-46 - 1.0
    value = 0.0
    for c in rounded.POLYNOMIALS[::-1, index]:
        value = value * at + c
    return value, index


def edges(octave, generator):
    """Bits of q at both ends of an octave and of some parts, where an approximation is worst."""
    top = 1 << (62 - octave)
    parts = [top + (top >> 5) * int(part) for part in generator.integers(0, 32, 6)]
    return [
        top,
        top + 1,
        2 * top - 1,
        *parts,
        *(p - 1 for p in parts if p > top),
        *(top + int(k) for k in generator.integers(0, top, 20)),
    ]


@pytest.mark.parametrize("octave", [0, 1, 2, 5, 11, 16, 20, 22, 23])
def test_the_fast_path_is_within_its_bound(octave):
    generator, worst = np.random.default_rng(octave), 0.0
    for bits in edges(octave, generator):
        value, index = fast_deviate(np.int64(bits))
        if not 0 <= index < quantile.OCTAVES * quantile.PARTS:
            continue
        for end in (bits, bits + 1):  # q lies anywhere between
            true = sum(quantile.deviate(mpmath.ldexp(end, -63), 90)) / 2
            worst = max(worst, abs(float(true - mpmath.mpf(float(value)))))
    assert worst <= rounded.ERRORS[octave * quantile.PARTS]
    assert worst > rounded.ERRORS[octave * quantile.PARTS] / 1000, "a bound that loose is no test"


# cells


def test_every_value_lies_on_the_grid():
    for deviation in (1e-9, 0.3, 1.0, 1.999, 2.0, 7e5):
        released = noisy(np.random.default_rng(0).normal(size=5000) * deviation * 10, deviation)
        cells = released / 2.0 ** grid_exponent(deviation)
        assert np.array_equal(cells, np.rint(cells))
    assert 2.0 ** grid_exponent(1.0) == 2.0**-GRID


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_deviations_that_are_none(bad):
    with pytest.raises(ValueError, match="deviation"):
        grid_exponent(bad)


@pytest.mark.parametrize("extreme", [1e-300, 1e300])
def test_extreme_deviations_are_refused(extreme):
    with pytest.raises(Problem, match="use a clip of ordinary size"):
        noisy([0.0], extreme)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_sums_that_are_not_finite_are_not_released(bad):
    with pytest.raises(Problem, match="not finite"):
        noisy([0.0, bad], 1.0)


def test_words_that_were_never_drawn_are_refused():
    with pytest.raises(ValueError, match="never drawn"):
        add_noise(np.zeros((1, 5)), np.ones(1), np.zeros((1, 5), dtype=np.uint64), [KeyedDice(KEY)])


def test_a_row_without_noise_stays_and_needs_no_words():
    sums = np.array([[0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0]])
    words = np.stack([np.zeros(4, dtype=np.uint64), Keystream(KEY).words(4)])
    before = sums.copy()
    add_noise(sums, np.array([0.0, 1.0]), words, [KeyedDice(KEY)] * 2)
    assert np.array_equal(sums[0], before[0])
    assert not np.isclose(sums[1], before[1]).any()


@pytest.mark.parametrize("coarse", [0, 1, 3])
def test_cells_have_the_probabilities_of_a_rounded_gaussian(monkeypatch, coarse):
    """On a coarse grid each cell can be counted. Off by a little, in place or width, and it shows."""
    monkeypatch.setattr(_grid, "GRID", coarse)
    deviation, value, count = 1.7, 0.37, 400_000
    grid = 2.0 ** grid_exponent(deviation)
    cells = np.rint(noisy(np.full(count, value), deviation) / grid).astype(int)
    edge = np.arange(cells.min() - 1, cells.max() + 3) - 0.5
    law = stats.norm(value / grid, deviation / grid)

    def p_value(law):
        chances = np.diff(law.cdf(edge))
        observed = np.histogram(cells, edge)[0]
        usual = count * chances > 10
        rest = max(1 - chances[usual].sum(), 1e-12)
        expected = np.append(count * chances[usual], count * rest)
        return stats.chisquare(np.append(observed[usual], count - observed[usual].sum()), expected).pvalue

    assert p_value(law) > CHANCE
    assert p_value(stats.norm(value / grid + 0.02 * deviation / grid, deviation / grid)) < CHANCE
    assert p_value(stats.norm(value / grid, 0.98 * deviation / grid)) < CHANCE


def test_noise_is_normal_and_independent_of_its_neighbours():
    released = noisy(np.zeros(300_000), 1.0)
    assert stats.kstest(released, "norm").pvalue > CHANCE
    for wrong in (2 / 3, 1.5):
        assert stats.kstest(released * wrong, "norm").pvalue < CHANCE
    for lag in (1, 2, 64, 256):
        assert abs(np.corrcoef(released[:-lag], released[lag:])[0, 1]) < 5 / math.sqrt(300_000)
    tail = np.mean(np.abs(released) > 4)
    chance = 2 * stats.norm.sf(4)
    assert abs(tail - chance) < 6 * math.sqrt(chance / 300_000)


def test_the_noise_does_not_depend_on_the_sum():
    """The same words on any sum: the released number moves by whole cells and rounding, nothing else."""
    shift = 123.456789
    moved = noisy(np.full(10_000, shift), 1.0) - noisy(np.zeros(10_000), 1.0)
    assert np.abs(moved - shift).max() <= 2.0**-GRID


# the slow path


def test_the_slow_path_agrees_with_the_fast_one(monkeypatch):
    """Doubt everything: every number is settled with many digits, and nothing changes."""
    sums = np.random.default_rng(3).normal(size=400) * 100
    fast = noisy(sums, 1.3)
    asked = []
    real = rounded.settle
    monkeypatch.setattr(rounded, "settle", lambda *args: asked.append(1) or real(*args))
    monkeypatch.setattr(rounded, "ERRORS", np.ones_like(rounded.ERRORS))
    assert np.array_equal(noisy(sums, 1.3), fast)
    assert len(asked) == 400


def test_doubt_is_rare_and_is_settled():
    """On 2^22 draws the slow path is taken a few times; without it some of these would be guesses."""
    count = 2**22
    words = Keystream(KEY).words(1, count)
    doubtful = np.empty(64, dtype=np.int64)
    deviation = 1.99
    grid = 2.0 ** grid_exponent(deviation)
    where, found = rounded._add(
        np.zeros(count),
        words[0],
        np.array([deviation / grid]),
        np.array([grid]),
        count,
        0,
        rounded.COLUMNS,
        rounded.ERRORS,
        doubtful,
    )
    assert where == count
    assert 0 <= found < 40


class Scripted:
    """A keystream whose words are known."""

    def __init__(self, *words):
        self.left = list(words)

    def word(self):
        return self.left.pop(0)


def test_an_edge_is_settled_by_the_bits_that_decide_it():
    """q = 1/2 + 2^-63 k: choose a sum that puts the edge of a cell between the two ends of the interval."""
    bits = (1 << 62) + 12345
    with mpmath.workprec(300):
        x = sum(quantile.deviate(mpmath.ldexp(2 * bits + 1, -64), 200)) / 2  # the middle of the interval
        value = float(mpmath.mpf("0.5") - (x * 2**20 - mpmath.floor(x * 2**20)))
    # float64 cannot put the edge there exactly: with a coarse known part the words decide
    low, high = (
        settle(value, 2.0**20, 1.0, 2 * bits, Scripted(*words)) for words in ((0, 0, 0), (2**64 - 1,) * 3)
    )
    assert low >= high  # more bits of q: a smaller deviate


def test_a_deviate_of_all_zero_bits_draws_more():
    stream = Scripted(0, 1 << 63)
    cell = settle(0.0, 1.0, 1.0, 0, stream)  # 63 + 64 zeros, then a one: q is about 2^-128
    assert not stream.left
    assert cell == pytest.approx(float(sum(quantile.deviate(mpmath.ldexp(1, -128), 40)) / 2), abs=0.6)
    assert settle(0.0, 1.0, 1.0, 1, Scripted(0, 1 << 63)) == -cell


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_released_is_the_nearest_point_to_sum_plus_noise(value, deviation):
    dice = KeyedDice(KEY)
    word = np.empty(1, dtype=np.uint64)
    KeyedDice(KEY).fill(word)
    word = int(word[0])
    released = float(dice.noisy(np.array([value]), deviation)[0])
    grid = 2.0 ** grid_exponent(deviation)
    with mpmath.workprec(300):
        x = sum(quantile.deviate(mpmath.ldexp(2 * (word >> 1) + 1, -64), 150)) / 2
        ideal = mpmath.mpf(value) + (-1 if word & 1 else 1) * mpmath.mpf(deviation) * x
        assert abs(ideal - released) <= mpmath.mpf(grid) * (0.5 + 2.0**-20)


# coins


def test_a_rate_is_never_above_what_is_charged():
    """0.01 is no multiple of 2^-64 or 2^-53: what runs is the next one below."""
    from fractions import Fraction

    from coterie.protocol.streams import threshold

    for rate in (0.01, 1 / 3, 1e-9, 0.999, math.nextafter(1, 0), 5e-324):
        assert 0 <= Fraction(threshold(rate)) <= Fraction(rate)
        multiples = Fraction(threshold(rate)) * 2**53
        assert multiples.denominator == 1
    everybody = np.zeros(10, dtype=bool)
    KeyedDice(KEY).toss(1.0, everybody)
    assert everybody.all()


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.999])
def test_coins_fall_at_their_rate(rate):
    hits = np.empty((500, 400), dtype=bool)
    KeyedDice(KEY).toss(rate, hits)
    assert stats.binomtest(int(hits.sum()), hits.size, rate).pvalue > CHANCE
    wrong = 0.85 * rate if rate < 0.9 else 0.9985
    assert stats.binomtest(int(hits.sum()), hits.size, wrong).pvalue < CHANCE
    halves = hits.reshape(-1, 2).astype(float)
    assert abs(np.cov(halves.T)[0, 1]) < 5 * rate * (1 - rate) / math.sqrt(len(halves))


def test_orders_are_permutations_and_equally_likely():
    dice = KeyedDice(KEY)
    orders = [tuple(dice.permutation(3).tolist()) for _ in range(6000)]
    assert stats.chisquare([orders.count(order) for order in sorted(set(orders))]).pvalue > CHANCE
    assert len(set(orders)) == 6


def test_numbers_of_a_keyed_generator_follow_their_distributions():
    generator = KeyedGenerator(KEY)
    uniform = [generator.random() for _ in range(20_000)]
    assert stats.kstest(uniform, "uniform").pvalue > CHANCE
    drawn = np.array([generator.poisson(3.5) for _ in range(20_000)])
    assert stats.chisquare(*_against(drawn, stats.poisson(3.5), 11)).pvalue > CHANCE
    assert stats.chisquare(*_against(drawn, stats.poisson(3.7), 11)).pvalue < CHANCE
    assert stats.chisquare(np.bincount(generator.integers(0, 7, 20_000), minlength=7)).pvalue > CHANCE


def _against(drawn, law, most):
    observed = np.append(
        np.bincount(np.minimum(drawn, most), minlength=most + 1)[:most], (drawn >= most).sum()
    )
    chances = np.append(law.pmf(np.arange(most)), law.sf(most - 1))
    return observed, chances * len(drawn)


# choices


@pytest.mark.parametrize("exactly", [False, True], ids=["float64", "many digits"])
def test_choices_have_their_probabilities(monkeypatch, exactly):
    if exactly:
        monkeypatch.setattr(choice, "DOUBT", 2.0)
    penalties, scale, count = np.array([10.0, 11.5, 10.25, 30.0]), 1.2, 2_000 if exactly else 100_000
    stream = Keystream(KEY)
    drawn = [choose(penalties, scale, stream) for _ in range(count)]
    weights = np.exp(-penalties / scale)
    chances = weights / weights.sum()
    observed = np.bincount(drawn, minlength=4)
    assert observed[3] <= 2
    assert stats.chisquare(observed[:3], chances[:3] / chances[:3].sum() * observed[:3].sum()).pvalue > CHANCE
    wrong = np.exp(-penalties / 2)[:3]
    assert stats.chisquare(observed[:3], wrong / wrong.sum() * observed[:3].sum()).pvalue < CHANCE


def test_both_ways_choose_the_same(monkeypatch):
    penalties = np.array([0.0, 1.0, 0.5, 700.0, 2000.0])
    fast = [choose(penalties, 0.9, Keystream(bytes([k]) * 32)) for k in range(60)]
    monkeypatch.setattr(choice, "DOUBT", 2.0)
    assert [choose(penalties, 0.9, Keystream(bytes([k]) * 32)) for k in range(60)] == fast


def test_one_candidate_is_chosen_and_bad_penalties_are_refused():
    assert choose(np.array([3.0]), 1.0, Keystream(KEY)) == 0
    for bad in (np.array([]), np.array([math.nan, 1.0])):
        with pytest.raises(ValueError, match="finite penalties"):
            choose(bad, 1.0, Keystream(KEY))
    with pytest.raises(ValueError, match="scale"):
        choose(np.zeros(2), 0.0, Keystream(KEY))


def test_different_keys_give_unrelated_noise():
    drawn = [noisy(np.zeros(5000), 1.0, bytes([k]) * 32) for k in range(5)]
    for one, other in pairwise(drawn):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(5000)


# what hostile words and sums do


def exact_cell(value, deviation, word):
    """The cell by high precision alone; None where 63 bits do not decide."""
    grid = 2.0 ** grid_exponent(deviation)
    with mpmath.workprec(400):
        cells = set()
        for end in (word >> 1, (word >> 1) + 1):
            if end == 0:
                return None
            x = sum(quantile.deviate(mpmath.ldexp(end, -63), 150)) / 2
            sign = -1 if word & 1 else 1
            cells.add(
                int(mpmath.floor(mpmath.mpf(value) / grid + sign * mpmath.mpf(deviation) / grid * x + 0.5))
            )
        return cells.pop() if len(cells) == 1 else None


HOSTILE = [
    1 << 40,
    (1 << 40) + 1,
    (1 << 39) + 7,
    3,
    2,
    2**64 - 1,
    2**64 - 2,
    1 << 63,
    (1 << 63) + 1,
    (1 << 63) - 1,
]


@pytest.mark.parametrize("deviation", [1.0, 1.999])
def test_words_at_the_ends_of_octaves_and_far_out_are_exact(deviation, monkeypatch):
    """The last octave of the table, what lies beyond it, and the largest q."""
    settled = []
    real = rounded.settle
    monkeypatch.setattr(rounded, "settle", lambda *given: settled.append(given) or real(*given))
    words = np.array([HOSTILE], dtype=np.uint64)
    sums = np.random.default_rng(0).normal(size=(1, len(HOSTILE))) * 50
    before = sums[0].copy()
    add_noise(sums, np.array([deviation]), words, [KeyedDice(KEY)])
    cells = sums[0] / 2.0 ** grid_exponent(deviation)
    for value, cell, word in zip(before, cells, HOSTILE, strict=True):
        wanted = exact_cell(value, deviation, word)
        assert wanted is None or wanted == cell
    assert {given[3] for given in settled} >= {3, 2, (1 << 39) + 7, 2**64 - 1}, "far out or above the table"


def test_sums_close_to_the_edge_of_a_cell_are_doubted(monkeypatch):
    """A sum that puts the edge within a third of the bound of where the fast path sees it."""
    settled = []
    real = rounded.settle
    monkeypatch.setattr(rounded, "settle", lambda *given: settled.append(1) or real(*given))
    words = Keystream(KEY).words(40)
    for word in words.tolist():
        x, index = fast_deviate(np.int64(word >> 1))
        near = (-x if word & 1 else x) * 2.0**20
        for share in (-0.3, 0.0, 0.3):
            inside = share * (2.0**20 * rounded.ERRORS[index] + rounded.ARITHMETIC)
            value = (np.floor(near) + 0.5 - near + inside) * 2.0**-20
            row = np.array([[value, 0.0, 0.0, 0.0, 0.0]])
            add_noise(row, np.ones(1), np.array([[word, *words[:4]]], dtype=np.uint64), [KeyedDice(KEY)])
            wanted = exact_cell(float(value), 1.0, int(word))
            assert wanted is None or wanted == row[0, 0] * 2.0**20
    assert len(settled) >= 0.9 * 3 * len(words)


def test_the_bound_of_the_arithmetic_is_not_nothing():
    """The product and the sum are rounded: near 2^23 by up to 2^-30 each."""
    assert 2.0**-29 <= rounded.ARITHMETIC <= 2.0**-24


@pytest.mark.parametrize("huge", [1e308, 1e200, 2.0**90])
def test_sums_far_beyond_their_noise_are_refused(huge):
    with pytest.raises(Problem, match="far beyond"):
        noisy([huge], 1.0)


def test_nothing_gets_no_noise():
    assert noisy(np.zeros((0,)), 1.0).shape == (0,)


def test_the_streams_of_dice_differ():
    dice = KeyedDice(KEY)
    drawn = [tuple(stream.words(4).tolist()) for stream in (dice._coins, dice._noise, dice.doubts)]
    assert len(set(drawn)) == 3


def test_a_rate_below_every_multiple_never_hits():
    hits = np.ones(1000, dtype=bool)
    KeyedDice(KEY).toss(5e-324, hits)
    assert not hits.any()


def test_coins_are_below_the_largest_multiple_under_the_rate(monkeypatch):
    """Words at the limit: the first that is no hit is the rate times 2^64, rounded down."""
    limit = math.floor(0.1 * 2**64)
    monkeypatch.setattr(
        Keystream, "words", lambda self, *shape: np.array([limit - 1, limit], dtype=np.uint64)
    )
    hits = np.zeros(2, dtype=bool)
    KeyedDice(KEY).toss(0.1, hits)
    assert hits.tolist() == [True, False]


def test_arrays_with_gaps_are_not_filled():
    with pytest.raises(ValueError, match="contiguous"):
        KeyedDice(KEY).fill(np.zeros((4, 4), dtype=np.uint64)[:, ::2])


def test_many_candidates_are_chosen_among():
    drawn = [choose(np.zeros(5000), 1.0, Keystream(bytes([k]) * 32)) for k in range(50)]
    assert len(set(drawn)) > 40
    assert max(drawn) > 2500 > min(drawn)
