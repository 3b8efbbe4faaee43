"""Statements: recomputed from their events, damaged or forged ones are refused, pages say the same."""

from __future__ import annotations

import copy
import html
import json
import math
import random
from pathlib import Path

import pytest

from coterie.cli.statement import verify_statements
from coterie.errors import Problem
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.accountant import shown as upper
from coterie.privacy.events import Event
from coterie.privacy.statement.build import (
    OpenedDoor,
    best_trial,
    build_statement,
    checksum,
    statement_cache,
    text_of,
)
from coterie.privacy.statement.delta_words import delta_warning
from coterie.privacy.statement.schema import check_shape
from coterie.privacy.statement.verify import verify
from coterie.privacy.tuning import COVERED
from coterie.protocol import doors
from coterie.report.statement_doors import PLAINLY
from coterie.report.statement_page import page
from tests.helpers import call

ALL = ("server", "silos", "shared", "personal")
EVENTS = (Event("gaussian", 0.6, 0.01, 500),)


def make(events=EVENTS, seen=ALL, budget=6.0, silo="north", **more):
    door = OpenedDoor("descend", 5, 100, "poisson", 0.01, 8.0, 1.0, events[0].noise)
    return build_statement(
        silo=silo, method="mr-mtl", settings={"lam": 0.5}, size=800, doors=[door], events=events,
        seen=seen, budget=budget, delta=1e-5, not_covered=["features were standardized"], **more,
    )  # fmt: skip


def forged(change):
    """A statement that was changed by somebody who knows how to make a checksum."""
    content = copy.deepcopy(make())
    change(content)
    content["checksum"] = checksum(content)
    return text_of(content)


def test_a_statement_says_all_and_verifies():
    content = make()
    assert verify(text_of(content)) == content
    said = content["guarantee"]
    assert said["epsilon"] == epsilon_of(EVENTS, 1e-5)
    assert 5.2 < said["lower"] < said["epsilon"] < said["replace_one"]
    assert content["published"][0]["epsilon"] == pytest.approx(3.72, abs=0.005)
    assert any("below" in line for line in content["warnings"])
    assert "not accounted" in content["tuning"]
    assert content["randomness"].startswith("simulated")
    assert any("standardized" in line for line in content["not_covered"])
    assert set(content["software"]) >= {"coterie", "dp-accounting", "torch"}


def test_epsilon_against_each_adversary():
    epsilon = make()["guarantee"]["epsilon"]
    assert {k: v["epsilon"] for k, v in make()["adversaries"].items()} == dict.fromkeys(ALL, epsilon)
    alone = make(seen=("personal",))["adversaries"]
    assert [alone[name]["epsilon"] for name in ALL] == [0.0, 0.0, 0.0, epsilon]
    bare = make(events=(Event("gaussian", 0.0, 0.01, 500),), budget=math.inf)
    assert bare["guarantee"]["epsilon"] is None
    assert all(entry["epsilon"] is None for entry in bare["adversaries"].values())
    verify(text_of(bare))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c["guarantee"].update(epsilon=3.0),
            r"guarantee.epsilon: states 3, but the events give 5\.80",
        ),
        (lambda c: c["guarantee"].update(delta=1e-2), "guarantee.lower"),
        (lambda c: c["guarantee"].update(delta=1e-7), "guarantee.epsilon"),
        (lambda c: c["guarantee"].update(lower=5.795), "guarantee.lower"),
        (lambda c: c["guarantee"].update(replace_one=6.0), "guarantee.replace_one"),
        (
            lambda c: c["guarantee"].update(bound="upper, by the closed form of the Gaussian mechanism"),
            "bound",
        ),
        (lambda c: c["guarantee"].update(bound="none"), "guarantee.bound"),
        (lambda c: c["guarantee"].update(budget=5.0), "guarantee.budget"),
        (lambda c: c["events"][0].update(count=1000), "guarantee.epsilon"),
        (lambda c: c["events"][0].update(noise=0.5), "guarantee.epsilon"),
        (lambda c: c["events"][0].update(rate=0.02), "guarantee.epsilon"),
        (lambda c: c["events"].append(c["events"][0]), "guarantee.epsilon"),
        (lambda c: c["events"][0].pop("noise"), r"statement: events\.0\.noise: field required"),
        (lambda c: c["events"][0].update(noise=-1.0), r"events\.0\.noise: input should be greater"),
        (lambda c: c["adversaries"]["server"].update(epsilon=1.0), "adversaries.server"),
        (lambda c: c["published"][0].update(epsilon=5.9), "published"),
        (lambda c: c.pop("guarantee"), "statement: guarantee: field required"),
        (lambda c: c.update(extra=1), "statement: extra: extra inputs are not permitted"),
        (lambda c: c["doors"][0].update(calls="5"), r"doors\.0\.calls"),
        (
            lambda c: c.update(schema="coterie-statement/1"),
            "expected the schema coterie-statement/5, got 'coterie-statement/1'",
        ),
        (
            lambda c: c["doors"][0].update(calls=50),
            "doors: 5000 noisy sums at rate 0.01 with noise 0.6, but the events have 500",
        ),
        (lambda c: c["doors"][0].update(rate=0.5), "doors"),
        (lambda c: c["doors"][0].update(noise=0.7), "doors: 0 noisy sums at rate 0.01 with noise 0.6"),
        (lambda c: c["doors"][0].update(sampler="shuffled"), "is not accounted for"),
        (lambda c: c["doors"].clear(), "doors"),
        (lambda c: c["doors"][0].update(expected_batch=1.0), "doors: an expected batch of 1 is not the rate"),
        (lambda c: c.update(declared_size=10**6), "doors: an expected batch of .* of declared_size, 1000000"),
        (lambda c: c["adversaries"]["server"].update(epsilon=0.0), "adversaries.server"),
        (lambda c: c["adversaries"]["personal"].update(epsilon=0.0), "adversaries.personal"),
        (lambda c: c["adversaries"]["silos"].update(epsilon=None), "adversaries.silos"),
    ],
)
def test_a_forged_statement_is_refused_and_the_field_named(change, said):
    with pytest.raises(Problem, match=said):
        verify(forged(change))


def test_a_flipped_bit_anywhere_is_found():
    text = text_of(make()).encode()
    chance = random.Random(0)
    for place in range(len(text)):
        changed = bytearray(text)
        changed[place] ^= 1 << chance.randrange(7)
        with pytest.raises(Problem, match="statement"):
            verify(changed.decode("utf-8", errors="replace"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '"x"', "{", "null"])
def test_what_is_no_statement(text):
    with pytest.raises(Problem, match="statement"):
        verify(text)


def test_the_page_shows_bounds_rounded_the_safe_way():
    content = make()
    shown = page(content)
    assert "epsilon ≤ 5.801 at delta 1e-05" in shown
    assert "the server" in shown
    assert "3.72" in shown
    lower = math.floor(content["guarantee"]["lower"] * 1000) / 1000
    assert f"The true epsilon is at least {lower:.3f}." in shown
    assert "coterie statement verify" in shown
    assert content["checksum"] in shown
    sneaky = make()
    sneaky["silo"] = "<script>alert(1)</script>"
    assert "<script>" not in page(sneaky)
    assert "no privacy" in page(make(events=(Event("gaussian", 0.0),), budget=math.inf))


def test_the_page_shows_published_formulas_calmly_at_its_end():
    """People sign this page: what a paper reports stands last, in plain type, with one sentence about it."""
    content = make()
    before, _, after = page(content).partition("<h3>What published formulas would report</h3>")
    assert "What this statement does not cover" in before
    assert "3.72" not in before
    assert "3.72" in after
    (sentence,) = [line for line in content["warnings"] if "Wu, Chen, Wang 2020" in line]
    assert f"<p class='small'>T{html.escape(sentence[1:])}.</p>" in after
    assert "warning" not in page(content).lower()
    assert "#a11" not in page(content)
    assert "What published" not in page(make(events=(Event("laplace", 1.0),)))


def test_the_page_of_a_simulation_is_not_to_be_signed():
    simulated = page(make())
    assert "This is a simulation: anyone who knows its seed knows the noise" in simulated
    assert "signature" not in simulated
    assert "Nobody signed this statement" in simulated
    budget = {"epsilon": 10.0, "delta": 1e-4}
    ledger = {
        "file": "north.ledger",
        "head": "0" * 64,
        "run": 2,
        "total": {},
        "budget": budget,
        "recovered": 1,
    }
    metered = page({**make(), "ledger": ledger})
    assert "signature by hand" in metered
    assert "The budget of this run is 6. All runs on this data set may spend 10 at delta 0.0001." in metered
    assert "recovered 1 time(s) after a loss" in metered
    assert "This is a simulation" not in metered


def test_the_page_tells_people_first_and_experts_last():
    shown = page(make())
    order = [shown.index(f">{title}</h") for title in (
        "What this means", "Budget", "Epsilon against each adversary", "What this statement does not cover",
        "Checklist", "For experts", "What epsilon bounds", "What it is about", "How the data was used",
        "What was released", "Software",
    )]  # fmt: skip
    assert order == sorted(order)
    replaced = f"epsilon ≤ {upper(make()['guarantee']['replace_one'])} at delta 1e-05 if another example"
    assert shown.index(replaced) < order[0]
    assert "zero-out adjacency" in shown[order[5] :]
    assert (
        "descend</td><td>The silo trained a model on its examples, with noise in every step: 5 calls" in shown
    )
    assert "It collects what the silos send, and combines it." in shown
    assert "<h2 id='not-covered'>" in shown
    assert "points under <a href='#not-covered'>What this statement does not cover</a>." in shown
    assert "<th></th>" not in shown


def test_every_door_has_a_plain_sentence():
    names = {value.name for value in vars(doors).values() if isinstance(value, doors.Door)}
    assert names | {"select", "score", "merge"} == set(PLAINLY)


def test_the_page_explains_delta_and_warns_of_a_large_one():
    """A delta of 1/800 for 800 examples would permit publishing one of them."""
    shown = page(make())
    assert "Delta is a small probability, here 1e-05: at worst, anything may be revealed" in shown
    assert "This delta is too large" not in shown
    for delta, warned in ((1 / 801, False), (1 / 800, True), (0.01, True)):
        content = make()
        content["guarantee"]["delta"] = delta
        assert ("is not below 1/800, for 800 examples of this silo" in page(content)) == warned
        assert bool(delta_warning(content)) == warned
    content["merges"] = {"silos": 20}
    assert delta_warning(content) == ""
    content["guarantee"]["delta"] = 0.05
    assert "is not below 1/20, for 20 silos, so it would permit publishing one silo's data" in delta_warning(
        content
    )


def test_the_page_says_in_words_how_silos_were_cut():
    """Before, it showed the JSON by which ledgers tell data sets apart."""
    cut = {"name": "digits", "rows": 295, "fingerprint": "x" * 24}
    for source, said in (
        (
            'digits cut by {"alpha": 0.5, "of": 1797}',
            "digits (cut into silos: 1797 rows in all, alpha 0.5): 295",
        ),
        (
            'file cut by {"seed": 0}',
            "digits (file, cut into silos: seed 0): 295 rows; ledgers know it as xxx",
        ),
        ("file cut by hand", "digits (file cut by hand): 295 rows"),
        ("digits", "digits: 295 rows"),
        (None, "digits: 295 rows"),
    ):
        assert said in page(make() | {"data": cut | {"source": source}})


def test_who_checks_the_page_is_told_of_the_file_beside_it():
    with pytest.raises(Problem, match="check the JSON file next to it"):
        verify(page(make()))


def test_a_best_trial_is_judged_at_the_delta_that_is_stated():
    """A larger delta of its own would make any epsilon small."""
    tuning = {"distribution": "geometric", "mean": 1.0, "shape": None, "most": None, "ran": 1, "delta": 0.9,
              "score": "noised", "trial": [vars(event) for event in EVENTS], "notes": list(COVERED)}  # fmt: skip

    def pretend(content):
        content["tuning"] = {**tuning, "epsilon": best_trial(tuning)}
        for name in ("shared", "personal"):
            content["adversaries"][name]["epsilon"] = best_trial(tuning)

    with pytest.raises(Problem, match=r"tuning.delta: 0\.9 is above guarantee.delta, 1e-05"):
        verify(forged(pretend))


def test_whether_something_was_sent_is_known_to_the_ledger_only(tmp_path, capsys):
    for seen, told in ((ALL, None), (("personal",), "that nothing was sent")):
        (tmp_path / "s.json").write_text(text_of(make(seen=seen)))
        verify_statements([tmp_path / "s.json"], None, as_json=True)
        found = json.loads(capsys.readouterr().out)[0]["not_checked"]
        assert found is told is None or told in found


def test_totals_of_many_runs_are_found_in_their_ledger(tmp_path, monkeypatch, capsys):
    """Sums of equal numbers differ by their order in the last digit."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(
        '[data]\nsource = "digits"\nsilos = 2\n[train]\nrounds = 2\nseeds = 6\n[privacy]\nepsilon = 2\n'
        'delta = 1e-4\n[[method]]\nname = "fedavg"\n'
    )
    opened = ("ledger", "open", "c.toml", "--ledger", "kept", "--epsilon", 100, "--delta", 1e-2)
    assert call(monkeypatch, capsys, *opened)[0] == 0
    assert call(monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--out", "out")[0] == 0
    for file in Path("out/statements").rglob("*.json"):
        code, _, err = call(monkeypatch, capsys, "statement", "verify", file, "--ledger", "kept")
        assert code == 0, err


def test_statements_of_a_metered_run_are_found_in_their_ledger(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(
        '[data]\nsource = "digits"\nsilos = 3\n[train]\nrounds = 3\n[privacy]\nepsilon = 2\n'
        'delta = 1e-4\nledger = "ledgers"\n[[method]]\nname = "fedavg"\n'
    )
    assert call(monkeypatch, capsys, "run", "c.toml", "--out", "out")[0] == 0
    file = "out/statements/fedavg/silo-1.json"
    code, out, _ = call(monkeypatch, capsys, "statement", "verify", file, "--ledger", "ledgers")
    assert code == 0
    assert "found in its ledger" in out
    content = json.loads(Path(file).read_text())
    assert "entropy" in content["randomness"]
    assert content["ledger"]["rounds"] == 3
    assert Path(file).with_suffix(".html").is_file()

    code, out, _ = call(monkeypatch, capsys, "ledger", "show", "ledgers", "--json")
    (first, *others) = json.loads(out)["ledgers"]
    assert len(others) == 2
    assert first["budgets"]["example"] == {"epsilon": 2.0, "delta": 1e-4}
    assert 1.98 < first["totals"]["example"]["server"]["epsilon"] <= 2.0
    checked = call(monkeypatch, capsys, "ledger", "verify", "ledgers")[1].splitlines()
    assert sum("every epsilon recomputed" in line and line.startswith("silo-") for line in checked) == 3
    assert call(monkeypatch, capsys, "ledger", "show", "ledgers")[1].count("silo-") == 3
    lines = call(monkeypatch, capsys, "ledger", "export", "ledgers")[1].splitlines()
    assert {json.loads(line)["kind"] for line in lines} == {"open", "budget", "run", "reserve", "commit"}

    code, _, err = call(monkeypatch, capsys, "run", "c.toml", "--out", "again")
    assert code == 2
    assert "does not fit" in err
    assert not Path("again").exists()
    raised = ["ledger", "budget", "ledgers", "--epsilon", "5", "--delta", "1e-3"]
    code, _, err = call(monkeypatch, capsys, *raised)
    assert code == 2
    assert "--raise" in err
    assert call(monkeypatch, capsys, *raised, "--raise", "--reason", "second study")[0] == 0
    assert call(monkeypatch, capsys, "run", "c.toml", "--out", "again")[0] == 0

    ledger = Path("ledgers") / content["ledger"]["file"]
    ledger.write_bytes(ledger.read_bytes().replace(b'"fedavg"', b'"fedavh"', 1))
    code, _, err = call(monkeypatch, capsys, "ledger", "verify", "ledgers")
    assert code == 2
    assert "was changed or lost" in err


def test_ledgers_made_beforehand_have_the_budget_that_was_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(
        '[data]\nsource = "digits"\nsilos = 2\n[train]\nrounds = 2\nseeds = 2\n[privacy]\nepsilon = 2\n'
        'delta = 1e-4\n[[method]]\nname = "fedavg"\n[[method]]\nname = "local"\n'
    )
    opened = ["ledger", "open", "c.toml", "--epsilon", "6.5", "--delta", "1e-3"]
    code, _, err = call(monkeypatch, capsys, *opened)
    assert code == 2
    assert "privacy.ledger: no folder for the ledgers" in err
    code, out, _ = call(monkeypatch, capsys, *opened, "--ledger", "kept")
    assert (code, "note:" in out) == (0, False)
    loose = ["ledger", "open", "c.toml", "--epsilon", "6.5", "--delta", "1e-2", "--set", "data.silos=3"]
    code, out, _ = call(monkeypatch, capsys, *loose, "--ledger", "loose")
    assert code == 0
    assert "note: --delta: 0.01 is not below 1/n for 3 silo(s)" in out
    code, _, err = call(monkeypatch, capsys, "run", "c.toml", "--ledger", "kept", "--out", "out")
    assert code == 2  # two seeds of fedavg fit, two of local beside them do not: nothing is trained
    assert "4 runs are asked for, and nothing is trained unless all of them fit" in err
    assert not Path("out").exists()
    totals = json.loads(call(monkeypatch, capsys, "ledger", "show", "kept", "--json")[1])["ledgers"][0][
        "totals"
    ]
    assert totals["example"]["personal"]["epsilon"] == 0.0
    code, _, err = call(monkeypatch, capsys, *opened, "--ledger", "kept")
    assert (code, "there are ledgers already" in err) == (2, True)


def test_a_statement_without_privacy_is_kept_too(monkeypatch, tmp_path):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    bare = {"events": (Event("gaussian", 0.0, 0.01, 500),), "budget": math.inf}
    cache = statement_cache()
    assert make(**bare, cache=cache) == make(**bare, cache=cache) == make(**bare)


def test_the_schema_is_what_statements_are_checked_against(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "statement", "schema")
    schema = json.loads(out)
    assert code == 0
    assert set(schema["required"]) == set(make())
    assert schema["additionalProperties"] is False
    check_shape(make())
    check_shape(make(events=(Event("gaussian", 0.0, 0.01, 500),), budget=math.inf))
