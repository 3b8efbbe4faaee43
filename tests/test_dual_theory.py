"""Theorems 3 and 4 on dual coordinates, relations as pictures, and what the paper would report."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from coterie.experiment.statements import statement_of
from coterie.methods import Dual
from coterie.privacy.events import Event
from coterie.privacy.published.dual import published_dual
from coterie.privacy.published.formulas import DualSetting, dual_epsilon
from coterie.privacy.statement.build import checksum, text_of
from coterie.privacy.statement.verify import verify
from coterie.report.relations_plot import by_similarity, correlations, draw_relations, relations_facts
from coterie.theory.convergence.dual import lipschitz_rounds, quality, smooth_rounds, smooth_step
from tests.helpers import call, experiment, refused
from tests.test_dual import federation, trained


def test_theorem_3_holds_where_it_applies():
    """Squared loss, xi 1/2, all silos solve their problem well: the gap is below the bound's in fewer rounds."""
    data = federation(classes=0)
    sizes, wanted = data.sizes, 1e-3
    method = Dual(lam=1.0, xi=0.5, inner=0, form="upload")
    step = smooth_step(0.5, 0.5 * 3, 1.0, sizes, 1 / 3)
    rounds = smooth_rounds(sum(sizes), wanted, 0.5, quality(0.0, 0.5), step)
    _, result = trained(data, method, "squared", rounds=min(rounds, 120), epochs=3.0, steps=None)
    assert result.runs[0].gaps[-1][1] * sum(sizes) <= wanted  # the gap is at least D - D*
    assert rounds >= 120


def test_rounds_grow_as_they_should():
    base = smooth_rounds(1000, 1e-2, 0.5, 0.1, 0.2)
    assert base == math.ceil(math.log(1e5) / (0.25 * 0.9 * 0.2))
    assert smooth_rounds(1000, 1e-4, 0.5, 0.1, 0.2) > base
    assert smooth_rounds(1000, 1e-2, 0.5, quality(0.5, 0.1), 0.2) > base
    few = lipschitz_rounds([10, 20], 0.1, 0.5, 0.0, 1.0, 1.0, 5.0)
    weight = 2 * 500 / 900
    first = max(0, math.ceil(0.5 * math.log(10 / weight)))
    assert few == first + math.ceil(4 * (4 * weight / 0.1 - 1)) + math.ceil(2 * weight / 0.1 / 0.5)
    assert lipschitz_rounds([10, 20], 0.01, 0.5, 0.0, 1.0, 1.0, 5.0) > few


def test_where_the_bounds_say_nothing():
    with refused("xi must be a number in (0, 1), got 1: the bounds divide by 1 - xi"):
        smooth_rounds(10, 0.1, 1.0, 0.0, 0.5)
    with refused("theta must be a number in [0, 1), got 1"):
        lipschitz_rounds([10], 0.1, 0.5, 1.0, 1.0, 1.0, 1.0)
    with refused("drop must be a number in [0, 1), got 1"):
        quality(1.0, 0.0)
    with refused("step must be a number in (0, 1), got 1"):
        smooth_rounds(10, 0.1, 0.5, 0.0, 1.0)
    with refused("lam must be a number > 0, got 0"):
        smooth_step(0.5, 1.0, 0.0, [3], 1.0)


def two_groups() -> torch.Tensor:
    models = torch.tensor([[1.0, 0], [0, 1], [1, 0.1], [0.1, 1], [0.9, 0]])
    return models @ models.T / float((models @ models.T).trace())


def test_similar_silos_stand_together(tmp_path):
    omega = two_groups()
    similar = correlations(omega.double().numpy())
    np.testing.assert_allclose(np.diag(similar), 1)
    order = by_similarity(similar)
    assert {frozenset(order[:3]), frozenset(order[3:])} in (
        {frozenset({0, 2, 4}), frozenset({1, 3})},
        {frozenset({0, 2}), frozenset({1, 3, 4})},
    ) or {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({1, 3}), frozenset({0, 2, 4})}
    facts = relations_facts(omega, list("abcde"))
    assert json.loads(json.dumps(facts))["silos"] == list("abcde")
    assert sorted(facts["order"]) == list("abcde")
    draw_relations(omega, list("abcde"), "dual", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"
    assert by_similarity(np.eye(2)) == [0, 1]


def test_what_the_paper_reports_stands_beside_what_is_certified():
    made = experiment(federation(), Dual(inner=10), epsilon=4.0, rounds=30, batch=6, steps=1)
    plan = made.plan()
    said = statement_of(made, plan, 0, 0)
    verify(text_of(said))
    silo = plan.silos[0][0]
    (theirs,) = [one for one in said["published"] if one["paper"].startswith("Hu, Guo")]
    rate = silo.work.rate
    assert theirs["epsilon"] == pytest.approx(
        dual_epsilon(silo.noise, 10, silo.delta, DualSetting(1.0, rate, 1.0))
    )
    assert "K = 10 of 30 uploads" in theirs["formula"]
    forged = {**said, "published": [{**one, "epsilon": 0.1} for one in said["published"]]}
    forged = {**forged, "checksum": checksum(forged)}
    with refused("published: does not match what the formulas give"):
        verify(text_of(forged))


def test_it_is_for_doors_of_duals_only():
    event = Event("gaussian", 2.0, 0.1, 30)
    assert not published_dual({"inner": 10}, [("descend", 30, 1)], [event], 1e-3)
    assert not published_dual({"inner": 10}, [("solve_dual", 3, 1), ("select", 1, 1)], [event], 1e-3)
    assert not published_dual({"inner": "x"}, [("solve_dual", 30, 1)], [event], 1e-3)
    assert published_dual({"inner": 0}, [("solve_dual", 30, 2)], [event], 1e-3)[0].formula.count("q = 0.2")


def test_a_folder_has_the_relations_and_a_plan_the_column(tmp_path, monkeypatch, capsys):
    rows = np.random.default_rng(0).normal(size=(60, 3))
    table = tmp_path / "rows.csv"
    lines = [
        f"{a:.3f},{b:.3f},{c:.3f},{'yes' if a + c > 0 else 'no'},{'abc'[k % 3]}"
        for k, (a, b, c) in enumerate(rows)
    ]
    table.write_text("one,two,three,target,silo\n" + "\n".join(lines))
    config = tmp_path / "dual.toml"
    config.write_text(
        f"[data]\nsource = '{table}'\nsilo_column = 'silo'\ntarget_column = 'target'\nnorm = 4.0\n"
        "[model]\nloss = 'hinge'\n[train]\nrounds = 4\nsteps = 1\n[privacy]\nepsilon = 4\ndelta = 1e-3\n"
        "[[method]]\nname = 'dual'\nlam = [0.1, 1.0]\ninner = 2\n[[method]]\nname = 'mocha'\n"
    )
    code, out, _ = call(monkeypatch, capsys, "plan", config, "--json")
    assert code == 0
    column = json.loads(out)["plans"][0]["variants"][0]["silos"]["a"]["published"]
    assert column[-1]["paper"] == "Hu, Guo, Li, Pei, Gong 2020"
    code, _, said = call(monkeypatch, capsys, "run", config, "--out", tmp_path / "out")
    assert code == 0, said
    found = sorted(path.name for path in (tmp_path / "out" / "relations").iterdir())
    assert len(found) == 6
    facts = json.loads(next((tmp_path / "out" / "relations").glob("dual*.json")).read_text())
    assert np.trace(facts["omega"]) == pytest.approx(1, abs=1e-4)
    config.write_text(config.read_text().replace("lam = [0.1, 1.0]", "lam = 0\nxi = 2"))
    code, _, said = call(monkeypatch, capsys, "run", config)
    assert code == 2
    assert "lam: expected a number >= 1e-09 and <= 1e+09, got 0" in said
    assert "xi: expected a number > 0 and <= 1, got 2" in said
