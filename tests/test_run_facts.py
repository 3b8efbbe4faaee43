"""Facts of a run that are fixed in its claim: a statement that says others is refused, whoever signed it."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest

import coterie as ct
from coterie._json import finite
from coterie.errors import Problem
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.ledger import read_ledger
from coterie.privacy.ledger.verify import _check_run
from coterie.privacy.merges import MergeEvents
from coterie.privacy.statement.build import BOUNDS, TEST_PART, numbers, text_of
from coterie.privacy.statement.grids import grid_facts
from coterie.privacy.statement.run_facts import check_facts, digests_of, facts_in
from coterie.privacy.statement.verify import verify
from tests.books import WHO, key_in, ledger, plan, signed_anew
from tests.helpers import refused
from tests.tampering import rewrite

OTHER = "differs from what its ledger's claim says"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the ledgers and the results of three metered trainings, and their witnesses."""
    place = tmp_path_factory.mktemp("facts")
    federation, privacy = (
        ct.load("digits", silos=3, features="standardize"),
        ct.Privacy(epsilon=2, delta=1e-4),
    )
    for book, unit in (("kept", "example"), ("whole", "silo")):
        (place / f"{book}-witness").mkdir()
        ct.open_ledgers(place / book, federation, 500.0, 1e-1, unit=unit, witness=place / f"{book}-witness")
    kept = {"rounds": 2, "ledger": place / "kept", "witness": place / "kept-witness"}
    ct.run(federation, ct.methods.Ditto(lam=0.2), privacy, out=place / "example", **kept)
    ct.sweep(
        federation,
        ct.FedAvg(),
        privacy,
        lr=[0.1, 0.3],
        trials="poisson",
        most=80,
        mean=16,
        out=place / "sweep",
        **kept,
    )
    whole = {"rounds": 2, "ledger": place / "whole", "witness": place / "whole-witness"}
    ct.run(
        federation, ct.FedAvg(), ct.Privacy(epsilon=8, delta=1e-3, unit="silo"), out=place / "silo", **whole
    )
    return place


def stated(folder, name):
    return json.loads(next((folder / name / "statements").rglob("silo-0.json")).read_text())


def in_ledger(folder, book, content):
    return ct.verify(content, folder / book, witness=folder / f"{book}-witness").in_ledger


def larger(part, key, times=2):
    def change(content):
        content[part][key] = type(content[part][key])(content[part][key] * times)

    return change


def renamed(part, key):
    def change(content):
        content[part][key] = "something nicer"

    return change


def with_clip(content):
    """Half the clip, with the grid that follows from it."""
    for door in content["doors"]:
        door["clip"] /= 2
    content["grid"] = grid_facts(content["doors"], None)


def with_doors(name):
    """Other doors: the clip of a score or a choice is always 1, and a choice has no grid."""

    def change(content):
        for door in content["doors"]:
            door["door"], door["clip"] = name, 1.0
        if name == "score":
            content["not_covered"].append(TEST_PART)
        content["grid"] = grid_facts(content["doors"], None)

    return change


def with_all_examples(content):
    content["doors"][0]["sampler"] = "all examples"


def with_one_step_per_call(content):
    door = content["doors"][0]
    door["calls"], door["steps"] = door["calls"] * door["steps"], 1


def with_other_settings(content):
    content["settings"]["lam"] = 0.9


def with_fewer_examples(content):
    content["declared_size"] //= 2
    for door in content["doors"]:
        door["expected_batch"] = door["rate"] * content["declared_size"]


def with_a_line_less(content):
    content["not_covered"].remove(next(iter(facts_in(content)["not_covered"])))


def with_a_line_more(content):
    content["not_covered"].insert(0, "nothing that matters")


def with_more_at_home(content):
    content["stayed_home"].append("all else")


def with_other_configuration(content):
    content["digests"]["configuration"] = "0" * 64


def check_change(folder, book, content, change, field):
    """A changed statement, signed by the ledger's key, is right by itself and refused beside its ledger."""
    key = key_in(folder / book, content)
    assert in_ledger(folder, book, signed_anew(content, key))
    forged = copy.deepcopy(content)
    change(forged)
    assert forged != content
    forged = signed_anew(forged, key)
    verify(text_of(forged))
    with pytest.raises(Problem) as raised:
        in_ledger(folder, book, forged)
    assert str(raised.value) == f"statement: {field}: {OTHER}"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (larger("guarantee", "budget"), "guarantee.budget"),
        (with_clip, "doors"),
        (with_doors("score"), "doors"),
        (with_doors("select"), "doors"),
        (with_doors("anything"), "doors"),
        (with_all_examples, "doors"),
        (with_one_step_per_call, "doors"),
        (renamed("data", "name"), "data.name"),
        (renamed("model", "name"), "model"),
        (larger("model", "parameters"), "model"),
        (with_other_settings, "settings"),
        (larger("run", "rounds"), "run.rounds"),
        (lambda content: content["run"].update(seed=17), "run.seed"),
        (with_fewer_examples, "declared_size, doors"),
        (with_a_line_less, "not_covered"),
        (with_a_line_more, "not_covered"),
        (with_more_at_home, "stayed_home"),
        (with_other_configuration, "digests.configuration"),
    ],
)
def test_each_changed_fact_of_a_run_is_refused_beside_its_ledger(folder, change, field):
    """Before, the holder of a key could change each of them: the ledger knew nothing about it."""
    content = stated(folder, "example")
    check_change(folder, "kept", content, change, field)


def test_all_changed_facts_are_named_at_once(folder):
    def change(content):
        with_clip(content)
        renamed("data", "name")(content)
        larger("guarantee", "budget")(content)

    check_change(folder, "kept", stated(folder, "example"), change, "data.name, doors, guarantee.budget")


def with_merge_clip(content):
    content["merges"]["clip"] /= 2
    content["doors"][0]["clip"] /= 2
    content["grid"] = grid_facts(content["doors"], MergeEvents(**content["merges"]))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (with_merge_clip, "merges"),
        (renamed("model", "name"), "model"),
        (larger("guarantee", "budget"), "guarantee.budget"),
    ],
)
def test_facts_of_whole_silos_are_refused_too(folder, change, field):
    check_change(folder, "whole", stated(folder, "silo"), change, field)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (with_clip, "doors"),
        (larger("tuning", "ran", 0.5), "tuning"),
        (lambda content: content["tuning"].update(score="public"), "tuning"),
        (lambda content: content["settings"].update(lr=0.2), "trials"),
        (lambda content: content["run"].update(seed=17), "trials"),
        (renamed("data", "name"), "data.name"),
        (larger("guarantee", "budget"), "guarantee.budget"),
    ],
)
def test_a_sweep_is_bound_to_its_facts_and_its_trials(folder, change, field):
    content = stated(folder, "sweep")
    assert "settings" not in dict(claim_in(folder / "kept", content).facts)
    check_change(folder, "kept", content, change, field)


def test_a_statement_about_another_trial_than_the_chosen_one_is_refused(folder):
    """The row that ends a sweep says which trial was chosen; before, any could be stated."""
    content, claim = stated(folder, "sweep"), None
    claim = claim_in(folder / "kept", content)
    said = json.loads((folder / "sweep" / "result.json").read_text())["tuning"]
    own = digests_of({"trials": [facts_in(content)["trials"][0]]})[0][1]
    assert dict(claim.facts)[f"trials.{said['chosen']}"] == own
    check_facts(content, claim, said["chosen"])
    with refused(f"statement: trials: {OTHER}"):
        check_facts(content, claim, (said["chosen"] + 1) % said["ran"])


def test_a_noised_score_needs_its_sentence(folder):
    content = stated(folder, "sweep")
    content["not_covered"].remove(TEST_PART)
    with refused(f"statement: not_covered: the sentence '{TEST_PART}' is missing"):
        in_ledger(folder, "kept", signed_anew(content, key_in(folder / "kept", content)))


def test_a_run_that_was_not_tuned_cannot_say_it_was(folder):
    content, swept = stated(folder, "example"), stated(folder, "sweep")
    claim = claim_in(folder / "kept", content)
    content["tuning"] = swept["tuning"]
    with refused(f"statement: run.seed, settings, tuning: {OTHER}"):
        check_facts(content, claim)


def claim_in(folder, content):
    book = read_ledger(folder / content["ledger"]["file"], only_read=True)
    try:
        return book.state().claim_of(content["ledger"]["run"])
    finally:
        book.close()


@pytest.mark.parametrize("key", ["source", "fingerprint"])
def test_a_statement_names_the_data_set_of_its_ledger(folder, key):
    content = stated(folder, "example")
    signer = key_in(folder / "kept", content)
    content["data"][key] = "elsewhere"
    with refused("statement: data.source or data.fingerprint: its ledger is that of digits"):
        in_ledger(folder, "kept", signed_anew(content, signer))


def test_a_claim_holds_digests_of_exactly_what_its_statement_says(folder):
    for book, name in (("kept", "example"), ("whole", "silo")):
        content = stated(folder, name)
        known, said = dict(claim_in(folder / book, content).facts), dict(digests_of(facts_in(content)))
        assert known == {name: digest for name, digest in said.items() if name != "run.id"}


def test_ledgers_without_facts_open_continue_and_verify(tmp_path):
    """Rows of older versions have no facts; a row without any is written as they were."""
    old, facts = plan(), digests_of({"data": "school"})
    assert "facts" not in old.to_json()
    assert Claim.from_json(old.to_json()) == old
    with ledger(tmp_path).change() as rows:
        assert rows.state.runs == {}
    book = ledger(tmp_path)
    first = book.claim(old).run
    second = book.claim(Claim(**{**vars(old), "facts": facts})).run
    book.close()
    again = ledger(tmp_path)
    assert again.state().claim_of(first).facts == ()
    assert again.state().claim_of(second).facts == facts
    again.close()


@pytest.mark.parametrize("facts", [{"data": "x" * 63}, {"data": 3}, ["data"]])
def test_facts_that_are_no_digests_are_refused(tmp_path, facts):
    book = ledger(tmp_path)
    state = book.state()
    body = plan().to_json() | {"facts": facts}
    with pytest.raises((Problem, AttributeError), match=r"its facts must be digests|no attribute 'items'"):
        _check_run(state, Claim.from_json(body), 10)
    book.close()


def test_the_chain_covers_the_facts_of_a_claim(tmp_path):
    book = ledger(tmp_path)
    book.claim(Claim(**{**vars(plan()), "facts": digests_of({"data": "school"})}))
    book.close()
    path = tmp_path / f"{WHO.fingerprint}.sqlite"

    def other(rows):
        for kind, body in rows:
            if kind == "run":
                body["facts"] = dict(digests_of({"data": "another"}))
        return rows

    rewrite(path, other)
    with refused("is not the last that its key signed"):
        read_ledger(path, only_read=True)


def test_a_row_without_facts_is_told(folder):
    """A row that holds no digests, as of older versions, leaves these facts to the word of the signer."""
    content = stated(folder, "example")
    claim = claim_in(folder / "kept", content)
    assert check_facts(content, claim) is None
    free = check_facts(content, dataclasses.replace(claim, facts=digests_of({"model": content["model"]})))
    assert free == (
        "data.name, declared_size, digests.configuration, doors, guarantee.budget, method, not_covered,"
        " run.rounds, run.seed, settings, stayed_home, tuning: the run's row in its ledger does not fix this"
    )


def test_the_folder_of_a_ledger_is_not_part_of_its_name(folder):
    content = stated(folder, "example")
    signer = key_in(folder / "kept", content)
    content["ledger"]["file"] = f"/elsewhere/{content['ledger']['file']}"
    with refused("statement: ledger.file: expected the name of a file, got '/elsewhere/"):
        in_ledger(folder, "kept", signed_anew(content, signer))


def test_a_statement_of_an_older_head_cannot_hide_later_rounds(tmp_path):
    """Before, the holder of a key could name a head from the middle of a run: fewer rounds, the same epsilon."""
    federation = ct.load("digits", silos=3, features="standardize")
    (tmp_path / "kept-witness").mkdir()
    kept = {"ledger": tmp_path / "kept", "witness": tmp_path / "kept-witness", "out": tmp_path / "run"}
    ct.open_ledgers(tmp_path / "kept", federation, 50.0, 1e-2, witness=kept["witness"])
    privacy = ct.Privacy(epsilon=2, delta=1e-4)
    ct.run(federation, ct.FedAvg(), privacy, rounds=2, checkpoint=1, **kept)
    content = stated(tmp_path, "run")
    book = read_ledger(tmp_path / "kept" / content["ledger"]["file"], only_read=True)
    entries, heads = book.entries(), book.heads()
    book.close()
    first = next(n for n, entry in enumerate(entries) if entry.kind == "reserve")
    early = next(head for head in heads if head.hash == entries[first].hash)
    content["ledger"].update(sequence=early.number, head=early.hash)
    for part in (*content["events"], *content["doors"]):
        key = "count" if "count" in part else "calls"
        part[key] //= 2
    events = tuple(Event(**event) for event in content["events"])
    found = finite(numbers(events, content["guarantee"]["delta"]))
    content["guarantee"].update(lower=found["lower"], replace_one=found["replace_one"])
    content["guarantee"]["bound"] = BOUNDS[found["by"]]
    content |= {"published": found["published"], "warnings": found["warnings"]}
    forged = signed_anew(content, key_in(tmp_path / "kept", content))
    verify(text_of(forged))
    with refused("statement: events: do not match run 3 in its ledger"):
        in_ledger(tmp_path, "kept", forged)
