"""Ledgers and statements of the unit 'person': what a run about persons costs them, and examples."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.data.federation import Federation
from coterie.errors import Problem
from coterie.experiment.statements import statement_for
from coterie.planning.accounting import ACCOUNTING
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.entries import FIRST, LedgerEntry, LedgerState
from coterie.privacy.ledger.ledger import read_ledger
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.ledger.witness import FolderWitness
from coterie.privacy.statement.build import ELSEWHERE_TOO, ONE_NUMBER, ROWS_APART, checksum, text_of
from coterie.privacy.statement.in_ledger import find_in_ledger
from coterie.privacy.statement.verify import verify
from coterie.privacy.trials import Trials
from coterie.report.statement_page import page
from tests.helpers import refused
from tests.test_person_unit import experiment, federation


def visits(rows=5, people=20) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.random((2 * rows * people, 2)), columns=["age", "pressure"])
    frame["ill"] = (frame.age > 0.5).astype(int)
    frame["clinic"] = np.repeat(["north", "south"], rows * people)
    frame["patient"] = np.arange(len(frame)) % people
    return frame


def loaded(**options) -> Federation:
    return ct.load(
        visits(), silo_column="clinic", target_column="ill", person_column="patient", name="visits", **options
    )


@pytest.fixture
def metered(tmp_path):
    """Return the data, the folder of ledgers, the witness and the result of a run that was charged."""
    data, ledgers, witness = loaded(), tmp_path / "ledgers", tmp_path / "witness"
    witness.mkdir()
    ct.open_ledgers(ledgers, data, 10.0, 1e-2, unit="person", witness=witness)
    privacy = Privacy(epsilon=1.0, delta=1e-3, unit="person")
    result = ct.run(data, "fedavg", privacy, rounds=2, batch=4, ledger=ledgers, witness=witness)
    return data, ledgers, witness, result


def test_a_run_counts_for_persons_and_as_replaced_for_examples(metered):
    """One row of a person may turn their mean gradient into any other."""
    _, ledgers, _, result = metered
    statement = result.statement("north")
    total, example = statement["ledger"]["total"]["server"], statement["ledger"]["as_example"]["server"]
    assert total["epsilon"] == pytest.approx(statement["guarantee"]["epsilon"])
    assert example["epsilon"] == pytest.approx(statement["guarantee"]["replace_one"], rel=1e-6)
    assert example["epsilon"] > 1.3 * total["epsilon"]
    assert (statement["declared_size"], statement["data"]["rows"]) == (16, 100)
    assert ROWS_APART in statement["not_covered"]
    verify(text_of(statement))
    book = next(iter(ledgers.glob("*.sqlite")))
    find_in_ledger(statement, ledgers / statement["ledger"]["file"], FolderWitness(metered[2]))
    assert check_ledger(book, FolderWitness(metered[2])).totals["example"]["server"][0] == pytest.approx(
        example["epsilon"]
    )


@pytest.mark.parametrize("filter", ["rdp", "gdp"])
def test_other_filters_count_persons_without_a_budget_for_whole_silos(tmp_path, filter):
    """Totals of examples have the delta of the budget that there is: that of persons."""
    data, ledgers, witness = loaded(), tmp_path / "ledgers", tmp_path / "witness"
    witness.mkdir()
    ct.open_ledgers(ledgers, data, 10.0, 1e-2, unit="person", witness=witness, filter=filter)
    privacy = Privacy(epsilon=1.0, delta=1e-3, unit="person")
    result = ct.run(data, "fedavg", privacy, rounds=2, batch=4, ledger=ledgers, witness=witness)
    statement = result.statement("north")
    total, example = statement["ledger"]["total"]["server"], statement["ledger"]["as_example"]["server"]
    assert 0 < total["epsilon"] < (example["epsilon"] or np.inf)  # 'rdp' has no bound for replaced examples
    assert total["delta"] == example["delta"] == pytest.approx(1e-2, rel=0.1)
    verify(text_of(statement))
    for book in ledgers.glob("*.sqlite"):
        assert set(check_ledger(book, FolderWitness(witness)).totals) == {"example", "person"}
        limited = read_ledger(book, custody=Custody.of(None, witness))
        limited.set_budget("example", 50.0, 1e-2)
        limited.close()
    if filter == "rdp":
        with refused("'rdp' has no bound in the unit 'example' for randomly drawn persons"):
            ct.run(data, "fedprox", privacy, rounds=2, batch=4, ledger=ledgers, witness=witness)


def test_runs_about_examples_say_nothing_about_persons(metered):
    data, ledgers, witness, result = metered
    before = result.statement("north")["ledger"]["total"]["server"]["epsilon"]
    for path in ledgers.glob("*.sqlite"):
        book = read_ledger(path, custody=Custody.of(None, witness))
        book.set_budget("example", 50.0, 1e-2)
        book.close()
    ct.run(
        data, "local", Privacy(epsilon=1.0, delta=1e-3), rounds=2, batch=4, ledger=ledgers, witness=witness
    )
    privacy = Privacy(epsilon=1.0, delta=1e-3, unit="person")
    again = ct.run(data, "fedprox", privacy, rounds=2, batch=4, ledger=ledgers, witness=witness)
    facts = again.statement("north")["ledger"]
    assert facts["total"]["server"]["epsilon"] == pytest.approx(2 * before, rel=1e-6)
    local = facts["as_example"]["personal"]["epsilon"] - facts["as_example"]["server"]["epsilon"]
    assert 0 < local <= 1.0


def test_a_recovered_ledger_charges_persons_for_runs_about_whole_silos():
    """Before anybody counted persons, a lost ledger's totals named examples and silos only."""
    state = LedgerState()
    body = {
        "carried": {"example": {"server": [3.0, 1e-5]}, "silo": {"server": [1.0, 1e-5]}},
        "bare": {"example": ["silos"]},
    }
    state.add(LedgerEntry(1, "recover", body, FIRST, "0"))
    assert state.spent("person", "server") == (3.0, 1e-5)
    assert state.bare("person", "silos")
    known = {"carried": {**body["carried"], "person": {"server": [2.0, 1e-5]}}, "bare": {}}
    state = LedgerState()
    state.add(LedgerEntry(1, "recover", known, FIRST, "0"))
    assert state.spent("person", "server") == (2.0, 1e-5)


# Statements.


@pytest.fixture(scope="module")
def statement():
    privacy = Privacy(epsilon=2.0, delta=1e-3, unit="person")
    return ct.run(loaded(), "fedavg", privacy, rounds=2, batch=4).statement("north")


def test_a_statement_speaks_of_persons(statement):
    verify(text_of(statement))
    assert statement["guarantee"]["unit"] == "person"
    assert {ONE_NUMBER, ELSEWHERE_TOO} <= set(statement["not_covered"])
    words = page(statement)
    for part in (
        "16 training persons",
        "protects persons: all rows of one person",
        "that your records were used",
        "with all of their rows in this silo",
        "each person&#x27;s gradient clipped",
        "in 2 silos",
    ):
        assert part in words, part
    assert "single example" not in words


def test_the_total_of_a_person_in_several_silos_is_that_of_all_their_releases(statement):
    event = Event(**statement["events"][0])
    twice = replace(event, count=2 * event.count)
    stated = statement["guarantee"]["several_silos"]
    assert stated["2"] == pytest.approx(epsilon_of((twice,), 1e-3))
    assert statement["guarantee"]["epsilon"] < stated["2"] < stated["3"]


def test_stopping_early_or_repeating_rounds_makes_no_total_smaller():
    """When a training stops may depend on its results, so all that was planned counts, in several silos too."""
    made = experiment(federation(rows=(1,) * 40), rounds=8)
    plan, accounting = made.plan(), ACCOUNTING["person"]
    claim, whole = accounting.claim("", plan, 0, 0), accounting.account(plan, 0, 0)

    def stated(*spans):
        events = tuple(event for span in spans for event in claim.events(*span))
        content = statement_for(made, plan, 0, 0, whole._replace(events=events, rounds=spans, budget=9.0))
        verify(text_of(content))
        return content

    full, stopped, again = stated((0, 8)), stated((0, 1)), stated((0, 8), (6, 8))
    totals = [content["guarantee"]["several_silos"] for content in (full, stopped, again)]
    assert totals[0] == totals[1]
    assert all(totals[2][silos] > 1.05 * totals[0][silos] for silos in ("2", "3"))
    stopped["guarantee"]["several_silos"]["2"] = 0.99 * stopped["guarantee"]["epsilon"]
    stopped["checksum"] = checksum(stopped)
    with refused(f"for 2 silos, but {stopped['guarantee']['epsilon']:.6g} for one"):
        verify(text_of(stopped))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["guarantee"].update(unit="example"), "is missing|not match|several_silos"),
        (lambda s: s["guarantee"]["several_silos"].update({"2": 0.5}), "several_silos: states 0.5 for 2 silos"),
        (lambda s: s["guarantee"].pop("several_silos"), "several_silos: expected totals for 2, 3 silos"),
        (lambda s: s["not_covered"].remove(ONE_NUMBER), "rows of one person that are recorded"),
        (lambda s: s.update(declared_size=80), "an expected batch of 4 is not the rate"),
    ],
)  # fmt: skip
def test_a_changed_statement_is_noticed(statement, change, message):
    content = json.loads(json.dumps(statement))
    change(content)
    content["checksum"] = checksum(content)
    with pytest.raises(Problem, match=message):
        verify(text_of(content))


# What cannot be.


def test_what_cannot_be_is_refused(tmp_path):
    bare = ct.load(visits().drop(columns="patient"), silo_column="clinic", target_column="ill", name="visits")
    privacy = Privacy(epsilon=1.0, unit="person")
    with refused("'person' needs to know whose rows are whose: name data.person_column"):
        ct.run(bare, "fedavg", privacy)
    with refused("privacy.noise_by: allowed only with unit = 'silo'"):
        Privacy(epsilon=1.0, unit="person", noise_by="silos")
    with refused("a sweep supports only the unit 'example'"):
        ct.sweep(loaded(), "mr-mtl", privacy, lr=[0.1, 0.3], trials="geometric")
    with refused("the best of several trials needs the unit 'example'"):
        Claim("x", "person", 1e-3, 1.0, (), trials=Trials("geometric", 2.0))


def test_notes_say_what_is_left_out():
    data = loaded(rows_per_person=2)
    notes = ct.plan(data, "fedavg", Privacy(epsilon=1.0, delta=0.1, unit="person"), batch=32).notes
    assert any(
        "96 of 160 training rows are left out, because a person contributes at most 2" in n for n in notes
    )
    assert any(
        "such as 'north' with 16 persons, so it permits publishing the rows of one person" in n for n in notes
    )
    assert any("have fewer than 32 training persons" in n for n in notes)
