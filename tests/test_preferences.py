"""Budgets that are drawn from the papers' preferences, and budgets from files."""

from __future__ import annotations

import doctest
import json
import math

import numpy as np
import pytest
from scipy import stats

from coterie.errors import Problem
from coterie.privacy import calibration, preferences
from coterie.privacy.budget import per_silo
from coterie.privacy.preferences import PREFERENCES, draw_budgets, read_budgets

# Table 1, written again as distribution functions.
TABLE = {
    "uniform": lambda x: stats.uniform.cdf(x, 1, 9),
    "gauss": lambda x: stats.truncnorm.cdf(x, -3, math.inf, loc=3, scale=1),
    "pareto": lambda x: stats.pareto.cdf(x, 1, scale=0.5),
    "mixgauss1": lambda x: 0.9 * stats.norm.cdf(x, 0.1, 0.01) + 0.1 * stats.norm.cdf(x, 10, 0.1),
    "mixgauss2": lambda x: 0.9 * stats.norm.cdf(x, 0.5, 0.01) + 0.1 * stats.norm.cdf(x, 10, 0.1),
    "mixgauss3": lambda x: 0.9 * stats.norm.cdf(x, 1.0, 0.1) + 0.1 * stats.norm.cdf(x, 10, 0.1),
    "mixgauss4": lambda x: (
        0.5 * stats.norm.cdf(x, 0.1, 0.01)
        + 0.4 * stats.norm.cdf(x, 1.0, 0.1)
        + 0.1 * stats.norm.cdf(x, 10.0, 1.0)
    ),
}
WRONG = {
    "gauss": lambda x: stats.norm.cdf(x, 3, 1.2),
    "pareto": lambda x: stats.pareto.cdf(x, 1.2, scale=0.5),
    "mixgauss1": lambda x: 0.9 * stats.norm.cdf(x, 0.1, 0.1) + 0.1 * stats.norm.cdf(x, 10, 0.1**0.5),
    "mixgauss3": lambda x: 0.8 * stats.norm.cdf(x, 1.0, 0.1) + 0.2 * stats.norm.cdf(x, 10, 0.1),
    "mixgauss4": TABLE["mixgauss1"],
}


def test_every_preference_of_the_table_is_there():
    assert list(PREFERENCES) == list(TABLE)
    assert all(sum(part.weight for part in parts) == pytest.approx(1) for parts in PREFERENCES.values())


@pytest.mark.parametrize("name", TABLE)
def test_draws_follow_the_table(name):
    """Kolmogorov-Smirnov, one wrong alarm in a million, were the seed not fixed."""
    drawn = draw_budgets(name, 4000, seed=0)
    assert stats.kstest(drawn, TABLE[name]).pvalue > 1e-6
    assert all(0 < epsilon <= preferences.MOST_EPSILON for epsilon in drawn)
    assert all(type(epsilon) is float for epsilon in drawn)


@pytest.mark.parametrize("name", WRONG)
def test_the_test_of_draws_rejects_other_readings(name):
    """Variances for deviations, other weights, another tail."""
    assert stats.kstest(draw_budgets(name, 4000, seed=0), WRONG[name]).pvalue < 1e-6


def test_impossible_draws_are_made_again(monkeypatch):
    offered = iter([-1.0, 0.0, 1e6, 2.0, 3.0])
    monkeypatch.setitem(PREFERENCES, "gauss", (preferences.Part(1.0, lambda _: next(offered)),))
    assert draw_budgets("gauss", 2, seed=0) == (2.0, 3.0)


def test_what_may_be_drawn_is_what_can_be_calibrated():
    assert preferences.MOST_EPSILON == calibration.MOST_EPSILON


def test_a_seed_gives_the_same_budgets_and_more_silos_do_not_change_them():
    many = draw_budgets("gauss", 30, seed=5)
    assert draw_budgets("gauss", 30, seed=5) == many
    assert draw_budgets("gauss", 10, seed=5) == many[:10]
    assert draw_budgets("Gauss", 10, seed=5) == many[:10]
    assert not set(many) & set(draw_budgets("gauss", 30, seed=6))
    assert len(set(many)) == 30


def test_mixtures_have_the_same_public_silos():
    public = [
        [k for k, epsilon in enumerate(draw_budgets(f"mixgauss{number}", 200, seed=3)) if epsilon > 5]
        for number in (1, 2, 3, 4)
    ]
    assert public[0]
    assert public.count(public[0]) == 4


def test_some_silo_can_be_asked_to_be_public():
    plain = [draw_budgets("mixgauss1", 5, seed) for seed in range(40)]
    asked = [draw_budgets("mixgauss1", 5, seed, with_public=True) for seed in range(40)]
    assert any(max(drawn) < 5 for drawn in plain)
    assert all(max(drawn) > 5 for drawn in asked)
    assert all(a == b for a, b in zip(plain, asked, strict=True) if max(a) > 5)
    assert draw_budgets("pareto", 5, 0, with_public=True) == draw_budgets("pareto", 5, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mixgaus1", 3, 0), "unknown budget preference 'mixgaus1'; did you mean 'mixgauss1'?"),
        (("zipf", 3, 0), "unknown budget preference 'zipf'; known: gauss, mixgauss1,"),
        (("gauss", 0, 0), "silos must be a whole number >= 1, got 0"),
        (("gauss", 2.5, 0), "silos must be a whole number >= 1, got 2.5"),
        (("gauss", 3, -1), "seed must be a whole number >= 0, got -1"),
        (("gauss", 3, True), "seed must be a whole number >= 0, got True"),
    ],
)
def test_draws_that_cannot_be_made(arguments, said):
    with pytest.raises(Problem) as caught:
        draw_budgets(*arguments)
    assert str(caught.value).startswith(said)


def test_the_example_of_the_documentation():
    assert doctest.testmod(preferences) == (0, 1)


# --- files

FILES = {
    "plain.csv": "silo,epsilon\nnorth,1\nsouth,2.5\ndefault,inf\n",
    "spaced.csv": '\ufeff silo , epsilon\r\n"north", 1\r\n\r\n south ,2.5\r\ndefault,inf\r\n , \r\n',
    "turned.csv": "epsilon,silo\n1,north\n2.5,south\nINF,default\n",
    "plain.json": '{"north": 1, "south": 2.5, "default": Infinity}',
    "tables.JSON": '{"north": {"epsilon": 1}, "south": {"epsilon": 2.5}, "default": Infinity}',
    "plain.toml": "north = 1\nsouth = 2.5\ndefault = inf\n",
    "tables.toml": "north = 1\ndefault = {epsilon = inf}\n[south]\nepsilon = 2.5\n",
}
DELTAS = {
    "deltas.csv": "silo,epsilon,delta\nnorth,1,1e-5\nsouth,2,1e-6\n",
    "deltas.json": '{"north": {"epsilon": 1, "delta": 1e-5}, "south": {"epsilon": 2, "delta": 1e-6}}',
    "deltas.toml": "[north]\nepsilon = 1\ndelta = 1e-5\n[south]\nepsilon = 2\ndelta = 1e-6\n",
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_budgets(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(FILES[name].encode())
    found = read_budgets(path)
    assert found == {"north": 1.0, "south": 2.5, "default": math.inf}
    assert all(type(epsilon) is float for epsilon in found.values())
    assert read_budgets(str(path), "delta") == {}
    assert per_silo("epsilon", found, ["west", "south", "north"]) == [math.inf, 2.5, 1.0]


@pytest.mark.parametrize("name", DELTAS)
def test_deltas_come_from_the_same_file(tmp_path, name):
    path = tmp_path / name
    path.write_text(DELTAS[name])
    assert read_budgets(path) == {"north": 1.0, "south": 2.0}
    assert read_budgets(path, "delta") == {"north": 1e-5, "south": 1e-6}


def test_drawn_budgets_read_back(tmp_path):
    drawn = draw_budgets("gauss", 20, seed=1)
    path = tmp_path / "budgets.csv"
    path.write_text("silo,epsilon\n" + "".join(f"{k},{epsilon!r}\n" for k, epsilon in enumerate(drawn)))
    assert tuple(read_budgets(path).values()) == drawn
    path = tmp_path / "budgets.json"
    path.write_text(json.dumps(dict(zip("abcdefghijklmnopqrst", drawn, strict=True))))
    assert tuple(read_budgets(path).values()) == drawn


EPSILON = "expected epsilon to be a number > 0 and at most 1000, or inf (no privacy), got"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("b.csv", "", ["no column 'silo'; the first line must name", "no column 'epsilon'; the first line"]),
        ("b.csv", "silo,epsilon\n", ["it names no silo; add one line per silo"]),
        ("b.csv", "silo,epsilno\na,1\n", ["unknown column 'epsilno'; did you mean 'epsilon'?", "no column"]),
        ("b.csv", "silo,epsilon,epsilon\na,1,2\n", ["column 'epsilon' appears twice; keep one"]),
        (
            "b.csv",
            "silo,epsilon\na,1,2\nb\n",
            ["line 2: expected 2 cells, got 3", "line 3: expected 2 cells"],
        ),
        ("b.csv", "silo,epsilon\n,1\n", ["line 2: the silo has no name; add one"]),
        (
            "b.csv",
            "silo,epsilon,delta,size\na,0,1e-5,9\nb,x,2,9\n\nb,nan,,9\nc,1e9,0.1,9\n",
            [
                "unknown column 'size'; did you mean 'silo'?",
                f"line 2: {EPSILON} 0.0",
                f"line 3: {EPSILON} 'x'",
                "line 3: expected delta to be a number between 0 and 1, got 2.0",
                "line 5: silo 'b' appears twice (first on line 3); keep one",
                f"line 5: {EPSILON} nan",
                "line 5: expected delta to be a number between 0 and 1, got ''",
                f"line 6: {EPSILON} 1000000000.0",
            ],
        ),
        ("b.json", "[1, 2]", ["it names no silo; map each silo's name to its epsilon"]),
        ("b.toml", "", ["it names no silo; map each silo's name to its epsilon"]),
        (
            "b.json",
            '{"a": "1", "a": true, "b": -1, "": 1, "c": {"delta": 0, "eps": 1}, "d": [1], "e": 1%s}'
            % ("0" * 400),
            [
                "'a' appears twice; keep one",
                "silo 'c': unknown key 'eps'; did you mean 'epsilon'?",
                "silo 'c': no epsilon; add one",
                f"silo 'a': {EPSILON} True",
                f"silo 'b': {EPSILON} -1",
                "silo '': the silo has no name; add one",
                "silo 'c': expected delta to be a number between 0 and 1, got 0",
                f"silo 'd': {EPSILON} [1]",
                f"silo 'e': {EPSILON} 1000",
            ],
        ),
        ("b.toml", "a = '1'\nb = 0.0\n", [f"silo 'a': {EPSILON} '1'", f"silo 'b': {EPSILON} 0.0"]),
    ],
)
def test_all_that_is_wrong_in_a_file_is_said_at_once(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    for key in ("epsilon", "delta"):
        with pytest.raises(Problem) as caught:
            read_budgets(path, key)
        first, *lines = str(caught.value).splitlines()
        assert first == f"{path} has {len(said)} problem(s):"
        for line, start in zip(lines, said, strict=True):
            assert line.startswith(f"  {start}")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("b.csv", None, "the budget file '{path}' does not exist"),
        ("b.csv", b"\xff\xfe\x00", "cannot read the budget file '{path}': "),
        ("b.csv", b'silo,epsilon\n"a,1\n', "'{path}' is not valid CSV: "),
        ("b.json", b"{", "'{path}' is not valid JSON: "),
        ("b.toml", b"a = 1\na = 2\n", "'{path}' is not valid TOML: "),
        ("b.xlsx", b"", "the budget file '{path}' must end in .csv, .json or .toml"),
        ("b", b"", "the budget file '{path}' must end in .csv, .json or .toml"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Problem) as caught:
        read_budgets(path)
    assert str(caught.value).startswith(said.format(path=path))


def test_a_folder_and_an_unknown_key(tmp_path):
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(Problem, match="cannot read the budget file"):
        read_budgets(tmp_path / "b.csv")
    with pytest.raises(Problem, match="key must be one of epsilon, delta, got 'eps'"):
        read_budgets(tmp_path / "b.csv", "eps")


def test_numpy_numbers_may_say_how_many():
    assert draw_budgets("uniform", np.int64(2), np.int64(1)) == draw_budgets("uniform", 2, 1)
