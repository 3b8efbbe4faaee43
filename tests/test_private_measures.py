"""Noised counts by class and score: what one row changes, and how often intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn import metrics as learn

from coterie.errors import Problem
from coterie.measures.histogram import EDGES, check_edges, counts_of, shape_of
from coterie.measures.predictions import NUMBER, SEVERAL, TWO, predictions
from coterie.measures.private import auc_balance, balances, calibration

SIZES = (30, 0, 45)


def made(kind: str, probable: bool = True, sizes=SIZES, seed: int = 5):
    generator, rows = np.random.default_rng(seed), sum(sizes)
    classes = 2 if kind == TWO else 4
    targets = generator.integers(0, classes, rows)
    values = generator.normal(size=(2, rows, classes)) + (targets[:, None] == np.arange(classes))
    called = values.argmax(2)
    if probable:
        values = np.exp(values) / np.exp(values).sum(2, keepdims=True)
    return predictions(kind, sizes, targets, values, called, probable)


@pytest.mark.parametrize(("kind", "probable"), [(TWO, True), (TWO, False), (SEVERAL, True)])
def test_counts_are_those_of_counting(kind, probable):
    data = made(kind, probable)
    found, ends = counts_of(data), np.cumsum([0, *SIZES])
    for run in range(2):
        for k, (start, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
            slow = np.zeros(shape_of(kind, 4))
            for row in range(start, end):
                cell = data.predicted[run, row]
                if kind == TWO:
                    pair = data.values[run, row]
                    score = pair[1] if probable else 1 / (1 + np.exp(pair[0] - pair[1]))
                    cell = sum(score > edge for edge in EDGES)
                slow[data.targets[row], cell] += 1
            assert (found[run, k] == slow).all()
    assert found[0, 1].sum() == 0  # a silo without rows


@pytest.mark.parametrize("kind", [TWO, SEVERAL])
@pytest.mark.parametrize("strange", [0.0, np.inf, np.nan, -np.inf])
def test_one_row_changes_one_count_by_one_whatever_the_model_makes_of_it(kind, strange):
    """The sensitivity of the release: each row is compared with a null row, which is not counted."""
    data = made(kind, probable=False, sizes=(20,))
    values = data.values.copy()
    if strange:
        values[:, 3, 1] = strange
    whole = counts_of(predictions(kind, (20,), data.targets, values, values.argmax(2)))
    for row in range(20):
        rest = np.arange(20) != row
        known = data.targets[rest], values[:, rest], values[:, rest].argmax(2)
        without = counts_of(predictions(kind, (19,), *known))
        moved = (whole - without)[0, 0]
        assert sorted(np.unique(moved)) == [0, 1]
        assert moved.sum() == 1
        assert moved[data.targets[row]].sum() == 1


def test_without_noise_measures_are_those_of_rounded_scores():
    data = made(TWO, sizes=(400,))
    (table,) = counts_of(data)[0]
    rounded = np.searchsorted(EDGES, data.score[0])
    found = balances(table, 0.0, EDGES)
    assert found["auc"].estimate()[0] == pytest.approx(learn.roc_auc_score(data.targets, rounded))
    real = learn.roc_auc_score(data.targets, data.score[0])
    assert found["auc"].estimate()[1] < real < found["auc"].estimate()[2]
    assert abs(found["auc"].part / found["auc"].whole - real) <= found["auc"].slack / found["auc"].whole
    assert found["accuracy"].estimate()[0] == learn.accuracy_score(data.targets, data.score[0] > 0.5)
    for edge in EDGES:
        at = "" if edge == 0.5 else f"@{edge:g}"
        called = data.score[0] > edge
        assert found[f"sensitivity{at}"].estimate()[0] == learn.recall_score(data.targets, called)
        assert found[f"specificity{at}"].estimate()[0] == learn.recall_score(
            data.targets, called, pos_label=0
        )
    for cell, balance in enumerate(calibration(table, 0.0)):
        inside = data.targets[rounded == cell]
        assert balance.whole == len(inside)
        assert balance.estimate() is None if not len(inside) else balance.estimate()[0] == inside.mean()
    (confusions,) = counts_of(made(SEVERAL, sizes=(200,)))[0]
    known = balances(confusions, 0.0, None)
    true, called = made(SEVERAL, sizes=(200,)).targets, made(SEVERAL, sizes=(200,)).predicted[0]
    assert known["accuracy"].estimate()[0] == learn.accuracy_score(true, called)
    recalls = learn.recall_score(true, called, average=None)
    assert [known[f"sensitivity of {c}"].estimate()[0] for c in range(4)] == pytest.approx(list(recalls))


def test_noise_has_the_variance_that_the_balance_of_the_auc_says():
    generator, deviation = np.random.default_rng(0), 3.0
    positive, negative = np.array([2.0, 9, 20, 40]), np.array([60.0, 40, 30, 5])
    truth = auc_balance(positive, negative, 0.0)
    at = round(2000 * truth.part / truth.whole)
    drawn = [
        auc_balance(
            *(part + deviation * generator.normal(size=4) for part in (positive, negative)), deviation
        )
        for _ in range(4000)
    ]
    moved = np.array([(each.part - at / 2000 * each.whole) for each in drawn])
    assert abs(moved.mean()) < 4 * moved.std() / np.sqrt(len(moved))
    wins = np.sign(np.subtract.outer(np.arange(4), np.arange(4))) / 2 + 0.5 - at / 2000
    expected = deviation**2 * (((wins @ negative) ** 2).sum() + ((positive @ wins) ** 2).sum())
    expected += deviation**4 * (wins**2).sum()
    assert moved.var() == pytest.approx(expected, rel=0.1)
    chosen = np.mean(
        [each.variance[at] - expected for each in drawn]
    )  # what is left is by the choice of rows
    assert chosen == pytest.approx(truth.variance[at], rel=0.1)


ROWS, SHARE, APART, NOISE = 600, 0.3, 1.2, 6.0  # about epsilon .4 at delta 1e-3
BASE = np.log(SHARE / (1 - SHARE))


def drawn_table(seed: int) -> np.ndarray:
    """Return noisy counts of normal scores, of which the probabilities are right."""
    generator = np.random.default_rng(seed)
    positive = generator.random(ROWS) < SHARE
    score = generator.normal(size=ROWS) + APART * positive
    probability = 1 / (1 + np.exp(-(BASE + APART * score - APART**2 / 2)))
    table = np.zeros((2, len(EDGES) + 1))
    np.add.at(table, (positive.astype(int), np.searchsorted(EDGES, probability)), 1)
    return table + NOISE * generator.normal(size=table.shape)


def holds(balance, truth: float) -> bool:
    estimate = balance.estimate()
    return estimate is None or estimate[1] <= truth <= estimate[2]


def test_the_private_auc_lies_in_its_interval_in_95_of_100_seeds():
    truth = norm.cdf(APART / np.sqrt(2))
    tables = [drawn_table(seed) for seed in range(100)]
    found = [balances(table, NOISE, EDGES)["auc"] for table in tables]
    assert sum(holds(each, truth) for each in found) >= 95
    widths = [high - low for _, low, high in (each.estimate() for each in found)]
    assert np.median(widths) < 0.35  # so it says something
    # Intervals that forget the noise hold it less often than they say.
    assert sum(holds(auc_balance(table[1], table[0], 1e-9), truth) for table in tables) < 90


def test_private_sensitivity_and_specificity_and_calibration_lie_in_theirs():
    middle = (APART**2 / 2 - BASE) / APART
    truths = {"sensitivity": norm.sf(middle - APART), "specificity": norm.cdf(middle)}
    held, forgetful, cells = [], [], []
    for seed in range(300):
        table = drawn_table(seed)
        found, bare = balances(table, NOISE, EDGES), balances(table, 1e-9, EDGES)
        held += [holds(found[name], truth) for name, truth in truths.items()]
        forgetful += [holds(bare[name], truth) for name, truth in truths.items()]
        # Probabilities are right, so a share of a cell lies between its edges.
        for low, high, cell in zip(EDGES[:-1], EDGES[1:], calibration(table, NOISE)[1:], strict=False):
            estimate = cell.estimate()
            cells.append(estimate is None or (estimate[1] <= high and estimate[2] >= low))
    assert 0.93 < np.mean(held) < 0.975
    assert np.mean(forgetful) < 0.85
    assert np.mean(cells) > 0.95


def test_silos_add_up_and_noise_alone_says_nothing():
    generator = np.random.default_rng(3)
    many = [np.array([[30.0] * 7 + [5.0] * 7, [5.0] * 7 + [20.0] * 7]) for _ in range(9)]
    noisy = [table + 10 * generator.normal(size=table.shape) for table in many]
    each = [auc_balance(table[1], table[0], 10.0) for table in noisy]
    total = each[0]
    for one in each[1:]:
        total += one
    widths = [(e := one.estimate())[2] - e[1] if one.estimate() else 1.0 for one in each]
    _, low, high = total.estimate()
    assert high - low < 0.7 * np.mean(widths)
    assert low < auc_balance(many[0][1], many[0][0], 0.0).estimate()[0] < high
    nothing = [auc_balance(*(10 * generator.normal(size=(2, 14))), 10.0).estimate() for _ in range(20)]
    known = [estimate for estimate in nothing if estimate is not None]
    assert len(known) < 20  # some have nothing to divide by
    assert all(high - low > 0.8 for _, low, high in known)


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ([], "expected 1 to 127 probabilities between 0 and 1"),
        ([0.5, 1.0], "expected 1 to 127 probabilities between 0 and 1"),
        ([0.5, 0.3], "expected increasing numbers"),
        ([0.2, 0.8], "0.5 must be among them"),
    ],
)
def test_edges_that_make_no_sense_are_refused(edges, words):
    with pytest.raises(Problem, match=f"scores.edges: {words}"):
        check_edges(edges, "scores.edges")


def test_a_number_has_no_histogram_and_many_classes_no_table():
    with pytest.raises(Problem, match="needs classes, but the target is a number"):
        shape_of(NUMBER, 0)
    with pytest.raises(Problem, match="at most 40 classes, but the data has 62"):
        shape_of(SEVERAL, 62)
    check_edges(EDGES, "scores.edges")
