"""Every measure equals scikit-learn's, for each silo and run, and is weighted over silos by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as learn
from sklearn.calibration import calibration_curve

from coterie.errors import Problem
from coterie.measures.catalogue import METRICS, Facts, default_metrics, read_metric, read_metrics
from coterie.measures.measured import constant_score, measure, silos_no_better
from coterie.measures.predictions import NUMBER, SEVERAL, TWO, predictions

SIZES = (40, 1, 25, 0, 60, 9)
NAMES = tuple("abcdef")
RUNS = 3


def made(kind: str, seed: int = 0, probable: bool = True, ties: bool = False):
    """Return predictions for silos of many sizes; the last one lacks all classes but the first."""
    generator, rows = np.random.default_rng(seed), sum(SIZES)
    if kind == NUMBER:
        targets = generator.normal(size=rows)
        targets[-SIZES[-1] :] = 0.3
        return predictions(kind, SIZES, targets, targets + generator.normal(size=(RUNS, rows)))
    classes = 2 if kind == TWO else 4
    targets = generator.integers(0, classes, rows)
    targets[-SIZES[-1] :] = 0
    values = generator.normal(size=(RUNS, rows, classes)) + (targets[:, None] == np.arange(classes))
    values = np.round(values) if ties else values
    called = values.argmax(2)
    if probable:
        values = np.exp(values) / np.exp(values).sum(2, keepdims=True)
    return predictions(kind, SIZES, targets, values, called, probable)


def rows_of_each(data):
    """Return each run and silo with its place, targets, values and predictions: the slow way."""
    ends = np.cumsum([0, *SIZES])
    for run in range(RUNS):
        for k in range(len(SIZES)):
            at = slice(ends[k], ends[k + 1])
            called = data.predicted[run, at] if data.kind != NUMBER else None
            yield (run, k), data.targets[at], data.values[run, at], called


def against_rest(score, true, values):
    """Return the mean of a score of each class against the rest, over the classes that have rows."""
    present = [c for c in range(values.shape[1]) if 0 < (true == c).sum() < len(true)]
    return np.mean([score(true == c, values[:, c]) for c in present]) if present else np.nan


def one_by_one_ece(said, true):
    """Return the calibration error of probabilities, cell by cell."""
    cells, error = [[] for _ in range(10)], 0.0
    for p, hit in zip(said, true, strict=True):
        cells[min(9, int(p * 10))].append((p, hit))
    for cell in filter(None, cells):
        error += len(cell) / len(said) * abs(np.mean([p for p, _ in cell]) - np.mean([h for _, h in cell]))
    return error


def second(values):
    return values[:, 1]


SLOW_TWO = {
    "accuracy": lambda y, v, c: learn.accuracy_score(y, c),
    "balanced-accuracy": lambda y, v, c: learn.balanced_accuracy_score(y, c),
    "auc": lambda y, v, c: learn.roc_auc_score(y, second(v)),
    "average-precision": lambda y, v, c: learn.average_precision_score(y, second(v)),
    "sensitivity": lambda y, v, c: learn.recall_score(y, c),
    "specificity": lambda y, v, c: learn.recall_score(y, c, pos_label=0),
    "sensitivity@0.3": lambda y, v, c: learn.recall_score(y, second(v) > 0.3),
    "specificity@0.3": lambda y, v, c: learn.recall_score(y, second(v) > 0.3, pos_label=0),
    "f1": lambda y, v, c: learn.f1_score(y, c),
    "f1@0.3": lambda y, v, c: learn.f1_score(y, second(v) > 0.3),
    "log-loss": lambda y, v, c: learn.log_loss(y, second(v), labels=[0, 1]),
    "brier": lambda y, v, c: learn.brier_score_loss(y, second(v), labels=[0, 1]),
    "calibration-error": lambda y, v, c: one_by_one_ece(second(v), y),
}
SLOW_SEVERAL = {
    "accuracy": lambda y, v, c: learn.accuracy_score(y, c),
    "balanced-accuracy": lambda y, v, c: learn.recall_score(y, c, labels=sorted(set(y)), average="macro"),
    "auc": lambda y, v, c: against_rest(learn.roc_auc_score, y, v),
    "average-precision": lambda y, v, c: against_rest(learn.average_precision_score, y, v),
    "f1": lambda y, v, c: learn.f1_score(y, c, average="macro"),
    "log-loss": lambda y, v, c: learn.log_loss(y, v, labels=range(4)),
    "brier": lambda y, v, c: learn.brier_score_loss(y, v, labels=range(4), scale_by_half=False),
    "calibration-error": lambda y, v, c: one_by_one_ece(v[np.arange(len(c)), c], y == c),
}
SLOW_NUMBER = {
    "mse": lambda y, v, c: learn.mean_squared_error(y, v),
    "mae": lambda y, v, c: learn.mean_absolute_error(y, v),
    "r2": lambda y, v, c: learn.r2_score(y, v),
}
SLOW = {TWO: SLOW_TWO, SEVERAL: SLOW_SEVERAL, NUMBER: SLOW_NUMBER}
CASES = [(kind, name, ties) for kind, each in SLOW.items() for name in each for ties in (False, True)]


def is_defined(kind, name, true, called):
    """Say by hand whether a measure is defined for the rows of a silo."""
    bare = name.partition("@")[0]
    if not len(true):
        return False
    if bare in ("auc", "balanced-accuracy"):
        return len(set(true)) > 1
    if bare == "average-precision":
        return len(set(true)) > 1 if kind == SEVERAL else 1 in true
    if bare in ("sensitivity", "specificity"):
        return (1 if bare == "sensitivity" else 0) in true
    if bare == "f1" and kind == TWO:
        return 1 in true or called.any()
    return bare != "r2" or len(set(true)) > 1


@pytest.mark.parametrize(("kind", "name", "ties"), CASES)
def test_each_silo_and_run_equals_scikit_learn(kind, name, ties):
    data = made(kind, seed=len(name), ties=ties)
    value, low, high, _ = read_metric(name, Facts(kind, "cross-entropy", True)).values(data)
    for (run, k), true, values, called in rows_of_each(data):
        at = float(name.partition("@")[2] or 0.5)
        shown = second(values) > at if "@" in name else called
        if not is_defined(kind, name, true, shown):
            assert np.isnan([value[run, k], low[run, k], high[run, k]]).all()
            continue
        slow = SLOW[kind][name](true, values, called)
        assert value[run, k] == pytest.approx(slow, rel=1e-12, abs=1e-12)
        if name == "calibration-error":
            assert np.isnan([low[run, k], high[run, k]]).all()
        elif len(true) > 1:
            assert low[run, k] <= value[run, k] <= high[run, k]


def test_every_measure_is_compared():
    compared = {name.partition("@")[0] for each in SLOW.values() for name in each}
    assert compared == set(METRICS)
    for name, metric in METRICS.items():
        assert {kind for kind, each in SLOW.items() if name in each} == set(metric.kinds)


@pytest.mark.parametrize("name", ["sensitivity", "specificity", "auc", "f1@1"])
def test_scores_that_are_no_probabilities(name):
    data = made(TWO, probable=False)
    value = read_metric(name, Facts(TWO, "hinge", False)).values(data).value
    for (run, k), true, values, called in rows_of_each(data):
        score = values[:, 1] - values[:, 0]
        slow = {
            "auc": lambda: learn.roc_auc_score(true, score),  # noqa: B023
            "f1@1": lambda: learn.f1_score(true, score > 1),  # noqa: B023
        }.get(name, lambda: SLOW_TWO[name](true, values, called))  # noqa: B023
        if k in (0, 2, 4):
            assert value[run, k] == pytest.approx(slow(), abs=1e-12)


def test_calibration_agrees_with_the_curve_of_scikit_learn():
    data = made(TWO)
    first = data.values[0, :40, 1]
    true, said = calibration_curve(data.targets[:40], first, n_bins=10)
    counts = np.histogram(first, bins=10, range=(0, 1))[0]
    counts = counts[counts > 0]
    error = (counts / 40 * np.abs(true - said)).sum()
    assert METRICS["calibration-error"].values(data).value[0, 0] == pytest.approx(error)


@pytest.mark.parametrize("kind", [TWO, SEVERAL, NUMBER])
def test_silos_weigh_by_their_test_rows_and_undefined_ones_are_left_out(kind):
    data = made(kind, 7)
    for name in SLOW[kind]:
        metric = read_metric(name, Facts(kind, "cross-entropy", True))
        for run, measured in enumerate(measure(metric, [data], NAMES)):
            defined = {n: s for n, s in zip(NAMES, SIZES, strict=True) if n not in measured.undefined}
            total = sum(measured.silos[n].value * s for n, s in defined.items()) / sum(defined.values())
            assert measured.value == pytest.approx(total, abs=1e-12)
            assert "d" in measured.undefined  # it has no rows
            assert ("f" in measured.undefined) == np.isnan(metric.values(data).value[run, 5])
            assert measured.why == (metric.undefined if measured.undefined else "")


def test_a_model_that_diverged_has_no_measures_and_neither_has_its_run():
    data = made(TWO)
    values = data.values.copy()
    values[1, 45, 0] = np.inf  # a row of silo c
    broken = predictions(TWO, SIZES, data.targets, values, data.predicted, True)
    for name in ("auc", "accuracy", "log-loss"):
        before, after = (measure(METRICS[name], [each], NAMES) for each in (data, broken))
        assert np.isnan(after[1].value)
        assert np.isnan(after[1].silos["c"].value)
        assert "c" not in after[1].undefined
        assert after[1].silos["a"] == before[1].silos["a"]
        assert (
            after[0] == pytest.approx(before[0], nan_ok=True) if False else after[0].value == before[0].value
        )


def test_what_constants_score():
    data = made(SEVERAL)
    best = sum(max((data.targets[data.silo == k] == c).sum() for c in range(4)) for k in range(6) if SIZES[k])
    assert constant_score([data]) == best / sum(SIZES)
    poor = silos_no_better([data], NAMES)
    for (run, k), true, _, called in rows_of_each(data):
        most = max(((true == c).sum() for c in range(4)), default=0)
        assert (NAMES[k] in poor[run]) == (len(true) > 0 and (true == called).sum() <= most)
    numbers = made(NUMBER)
    apart = sum(
        ((t - t.mean()) ** 2).sum() for (run, _), t, _, _ in rows_of_each(numbers) if run == 0 and len(t)
    )
    assert constant_score([numbers]) == pytest.approx(apart / sum(SIZES))
    poor = silos_no_better([numbers], NAMES)
    for (run, k), true, values, _ in rows_of_each(numbers):
        if len(true):
            assert (NAMES[k] in poor[run]) == (
                ((values - true) ** 2).sum() >= ((true - true.mean()) ** 2).sum() - 1e-12
            )


@pytest.mark.parametrize(
    ("kind", "shares", "names"),
    [
        (NUMBER, [], ["mse"]),
        (TWO, [0.5, 0.5], ["accuracy"]),
        (TWO, [0.81, 0.19], ["auc", "balanced-accuracy", "accuracy"]),
        (SEVERAL, [0.1] * 10, ["accuracy"]),
        (SEVERAL, [0.03] + [0.97 / 9] * 9, ["auc", "balanced-accuracy", "accuracy"]),
        ("something else", [], []),
    ],
)
def test_defaults_by_task(kind, shares, names):
    assert [metric.name for metric in default_metrics(kind, shares)] == names


@pytest.mark.parametrize(
    ("name", "facts", "words"),
    [
        ("roc_auc", Facts(TWO, "logistic", True), "unknown metric 'roc_auc'; did you mean 'auc'"),
        ("brierr", Facts(TWO, "logistic", True), "did you mean 'brier'"),
        (
            "auc",
            Facts(NUMBER, "squared", False),
            "'auc' needs two classes or several classes, but the target is",
        ),
        (
            "mse",
            Facts(TWO, "logistic", True),
            "'mse' needs a number, but the target is two classes; use accuracy",
        ),
        (
            "sensitivity",
            Facts(SEVERAL, "cross-entropy", True),
            "needs two classes, but the target is several",
        ),
        ("brier", Facts(TWO, "hinge", False), "needs probabilities, but the loss 'hinge' gives scores only"),
        (
            "auc@0.3",
            Facts(TWO, "logistic", True),
            "'auc@0.3' has a threshold, which 'auc' of two classes does",
        ),
        ("f1@0.3", Facts(SEVERAL, "cross-entropy", True), "which 'f1' of several classes does not use"),
        (
            "f1@2",
            Facts(TWO, "logistic", True),
            "expected a probability between 0 and 1 after the @ of 'f1@2'",
        ),
        ("f1@x", Facts(TWO, "hinge", False), "expected a number after the @ of 'f1@x', got 'x'"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_in_a_sentence(name, facts, words):
    with pytest.raises(Problem, match=words):
        read_metric(name, facts)


def test_all_problems_at_once():
    with pytest.raises(Problem) as caught:
        read_metrics(["auc", "nonsense", "r2", "r2"], Facts(NUMBER, "squared", False))
    assert [line.partition(" ")[0] for line in str(caught.value).split("\n")] == ["report.metrics:"] * 2
    kept = read_metrics(["f1", "auc", "f1"], Facts(TWO, "logistic", True))
    assert [metric.name for metric in kept] == ["f1", "auc"]
