"""Intervals in closed form: known values, and how often they hold the truth, for one silo and for several."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from coterie.measures.catalogue import METRICS, Facts, read_metric
from coterie.measures.intervals import Z, auc_interval, auc_variance, combined, student, wilson
from coterie.measures.predictions import NUMBER, SEVERAL, TWO, Predictions, Values, predictions

SILOS, ROWS, TOGETHER = 900, 50, 6
CAUTIOUS = {(SEVERAL, "auc"), (SEVERAL, "average-precision"), (SEVERAL, "f1")}  # their classes err together


def drawn(kind: str, sizes: tuple[int, ...], seed: int) -> Predictions:
    """Return predictions of a known kind; all silos are alike."""
    generator, rows = np.random.default_rng(seed), sum(sizes)
    if kind == NUMBER:
        targets = generator.normal(size=rows)
        return predictions(kind, sizes, targets, (targets * 0.7 + generator.normal(size=rows) * 0.6)[None])
    if kind == TWO:
        targets = (generator.random(rows) < 0.3).astype(int)
        second = 1.5 * generator.normal(size=rows) + 1.8 * targets - 1.8
        values = np.stack([np.zeros(rows), second], -1)
    else:
        targets = generator.choice(3, size=rows, p=[0.5, 0.3, 0.2])
        values = generator.normal(size=(rows, 3)) + 1.2 * (targets[:, None] == np.arange(3))
    shares = np.exp(values) / np.exp(values).sum(1, keepdims=True)
    return predictions(kind, sizes, targets, shares[None], values.argmax(1)[None], True)


@pytest.fixture(scope="module")
def data() -> dict[str, tuple[Predictions, Predictions]]:
    """Many small silos, and one so large that its values are the truth."""
    return {
        kind: (drawn(kind, (ROWS,) * SILOS, 1), drawn(kind, (200_000,), 2)) for kind in (TWO, SEVERAL, NUMBER)
    }


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for name, metric in METRICS.items() for kind in metric.kinds if name != "calibration-error"]
    + [(TWO, "sensitivity@0.2"), (TWO, "f1@0.3")],
)
def test_intervals_hold_the_truth_as_often_as_they_say(data, kind, name):
    """The limits for chance are four standard deviations; t of skewed numbers may miss a little more."""
    small, large = data[kind]
    metric = read_metric(name, Facts(kind, "cross-entropy", True))
    truth = metric.values(large).value[0, 0]
    found = metric.values(small)
    known = ~np.isnan(found.value[0])
    held = ((found.low <= truth) & (truth <= found.high))[0][known]
    assert known.mean() > 0.99
    assert 0.91 < held.mean() <= (1.0 if (kind, name) in CAUTIOUS else 0.985)
    groups = Values(*(column.reshape(-1, TOGETHER) for column in found))
    _, low, high = combined(np.ones(TOGETHER), groups)
    held = (low <= truth) & (truth <= high)
    assert len(held) == SILOS // TOGETHER
    assert held.mean() > 0.88
    assert np.median(high - low) < 0.6 * np.median((found.high - found.low)[0][known])


def test_wilson_solves_its_equation():
    for share, count in ((0.0, 5), (0.3, 40), (1.0, 12), (0.5, 1)):
        low, high = wilson(np.array(share), np.array(count))
        for end in (float(low), float(high)):
            if 0 < end < 1:
                assert (share - end) ** 2 == pytest.approx(Z**2 * end * (1 - end) / count)
    assert np.isnan(wilson(np.array(np.nan), np.array(0))).all()


def test_the_interval_of_an_auc_solves_newcombes_equation():
    for auc, positive, negative in ((0.8, 20, 60), (0.5, 7, 9), (1.0, 5, 40), (0.02, 12, 12)):
        low, high = auc_interval(np.array(auc), np.array(float(positive)), np.array(float(negative)))
        for end in (float(low), float(high)):
            if 1e-6 < end < 1 - 1e-6:
                spread = float(auc_variance(np.array(end), np.array(positive), np.array(negative)))
                assert (auc - end) ** 2 == pytest.approx(Z**2 * spread)
        assert low <= auc <= high
    low, high = auc_interval(np.array([1.0]), np.array([5.0]), np.array([40.0]))
    assert 0.5 < low[0] < 0.9  # a perfect order of few rows is not certain
    assert high[0] == 1.0


def test_students_interval_is_scipys():
    numbers = np.random.default_rng(0).normal(size=9)
    low, high = student(numbers.mean(), numbers.var(), np.array(9))
    assert (low, high) == pytest.approx(stats.ttest_1samp(numbers, 0).confidence_interval(0.95))
    assert np.isnan(student(np.array(1.0), np.array(0.0), np.array(1))).all()


def test_one_estimate_keeps_its_interval_and_equal_shares_have_wilsons():
    one = Values(*(np.array([[x]]) for x in (0.9, 0.7, 0.95, 0.0001)))
    assert [x[0] for x in combined(np.ones(1), one)] == pytest.approx([0.9, 0.7, 0.95])
    share, count = np.full((1, 8), 0.9), np.full((1, 8), 400.0)
    parts = Values(share, *wilson(share, count), np.zeros((1, 8)))
    mean, low, high = combined(np.ones(8), parts)
    whole = wilson(np.array(0.9), np.array(3200))
    assert (mean[0], low[0], high[0]) == pytest.approx((0.9, *map(float, whole)), abs=5e-5)


def test_undefined_parts_are_left_out_and_missing_limits_are_told():
    nan = np.nan
    parts = Values(
        *(
            np.array([column])
            for column in ([0.5, nan, 0.7], [0.4, nan, 0.6], [0.6, nan, 0.8], [0.002, nan, 0.002])
        )
    )
    mean, low, high = combined(np.array([1.0, 5.0, 3.0]), parts)
    assert mean[0] == pytest.approx((0.5 + 3 * 0.7) / 4)
    assert low[0] < mean[0] < high[0]
    bare = parts._replace(low=np.array([[nan] * 3]), high=np.array([[nan] * 3]))
    mean, low, high = combined(np.ones(3), bare)
    assert mean[0] == pytest.approx(0.6)
    assert np.isnan([low[0], high[0]]).all()
    nothing = Values(*(np.full((1, 2), nan) for _ in range(4)))
    assert np.isnan(combined(np.ones(2), nothing)).all()
