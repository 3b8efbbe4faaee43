"""Statements of metered runs name the grid of every release: the one that was used, and no other is accepted."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coterie.errors import Problem
from coterie.experiment.run_sweep import trial_statement
from coterie.experiment.statements import statement_of
from coterie.experiment.sweep import Sweep, noised_scores, score_events, tuned_plan
from coterie.guard.meter import make_meter
from coterie.guard.session import Charging, Session
from coterie.methods import IFCA, MRMTL, Dual, FedAvg, Joint, Related
from coterie.noise import rounded
from coterie.noise.rounded import grid_exponent
from coterie.privacy.merges import MergeEvents
from coterie.privacy.statement import grids
from coterie.privacy.statement.build import FAST_NOISE, text_of
from coterie.privacy.statement.grids import grid_facts, grid_lines
from coterie.privacy.statement.verify import verify
from coterie.protocol.doors import DESCEND, SOLVE_DUAL, SOLVE_DUAL_WHOLE, select_door
from coterie.report.statement_page import page
from tests.books import custody, key_in, signed_anew
from tests.helpers import call, experiment, refused
from tests.test_silo_ledger import protected
from tests.test_statement import make
from tests.test_sweep import TRIALS


@pytest.fixture
def used(monkeypatch):
    """The deviations of all exact noise that is drawn from now on."""
    seen, grids = set(), rounded._grids

    def recorded(deviation, given):
        seen.update(deviation[deviation > 0].tolist())
        return grids(deviation, given)

    monkeypatch.setattr(rounded, "_grids", recorded)
    return seen


def stated(made, folder):
    """Train with ledgers; return the statements of all silos in all runs, each of which verifies."""
    plan, unit = made.plan(), made.privacy.unit
    budgets = [(200.0, 1e-1)] * len(made.federation)
    meter = make_meter(folder, made.federation, budgets, unit, custody(folder))
    made.train(plan, session=Session(meter=meter))
    places = [(run, k) for run in range(len(made.keys)) for k in range(len(made.federation))]
    contents = [statement_of(made, plan, *place, meter) for place in places]
    for content in contents:
        assert verify(text_of(content)) == content
    return contents


def deviations(contents):
    return {row["deviation"] for content in contents for row in content["grid"]["releases"]}


BUDGETS = {"silo-0": 1.0, "silo-1": 3.0, "default": 7.0}
CLIPS = {"silo-0": 0.1, "silo-1": 1.0, "default": 8.0}


@pytest.mark.parametrize(
    ("method", "doors"),
    [
        (FedAvg(), {"descend"}),
        (IFCA(clusters=2, choosing=0.7), {"descend"}),
        (Dual(form="examples"), {"solve_dual"}),
        (Dual(form="upload"), {"solve_dual whole"}),
    ],
    ids=["descend", "with choices", "dual", "dual whole"],
)
def test_the_grids_of_examples_are_those_that_were_used(federation, tmp_path, used, method, doors):
    """Silos and runs with other budgets and clips have other noise, and each states its own."""
    made = experiment(federation, method, epsilon=BUDGETS, clip=CLIPS, seeds=(0, 3))
    contents = stated(made, tmp_path)
    assert deviations(contents) == used
    assert len(used) == 3
    for content in contents:
        (row,) = content["grid"]["releases"]
        assert {row["release"]} == doors
        assert row["clip"] == CLIPS.get(content["silo"], 8.0)
        assert row["noise"] in {event["noise"] for event in content["events"]}
        assert row["exponent"] == grid_exponent(row["deviation"])
        assert FAST_NOISE not in content["not_covered"]


@pytest.mark.parametrize("epsilon", [6.0, {"silo-0": 2.0, "default": 6.0}], ids=["equal", "unequal"])
@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_the_grids_of_whole_silos_are_those_that_were_used(federation, tmp_path, used, noise_by, epsilon):
    """Silos with smaller budgets have smaller clips, but share one noise, and so one grid."""
    contents = stated(protected(federation, MRMTL(), noise_by=noise_by, epsilon=epsilon), tmp_path)
    (deviation,) = used
    assert sorted(deviations(contents)) == pytest.approx([deviation] * len(deviations(contents)), rel=1e-12)
    assert {row["exponent"] for c in contents for row in c["grid"]["releases"]} == {grid_exponent(deviation)}


@pytest.mark.parametrize("method", [Joint(), Related()])
def test_sums_by_a_matrix_say_that_their_grid_may_change(federation, tmp_path, used, method):
    contents = stated(protected(federation, method), tmp_path)
    assert deviations(contents) == {None}
    assert used
    for content in contents:
        assert "may change from round to round" in " ".join(grid_lines(content["grid"]))


def test_a_clip_that_moves_says_so_and_the_grid_of_the_count_is_stated(federation, tmp_path, used):
    contents = stated(protected(federation, FedAvg(), quantile=0.5, rounds=6), tmp_path)
    for content in contents:
        merge, count = content["grid"]["releases"]
        assert (merge["release"], merge["deviation"], merge["exponent"]) == ("merge", None, None)
        assert count["deviation"] in used
        assert any(merge["noise"] * merge["clip"] == pytest.approx(first, rel=1e-12) for first in used)
    assert len(used) > 2  # the clip moved


def test_trials_with_other_clips_are_stated_apart(federation, tmp_path, used):
    """Before, all trials of a sweep were said to have the clip of the chosen one."""
    made = experiment(federation, FedAvg(), clip=[0.5, 3.0])
    made = replace(made, picked=tuple((trial, trial % 2) for trial in range(3)))
    sweep = Sweep(TRIALS, (0, 1, 0), score_events(made, tuning()), False)
    plan = tuned_plan(made, sweep)
    meter = make_meter(tmp_path, federation, [(200.0, 1e-1)] * 3)
    meter.hold([sweep.best("fedavg", plan, k) for k in range(3)])
    result = made.train(plan, session=Session(meter=meter, charging=Charging(sweep.asks, together=True)))
    vectors = torch.stack([result.vectors[run] for run in range(3)])
    noised_scores(made, sweep, vectors, meter)
    contents = [trial_statement(made, sweep, plan, 1, k, meter) for k in range(3)]
    for content in contents:
        assert verify(text_of(content)) == content
        found = [(row["release"], row["clip"]) for row in content["grid"]["releases"]]
        assert found == [("descend", 0.5), ("descend", 3.0), ("score", 1.0)]
        calls = {door["clip"]: door["calls"] for door in content["doors"] if door["door"] == "descend"}
        assert calls == {0.5: 6, 3.0: 3}
    assert deviations(contents) == used


def tuning():
    from coterie.experiment.config.schema import Tuning

    return Tuning()


def test_the_rounding_of_training_decides_about_the_grid():
    """Training multiplies in float32, where this noise is 2: the grid is twice that of 1.99999999."""
    door = {"door": "descend", "noise": 1.99999999, "clip": 1.0}
    (row,) = grid_facts([door], None)["releases"]
    assert (row["deviation"], row["exponent"]) == (2.0, -19)
    (row,) = grid_facts([door | {"door": "score"}], None)["releases"]
    assert (row["deviation"], row["exponent"]) == (1.99999999, -20)


def test_doors_without_noise_or_sums_have_no_grid():
    doors = [
        {"door": "descend", "noise": 0.0, "clip": None},
        {"door": "select", "noise": 3.0, "clip": 1.0},
    ]
    assert grid_facts(doors, None)["releases"] == []
    assert grid_facts([], MergeEvents(2.0, 1.0, 3, 1.0, "poisson", 4, 0, "server", False))["releases"] == []
    assert grid_lines(grid_facts([], None)) == ["no noisy sum was released"]


def test_the_names_of_doors_are_those_of_the_protocol():
    assert (DESCEND.name, SOLVE_DUAL.name, SOLVE_DUAL_WHOLE.name) == (grids.SAMPLED, grids.DUAL, grids.WHOLE)
    assert select_door(0.5).name == grids.CHOICE


CONFIG = """
[data]
silos = 2
[train]
rounds = 2
[privacy]
epsilon = 2
delta = 1e-4
clip = 0.3
ledger = "kept"
[[method]]
name = "fedavg"
"""


@pytest.fixture(scope="module")
def metered(tmp_path_factory):
    """A statement of a metered run and the key that signed it."""
    folder = tmp_path_factory.mktemp("metered")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_WITNESS", str(tmp_path_factory.mktemp("seen")))
        patch.chdir(folder)
        Path("c.toml").write_text(CONFIG)
        import coterie

        coterie.run("c.toml", out="out")
    content = json.loads((folder / "out/statements/fedavg/silo-0.json").read_text())
    return content, key_in(folder / "kept", content)


def forged(metered, change):
    """The text of a statement that the holder of the key changed and signed again."""
    content, key = metered
    content = copy.deepcopy(content)
    change(content)
    return text_of(signed_anew(content, key))


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g["releases"][0].update(exponent=g["releases"][0]["exponent"] + 1),
        lambda g: g["releases"][0].update(exponent=g["releases"][0]["exponent"] - 1),
        lambda g: g["releases"][0].update(exponent=None),
        lambda g: g["releases"][0].update(exponent=None, deviation=None),
        lambda g: g["releases"][0].update(deviation=2 * g["releases"][0]["deviation"]),
        lambda g: g["releases"][0].update(
            deviation=2 * g["releases"][0]["deviation"], exponent=g["releases"][0]["exponent"] + 1
        ),
        lambda g: g["releases"][0].update(noise=2 * g["releases"][0]["noise"]),
        lambda g: g["releases"][0].update(clip=0.15),
        lambda g: g["releases"][0].update(release="score"),
        lambda g: g["releases"].clear(),
        lambda g: g["releases"].append(g["releases"][0]),
        lambda g: g.update(rule="each number is rounded as we like"),
    ],
)
def test_a_wrong_grid_is_refused(metered, change):
    verify(forged(metered, lambda _: None))
    with refused("statement: grid: does not follow from the noise and the clips that it states"):
        verify(forged(metered, lambda content: change(content["grid"])))


def test_another_clip_needs_another_grid(metered):
    def change(content):
        content["doors"][0]["clip"] = 0.6

    with refused("statement: grid: does not follow"):
        verify(forged(metered, change))


@pytest.mark.parametrize("clip", [0.0, -1.0, 1e300, 1e-320])
def test_a_clip_without_a_grid_is_refused_in_one_sentence(metered, clip):
    def change(content):
        content["doors"][0]["clip"] = clip

    with pytest.raises(Problem, match=r"\Astatement: [^\n]*(has no grid|cannot be drawn)"):
        verify(forged(metered, change))


def test_metered_runs_have_a_grid_and_simulations_have_none(metered):
    with refused("statement: grid: a metered run must state its grids, and a simulation has none"):
        verify(forged(metered, lambda content: content.update(grid=None)))
    simulated = make()
    assert simulated["grid"] is None
    assert FAST_NOISE in simulated["not_covered"]
    with refused("statement: grid: a metered run must state its grids, and a simulation has none"):
        verify(text_of(signed_anew(simulated | {"grid": metered[0]["grid"]}, None)))


def test_a_metered_run_does_not_disclaim_the_rounding_of_its_noise(metered):
    content, _ = metered
    assert not any("rounding of floating-point" in line for line in content["not_covered"])
    with refused("'the rounding of floating-point noise: a simulation's noise is float32' is not said of a"):
        verify(forged(metered, lambda content: content["not_covered"].append(FAST_NOISE)))


def test_people_read_of_the_grid(metered, tmp_path, monkeypatch, capsys):
    content, _ = metered
    (row,) = content["grid"]["releases"]
    words = (
        f"descend: noise multiplier {row['noise']:.4g}, clip 0.3, so deviation {row['deviation']:.4g};"
        f" rounded to multiples of 2^{row['exponent']} (about {2.0 ** row['exponent']:.2g})"
    )
    assert words in page(content)
    assert "each released number is a multiple of the grid" in page(content)
    assert "multiple of the grid" not in page(make())
    (tmp_path / "s.json").write_text(text_of(content))
    code, out, _ = call(monkeypatch, capsys, "statement", "show", tmp_path / "s.json")
    assert (code, "Rounding of what was released" in out) == (0, True)
    assert words in " ".join(out.split())
    code, out, _ = call(monkeypatch, capsys, "statement", "show", tmp_path / "s.json", "--json")
    assert (code, json.loads(out)["rounding"]) == (0, [words])


def test_nobody_can_state_that_nobody_learns_anything(metered):
    """An epsilon of 0 against everybody is no statement of 'no protection'."""

    def change(content):
        content["guarantee"]["epsilon"] = None
        for entry in content["adversaries"].values():
            entry["epsilon"] = 0

    with pytest.raises(Problem, match="adversaries"):
        verify(forged(metered, change))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content["guarantee"].update(holds_for="everything, for ever"), "holds_for"),
        (lambda content: content["adversaries"]["server"].update(who="nobody"), "required words"),
    ],
)
def test_the_words_of_a_promise_cannot_be_changed(metered, change, words):
    with pytest.raises(Problem, match=words):
        verify(forged(metered, change))
