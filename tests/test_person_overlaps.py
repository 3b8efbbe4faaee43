"""What a person spends in total who has rows in several silos."""

from __future__ import annotations

import json
import math

import pytest

import coterie as ct
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from tests.helpers import call, refused
from tests.test_persons_data import NAMED, visits


@pytest.fixture(scope="module")
def planned():
    data = ct.load(visits(people=20, silos=3), **NAMED, name="visits")
    epsilon = {f"clinic-{k}": 2.0**k for k in range(3)}
    delta = {f"clinic-{k}": (k + 1) / 1000 for k in range(3)}
    privacy = Privacy(epsilon=epsilon, delta=delta, unit="person")
    return ct.plan(data, ["local", "fedavg"], privacy, rounds=2, batch=4)


def test_a_total_is_that_of_everything_the_silos_release(planned):
    totals = ct.person_totals(planned, [["clinic-0", "clinic-1"], ["clinic-0", "clinic-2"]])
    silos = sorted(planned.plans[1].silos[0], key=lambda silo: silo.name)
    events = tuple(Event("gaussian", s.noise, s.rate, s.steps) for s in (silos[0], silos[2]))
    assert [total.label for total in totals] == ["local", "fedavg"]
    assert totals[1].silos == ("clinic-0", "clinic-2")
    assert totals[1].delta == 3e-3
    assert totals[1].epsilon == pytest.approx(epsilon_of(events, 3e-3))
    assert 4.0 < totals[1].epsilon < 5.0
    (alone, _) = ct.person_totals(planned, [["clinic-1"]])
    assert alone.epsilon == pytest.approx(silos[1].epsilon, rel=1e-3)


def test_a_total_is_the_largest_of_all_seeds():
    """Seeds decide who takes part in which rounds, so some of them cost a person more than others."""
    data = ct.load(visits(people=20, silos=3), **NAMED, name="visits")
    privacy = Privacy(epsilon=2.0, delta=1e-3, unit="person")

    def total(*seeds):
        planned = ct.plan(data, "fedavg", privacy, rounds=6, batch=4, drop=0.5, seeds=list(seeds))
        (found,) = ct.person_totals(planned, [data.names])
        return found.epsilon

    alone = [total(seed) for seed in (0, 2, 1)]
    assert max(alone) > 1.001 * min(alone)
    assert total(0, 2, 1) == total(1, 2, 0) == pytest.approx(max(alone), rel=1e-9)


def test_two_silos_that_release_the_same_cost_what_their_statements_say():
    data = ct.load(visits(people=20, silos=2), **NAMED, name="visits")
    privacy = Privacy(epsilon=2.0, delta=1e-3, unit="person")
    planned = ct.plan(data, "fedavg", privacy, rounds=2, batch=4)
    (total,) = ct.person_totals(planned, [data.names])
    stated = ct.run(planned).statement("clinic-0")["guarantee"]["several_silos"]["2"]
    assert total.epsilon == pytest.approx(stated, rel=1e-6)


def test_a_silo_without_a_budget_protects_nobody():
    data = ct.load(visits(people=20, silos=2), **NAMED, name="visits")
    privacy = Privacy(epsilon={"each": [1.0, math.inf]}, delta=1e-3, unit="person")
    (total,) = ct.person_totals(ct.plan(data, "fedavg", privacy, rounds=1, batch=4), [data.names])
    assert math.isinf(total.epsilon)
    assert "nothing protects a person with rows in clinic-0, clinic-1" in str(total)
    assert total.to_json()["epsilon"] is None


CONFIG = """
[data]
source = "visits.csv"
silo_column = "clinic"
target_column = "ill"
person_column = "patient"
[train]
rounds = 2
batch = 4
[privacy]
unit = "person"
epsilon = 2.0
delta = 1e-3
[[method]]
name = "fedavg"
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    visits(people=20).to_csv("visits.csv", index=False)
    (tmp_path / "study.toml").write_text(CONFIG)
    return tmp_path / "study.toml"


def test_the_command_says_the_largest_total(config, monkeypatch, capsys):
    config.with_name("shared.csv").write_text("silos,people\nclinic-0;clinic-1,12\nclinic-1,3\n")
    code, out, _ = call(monkeypatch, capsys, "plan", config, "--overlaps", "shared.csv", columns=300)
    assert code == 0
    assert "fedavg: a person with rows in clinic-0, clinic-1 spends at most epsilon" in out
    code, out, _ = call(monkeypatch, capsys, "plan", config, "--overlaps", "shared.csv", "--json")
    (total,) = json.loads(out)["person_totals"]
    assert total["silos"] == ["clinic-0", "clinic-1"]
    assert total["epsilon"] > 2.0


def test_sizes_in_tables_count_persons(config, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "plan", config, columns=300)
    head, *rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["silo"], ["clinic-0"])]
    assert (code, head[:2], rows[0][:2]) == (0, ["silo", "persons"], ["clinic-0", "16"])
    code, out, _ = call(monkeypatch, capsys, "plan", config, "--json")
    assert json.loads(out)["plans"][0]["variants"][0]["silos"]["clinic-0"]["persons"] == 16
    code, out, _ = call(monkeypatch, capsys, "run", config, columns=300)
    lines = [line.split() for line in out.splitlines()]
    assert ["silo", "persons", "budget"] in [line[:3] for line in lines]
    assert ["clinic-0", "16", "2"] in [line[:3] for line in lines]


def test_intervals_that_are_too_narrow_are_told(config, monkeypatch, capsys):
    said = "persons, but intervals over test rows take rows to be independent: they are too narrow."
    code, out, _ = call(monkeypatch, capsys, "run", config, columns=300)
    frame = visits(people=20)
    federation = ct.load(frame, silo_column="clinic", target_column="ill", person_column="patient")
    rows = sum(len(silo.test_y) for silo in federation.silos)
    assert (code, f"The {rows} test rows are of 8 {said}" in out) == (0, True)
    frame.drop_duplicates(["clinic", "patient"]).to_csv("visits.csv", index=False)
    code, out, _ = call(monkeypatch, capsys, "run", config, columns=300)
    assert (code, said in out) == (0, False)


def test_what_cannot_be_is_one_sentence(planned, config, monkeypatch, capsys):
    with refused("entry 1: there is no silo 'clinic-7'; did you mean"):
        ct.person_totals(planned, [["clinic-7"], ["clinic-1", "clinic-1"], []])
    with refused("entry 2: a silo is named twice; entry 3: expected names of silos"):
        ct.person_totals(planned, [["clinic-0"], ["clinic-1", "clinic-1"], []])
    with refused("overlaps: expected at least one entry, got none"):
        ct.person_totals(planned, [])
    config.with_name("other.csv").write_text("silo\nclinic-0\n")
    with refused("has no column 'silos'; did you mean 'silo'"):
        ct.person_totals(planned, "other.csv")
    with refused("overlaps: cannot read 'missing.csv'"):
        ct.person_totals(planned, "missing.csv")
    data = ct.load(visits(people=20), **NAMED, name="visits")
    with refused("totals of persons need privacy.unit = 'person'"):
        ct.person_totals(ct.plan(data, "fedavg", Privacy(epsilon=1.0)), [["clinic-0"]])
