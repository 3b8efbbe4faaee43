"""Results over a setting that varies: lines, the table in markdown, and the plot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coterie.experiment.result import Result, RunRecord, SiloRecord
from coterie.report.plot import COLOURS, GREY, MARKED, draw, figure_of
from coterie.report.summary import lines_over, markdown, swept_key


def run(method, score, seed=0, **settings):
    silos = {"north": SiloRecord(score, settings.get("epsilon", 1.0), 1e-3, 1.0)}
    history = [(0, 1.0), (5, score)]
    return RunRecord(method, settings, seed, "mse", score, silos, 1.0, 8, 8, history)


def result(*runs, higher=False):
    return Result(SimpleNamespace(metric="mse", higher_is_better=higher), ("north",), list(runs))


SWEPT = [
    run("mr-mtl", score, seed, epsilon=epsilon, lam=1.0)
    for epsilon, scores in ((1, (0.4, 0.6)), (2, (0.3, 0.3)), (20, (0.1, 0.2)))
    for seed, score in enumerate(scores)
]


def test_the_setting_with_most_values_is_the_axis():
    assert swept_key(SWEPT) == "epsilon"
    assert swept_key(SWEPT[:4]) is None
    assert swept_key([run("local", 0.1)]) is None
    assert swept_key([run("pfa", 0.1, divide=way) for way in ("top", "kmeans", "mixture")]) is None


def test_lines_are_means_over_seeds():
    other = run("local", 0.7)
    swept, flat = lines_over([*SWEPT, other], "epsilon")
    assert (swept.label, swept.values) == ("mr-mtl lam=1", (1.0, 2.0, 20.0))
    assert swept.means == pytest.approx((0.5, 0.3, 0.15))
    assert swept.deviations == pytest.approx((0.2 / 2**0.5, 0, 0.1 / 2**0.5))
    assert (flat.label, flat.values, flat.means) == ("local", (), (0.7,))


def test_the_table_has_a_column_for_each_value():
    text = markdown(result(*SWEPT, run("local", 0.7), run("ditto", 0.9, epsilon=2)))
    lines = text.splitlines()
    assert lines[0] == "Test mse (lower is better), 1 silo, 2 seeds, by epsilon: mean ± deviation over seeds."
    assert lines[2:7] == [
        "| method | 1 | 2 | 20 |",
        "| --- | --- | --- | --- |",
        "| mr-mtl lam=1 | 0.5000 ± 0.1414 | 0.3000 ± 0.0000 | 0.1500 ± 0.0707 |",
        "| local | 0.7000 | 0.7000 | 0.7000 |",
        "| ditto |  | 0.9000 |  |",
    ]
    assert "Tuning is not accounted for" in lines[-2]
    assert lines[-1].startswith("These are scores of a simulation")


def noisy(method, noise, epsilon, **settings):
    silos = {
        "north": SiloRecord(0.5, epsilon, 1e-3, noise),
        "south": SiloRecord(0.5, epsilon / 2, 1e-3, noise),
    }
    made = {**settings, "noise": noise} if noise else settings
    return RunRecord(method, made, 0, "mse", 0.5, silos, 1.0, 8, 8, [(5, 0.5)])


def test_a_table_over_something_else_tells_epsilons_too():
    """Of noises that are given nobody could read what they come to."""
    over = [noisy("fedavg", noise, epsilon) for noise, epsilon in ((0.5, 40.0), (1, 9.0), (2, 3.0))]
    text = markdown(result(*over, noisy("heads", 1, 8.0), noisy("local", 0, 5.0)))
    _, spent = text.split("Upper bound on epsilon, by noise.\n\n")
    assert spent.splitlines()[:5] == [
        "| method | 0.5 | 1 | 2 |",
        "| --- | --- | --- | --- |",
        "| fedavg | 40.000 | 9.000 | 3.000 |",
        "| heads |  | 8.000 |  |",
        "| local | 5.000 | 5.000 | 5.000 |",
    ]
    same = [run("mr-mtl", 0.5, lam=lam) for lam in (1, 2, 3)]
    assert "\nEpsilon is at most 1.000.\n" in markdown(result(*same))
    assert "Epsilon is at most" not in markdown(result(*SWEPT))


def test_without_a_line_the_table_has_a_row_for_each_method():
    text = markdown(result(run("local", 0.7, 0), run("local", 0.5, 1), higher=True))
    assert "| local | 0.6000 | 0.1414 | 1.000 |" in text
    assert "higher is better" in text
    assert "uning not accounted:" not in text  # one row: nothing to choose from


def test_a_table_of_a_sweep_tells_how_its_tuning_was_paid_for():
    made = result(*SWEPT)
    made.tuning = {"trials": 3}
    text = markdown(made)
    assert "result.json and the statements include what tuning cost" in text
    assert "Tuning not accounted" not in text


def test_nothing_released_is_not_shown_as_protected():
    silent = run("local", 0.7)
    silent.silos["north"] = SiloRecord(0.7, 0.0, 0.0, 0.0)
    assert "| local | 0.7000 | - | - |" in markdown(result(silent))


@pytest.mark.parametrize("key", ["epsilon", "lam"])
@pytest.mark.parametrize("least", [0.0, 0.5])
def test_lines_are_drawn(tmp_path, key, least):
    runs = [run("mr-mtl", 0.1 + value, **{key: value}) for value in (least, 1.0, 30.0)]
    draw(result(*runs, run("local", 0.3)), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def names_of(legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("count", [3, 8, 12, 30])
@pytest.mark.parametrize("higher", [False, True])
def test_a_plot_of_many_methods_marks_the_best_and_stays_low(count, higher):
    """Each method has a row; colours and the legend are for as many as eyes can tell apart."""
    scores = [0.1 + (7 * k % count) / count for k in range(count)]
    figure = figure_of(result(*(run(f"m{k}", score) for k, score in enumerate(scores)), higher=higher))
    left, right = figure.axes
    rows = [label.get_text().split()[0] for label in left.get_yticklabels()]
    order = [f"m{k}" for k in range(count)]
    ranked = sorted(order, key=lambda name: scores[int(name[1:])], reverse=higher)
    colours = {line.get_color() for line in right.get_lines()}
    if count <= len(COLOURS):
        assert (rows, names_of(right.get_legend())) == (order, order)
        assert len(colours) == count
    else:
        assert rows == ranked
        assert names_of(right.get_legend()) == [*ranked[:MARKED], f"{count - MARKED} others"]
        assert colours == {*COLOURS[1:], GREY}
    assert len(right.get_lines()) == count
    assert figure.get_size_inches()[1] < max(7, 1.5 + 0.33 * count)


def test_a_plot_of_many_lines_marks_those_that_reach_the_best():
    over = [run(f"m{k}", 1 + k / 10 + value / 100, lam=value) for k in range(12) for value in (1, 2, 30)]
    figure = figure_of(result(*over))
    assert names_of(figure.legends[0]) == [*(f"m{k}" for k in range(MARKED)), "5 others"]
    assert [len(axes.get_lines()) for axes in figure.axes] == [12, 12]


def test_models_that_diverged_come_last_in_a_plot():
    diverged = [run("broken", float("nan"))]
    figure = figure_of(result(*diverged, *(run(f"m{k}", 1.0 + k) for k in range(9))))
    assert figure.axes[0].get_yticklabels()[-1].get_text().startswith("broken")
