"""Ledgers of whole silos from the command line: budgets, totals, statements, and what nobody may learn."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import coterie as ct
from coterie.cli.statement import verify_statements
from coterie.errors import Problem
from coterie.experiment.statements import statement_of
from coterie.guard.meter import make_meter
from coterie.guard.session import Session
from coterie.methods import MRMTL, FedAvg
from coterie.planning.schedule import Participation
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.ledger.ledger import read_ledger
from coterie.privacy.merges import MergeEvents
from coterie.privacy.statement.build import (
    EXAMPLES_APART,
    HIDDEN,
    METERED,
    SEES_ALL,
    merge_door,
    published_beside,
    text_of,
)
from coterie.privacy.statement.verify import verify
from coterie.report.statement_page import page
from tests.books import custody, key_in, signed_anew
from tests.helpers import call, experiment, refused
from tests.test_silo_ledger import DRAWS, interrupted, protected, silent, tossed

CONFIG = """
[data]
silos = 4
[train]
rounds = 3
participation = {{ poisson = 0.5 }}
[privacy]
unit = "silo"
epsilon = {epsilon}
delta = 1e-2
ledger = "ledgers"
[[method]]
name = "{method}"
"""


@pytest.fixture
def whole(tmp_path, monkeypatch) -> Path:
    """A configuration of whole silos, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "whole.toml"
    path.write_text(CONFIG.format(epsilon=6.0, method="fedavg"))
    return path


def test_from_budget_to_statement(whole, monkeypatch, capsys):
    opened = ("ledger", "open", whole, "--epsilon", 20, "--delta", 2.5e-2)
    code, out, err = call(monkeypatch, capsys, *opened)
    assert (code, err) == (0, "")
    assert "each may spend epsilon 20 at delta 0.025 in the unit 'silo'" in out
    for name in ("one", "two"):
        code, _, err = call(monkeypatch, capsys, "run", whole, "--out", name)
        assert code == 0, err
    code, out, _ = call(monkeypatch, capsys, "ledger", "show", "ledgers")
    assert code == 0
    assert "none" in out
    assert "silo-0 (silo)" in out
    assert "Runs under 'example' do not protect whole silos" in out
    assert "!" not in out
    code, out, _ = call(monkeypatch, capsys, "ledger", "show", "ledgers", "--json")
    for ledger in json.loads(out)["ledgers"]:
        totals = ledger["totals"]
        assert totals["silo"]["server"] == totals["example"]["server"] == {"epsilon": None, "delta": None}
        assert 0 < totals["silo"]["silos"]["epsilon"] < totals["example"]["silos"]["epsilon"]
        assert totals["silo"]["silos"]["delta"] == 2e-2
    assert call(monkeypatch, capsys, "ledger", "verify", "ledgers")[0] == 0
    rows = [
        json.loads(line) for line in call(monkeypatch, capsys, "ledger", "export", "ledgers")[1].splitlines()
    ]
    assert {tuple(row["body"]["unprotected"]) for row in rows if row["kind"] == "run"} == {("server",)}
    for file in Path("two/statements/fedavg").glob("*.json"):
        code, out, err = call(monkeypatch, capsys, "statement", "verify", file, "--ledger", "ledgers")
        assert (code, err) == (0, "")
        assert "found in its ledger" in out
    code, _, err = call(monkeypatch, capsys, "run", whole, "--out", "three")
    assert code == 2
    assert "in the unit 'silo'" in err
    assert not Path("three").exists()


def test_a_run_alone_makes_ledgers_with_its_budget(whole, monkeypatch, capsys):
    assert call(monkeypatch, capsys, "run", whole, "--out", "one")[0] == 0
    for path in Path("ledgers").glob("*.sqlite"):
        assert read_ledger(path).state().budgets == {"silo": (6.0, 1e-2)}
    code, _, err = call(monkeypatch, capsys, "run", whole, "--out", "two")
    assert code == 2
    assert "does not fit" in err


def test_a_noise_that_is_given_makes_ledgers_with_what_it_comes_to(whole, monkeypatch, capsys):
    whole.write_text(whole.read_text().replace("epsilon = 6.0", "noise = 2.0"))
    assert call(monkeypatch, capsys, "run", whole, "--out", "one")[0] == 0
    cost = epsilon_of((Event("gaussian", 2.0, 0.5, 3),), 1e-2)
    for path in Path("ledgers").glob("*.sqlite"):
        assert read_ledger(path).state().budgets == {"silo": (cost, 1e-2)}


def test_budgets_in_both_units(whole, monkeypatch, capsys):
    opened = ("ledger", "open", whole, "--epsilon", 9, "--delta", 5e-3, "--unit", "example")
    assert call(monkeypatch, capsys, *opened)[0] == 0
    code, _, err = call(monkeypatch, capsys, "run", whole, "--out", "one")
    assert code == 2
    assert "no budget in the unit 'silo'; set one with `coterie ledger budget FOLDER --unit silo" in err
    budget = ("ledger", "budget", "ledgers", "--unit", "silo", "--epsilon", 20, "--delta", 1e-1)
    assert call(monkeypatch, capsys, *budget)[0] == 0
    code, _, err = call(monkeypatch, capsys, "run", whole, "--out", "one")
    assert code == 2
    assert "in the unit 'example'" in err
    more = ("ledger", "budget", "ledgers", "--epsilon", 40, "--delta", 1e-1, "--raise", "--reason", "both")
    assert call(monkeypatch, capsys, *more)[0] == 0
    assert call(monkeypatch, capsys, "run", whole, "--out", "one")[0] == 0
    code, _, err = call(monkeypatch, capsys, *budget[:4], "banana", *budget[5:])
    assert code == 2
    assert "unit: expected one of example, person, silo, got 'banana'" in err


def test_what_stays_refused(whole, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "sweep", whole, "--set", "train.lr=[0.1, 0.3]")
    assert code == 2
    assert "a sweep supports only the unit 'example'" in err
    code, _, err = call(monkeypatch, capsys, "advise", whole)
    assert code == 2
    assert "advice is for the units 'example' and 'person'" in err
    whole.write_text(whole.read_text() + 'budgets = "none"\n')
    code, _, err = call(monkeypatch, capsys, "run", whole, "--out", "one")
    assert code == 2
    assert "no ledger covers it" in err


def shown_in(folder: Path, ledgers: Path) -> dict[str, object]:
    """Collect all that is told of a run but what its models give: text files, and rows of ledgers."""
    found: dict[str, object] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix == ".json" and file.parent.name == "fedavg":
            content = json.loads(file.read_text())
            html = file.with_suffix(".html").read_text()
            told = [content["ledger"].pop("head"), content["ledger"].pop("id"), content["run"].pop("id")]
            told += [content.pop(key) for key in ("checksum", "signature", "time")]
            told.append(content.pop("issuer")["id"])
            found[file.name] = content
            for text in told:
                html = html.replace(text, "")
            found[f"{file.name} as a page"] = html
    result = json.loads((folder / "result.json").read_text())
    for run in result["runs"]:
        for key in ("score", "history", "curves", "seconds", "measures", "constant", "no_better"):
            run.pop(key, None)
        for silo in run["silos"].values():
            del silo["score"]
    del result["summary"], result["remarks"]  # of scores
    found["result"] = result
    for file in sorted(ledgers.glob("*.sqlite")):
        blank = dict.fromkeys(("time", "nonce", "digest", "ledger", "key"), 0)
        rows = [(row.kind, {**row.body, **blank}) for row in read_ledger(file).entries()]
        found[file.name] = rows
    found["files"] = sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))
    return found


def test_nothing_that_is_told_depends_on_the_coins(whole, monkeypatch, capsys):
    """Everybody comes, nobody comes, or some: statements, results and ledgers say the same."""
    told = []
    for name, rule in (("all", lambda _: 0.0), ("nobody", lambda _: 1.0), ("some", lambda r: r % 2)):
        with monkeypatch.context() as patched:
            found = tossed(patched, rule)
            patched.setenv("COTERIE_WITNESS", str(custody(Path(name)).witness))
            Path(name, "witness").mkdir(parents=True)
            changed = ("--set", "privacy.ledger=kept", "--set", "train.checkpoint=2")
            assert call(patched, capsys, "run", whole, "--out", "out", *changed)[0] == 0, name
        assert len(found) == 3
        told.append(shown_in(Path("out"), Path("kept")))
        Path("out").rename(f"out-{name}")
        Path("kept").rename(f"kept-{name}")
    assert told[0] == told[1] == told[2]
    assert len(told[0]) == 4 + 4 + 1 + 4 + 1


def stated(made, folder, budgets=None, **how):
    plan = made.plan()
    budgets = budgets or [(50.0, 1e-1)] * len(made.federation)
    meter = make_meter(folder, made.federation, budgets, "silo", custody(folder))
    made.train(plan, session=Session(meter=meter, **how))
    return [statement_of(made, plan, 0, k, meter) for k in range(len(made.federation))], meter


@pytest.mark.parametrize("how", DRAWS)
@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_statements_carry_the_ledger_and_are_found_in_it(classes, tmp_path, capsys, noise_by, how):
    made = protected(classes, MRMTL(), noise_by=noise_by, participation=DRAWS[how], seeds=(4,))
    contents, meter = stated(made, tmp_path)
    for k, content in enumerate(contents):
        assert verify(text_of(content)) == content
        facts = content["ledger"]
        assert (facts["head"], facts["run"]) == (meter.ledgers[k].head, meter.claims[k][0])
        said = content["guarantee"]["epsilon"]
        assert facts["total"]["silos"]["epsilon"] == said
        assert facts["as_example"]["silos"]["epsilon"] >= said
        assert facts["total"]["personal"]["epsilon"] is None
        assert (content["randomness"], content["guarantee"]["budget"]) == (METERED, 6.0)
        assert facts["budget"] == {"epsilon": 50.0, "delta": 1e-1}
        assert {EXAMPLES_APART} <= set(content["not_covered"])
        if noise_by == "server" and said:
            assert content["adversaries"]["server"]["epsilon"] is None
            assert SEES_ALL in content["not_covered"]
            assert (HIDDEN in content["not_covered"]) == (how == "poisson")
        assert content["adversaries"]["shared"]["epsilon"] == said  # nothing rests on public coins
        assert "none" in page(content)
        (tmp_path / "statement.json").write_text(text_of(content))
        verify_statements([tmp_path / "statement.json"], tmp_path, as_json=False)
    assert "found in its ledger" in capsys.readouterr().out


@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_in_a_metered_run_an_outsider_is_taken_to_know_what_other_silos_know(noise_by):
    """Seeded draws are public, and silos that leave take their noise with them."""
    seen = MergeEvents(2.0, 1.0, 40, 0.05, "fixed", 20, 7, noise_by, False)
    assert seen.against(1e-2)["shared"] < seen.against(1e-2)["silos"]
    found = replace(seen, metered=True)
    assert found.releases()["shared"] == found.releases()["silos"] == (Event("gaussian", 2.0, 1.0, 7),)
    assert found.against(1e-2)["shared"] == found.against(1e-2)["personal"] == seen.against(1e-2)["silos"]


def test_a_run_on_examples_after_one_on_whole_silos(federation, tmp_path):
    """Its statement says that nothing is left against the server, and adds up both against the others."""
    (first, *_), meter = stated(protected(federation, FedAvg()), tmp_path)
    for ledger in meter.ledgers:
        ledger.set_budget("example", 90.0, 1e-1)
    made = experiment(federation, FedAvg(), epsilon=2.0)
    plan = made.plan()
    later = make_meter(tmp_path, federation, [None] * 3, custody=custody(tmp_path))
    made.train(plan, session=Session(meter=later))
    content = statement_of(made, plan, 0, 0, later)
    assert verify(text_of(content)) == content
    total = content["ledger"]["total"]
    assert total["server"] == {"epsilon": None, "delta": None}
    both = first["ledger"]["as_example"]["silos"]["epsilon"] + plan.silos[0][0].epsilon
    assert total["silos"]["epsilon"] == pytest.approx(both)
    assert content["adversaries"]["server"]["epsilon"] == plan.silos[0][0].epsilon  # of this run
    assert "none" in page(content)
    (tmp_path / "statement.json").write_text(text_of(content))
    verify_statements([tmp_path / "statement.json"], tmp_path, as_json=False)


def test_statements_of_runs_that_were_interrupted_and_of_silos_that_left(tmp_path):
    made = silent(30, 4, participation=Participation(0.5, "poisson"), rounds=6)
    result, meter, plan, _ = interrupted(made, tmp_path)
    content = statement_of(made, plan, 0, 0, meter)
    assert verify(text_of(content)) == content
    assert (content["merges"]["merges"], content["merges"]["came"], content["guarantee"]["delta"]) == (
        8,
        8,
        2e-2,
    )
    assert content["guarantee"]["epsilon"] == result.runs[0].silos["s0"].epsilon
    (tmp_path / "statement.json").write_text(text_of(content))
    verify_statements([tmp_path / "statement.json"], tmp_path / "ledgers", as_json=True)
    made = silent(6, 4, rounds=6)
    budgets = [(7.0, 1e-2)] * 5 + [(4.0, 1e-2)]
    contents, meter = stated(made, tmp_path / "left", budgets, partial=True)
    assert contents[5]["merges"]["came"] == meter.rounds[5] < 6 == contents[0]["merges"]["came"]
    assert verify(text_of(contents[5])) == contents[5]


def again(content, folder):
    return text_of(signed_anew(content, key_in(folder, content)))


@pytest.mark.parametrize(
    ("how", "changed", "said"),
    [
        ("poisson", {"came": 1}, "merges.came: its ledger charged every merge, since who came is secret"),
        ("fixed", {"merges": 1000}, "merges.merges: its ledger reserved 4 rounds for this run"),
    ],
)
def test_a_statement_cannot_say_that_a_silo_came_less_often(federation, tmp_path, how, changed, said):
    """Before, the holder of a key could state any number of uploads where the events do not depend on it."""
    made = protected(federation, FedAvg(), participation=DRAWS[how])
    content = next(content for content in stated(made, tmp_path)[0] if content["merges"]["came"])
    content["merges"] |= changed
    merges = MergeEvents(**content["merges"])
    content["doors"] = [asdict(door) for door in merge_door(merges)]
    content |= published_beside({}, merges, content["guarantee"]["delta"])
    forged = again(content, tmp_path)
    verify(forged)
    with refused(f"statement: {said}"):
        ct.verify(json.loads(forged), tmp_path, witness=tmp_path / "witness")


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("merges", "metered"), False, "must be true exactly if the statement names a ledger"),
        (("ledger",), None, "must be 'metered' exactly if the statement names a ledger"),
        (("kind",), "simulation", "must be 'metered' exactly if"),
        (("adversaries", "shared", "epsilon"), 0.5, "adversaries.shared"),
        (("adversaries", "server", "epsilon"), 6.0, "adversaries.server"),
        (("guarantee", "epsilon"), 0.5, "guarantee.epsilon"),
        (("merges", "came"), 1, "events: do not match the merges"),
        (("ledger", "total", "server"), {"epsilon": 1.0}, "delta"),
    ],
)
def test_forged_statements_are_found(federation, tmp_path, place, value, said):
    content = stated(protected(federation, FedAvg(), participation=Participation(0.7)), tmp_path)[0][0]
    at = content
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    with pytest.raises(Problem, match=f"statement: .*{said}"):
        verify(again(content, tmp_path))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("ledger", "total", "silos", "epsilon"), 0.1, "ledger.total"),
        (("ledger", "as_example", "silos", "epsilon"), 0.1, "ledger.as_example"),
        (("ledger", "as_example"), None, "ledger.as_example"),
        (("ledger", "total", "server"), {"epsilon": 0.0, "delta": 0.0}, "ledger.total"),
        (("ledger", "budget", "epsilon"), 90.0, "ledger.budget"),
        (("ledger", "sequence"), 4, "ledger.sequence"),
        (("ledger", "id"), "another", "ledger.id"),
        (("ledger", "recovered"), 1, "ledger.recovered"),
        (("ledger", "head"), "0" * 64, "does not contain its head"),
    ],
)
def test_statements_that_their_ledgers_do_not_bear_out_are_found(federation, tmp_path, place, value, said):
    content = stated(protected(federation, FedAvg()), tmp_path)[0][0]
    at = content
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    (tmp_path / "statement.json").write_text(again(content, tmp_path))
    with pytest.raises(Problem, match=f"statement: .*{said}"):
        verify_statements([tmp_path / "statement.json"], tmp_path, as_json=False)


@pytest.mark.parametrize("key", ["epsilon", "as_example"])
def test_a_changed_epsilon_in_a_ledger_is_found(whole, monkeypatch, capsys, key):
    assert call(monkeypatch, capsys, "run", whole, "--out", "one")[0] == 0
    book = read_ledger(next(Path("ledgers").glob("*.sqlite")))
    body = dict(book.state().runs[3])
    book.set_budget("silo", 50.0, 0.5, "more", higher=True)
    with book.change() as rows:
        rows.add("run", {**body, key: 0.1})
    book.close()
    code, _, err = call(monkeypatch, capsys, "ledger", "verify", "ledgers")
    assert code == 2
    assert "states epsilon 0.1" in err
