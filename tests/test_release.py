"""Abandoned runs give back what they never reserved, and nothing else; whole folders are verified at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import coterie as ct
from coterie.errors import Problem
from coterie.experiment import run as running
from coterie.guard import session
from coterie.privacy.keys import new_key
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.ledger import read_ledger
from coterie.privacy.ledger.place import Released, check_ledgers, release_runs
from coterie.privacy.ledger.release import held, release
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.ledger.witness import find_witness
from coterie.privacy.trials import Trials
from tests.books import DELTA, WHO, custody, ledger, plan, spent
from tests.helpers import call, refused
from tests.tampering import cut, restore, rewrite, snapshot
from tests.test_ledger_units import book_of, whole
from tests.test_signed_ledgers import opened
from tests.test_waiting import BUDGET, crash_after, runs, train
from tests.test_waiting import clinics as clinics

FILTERS = ["basic", "rdp", "gdp"]


def checked(book):
    """Verify a ledger with the witness of its folder."""
    return check_ledger(book.path, custody(book.path.parent).witness)


@pytest.mark.parametrize("filter", FILTERS)
def test_a_run_that_reserved_nothing_is_given_back_in_full(tmp_path, filter):
    asked = plan()
    book = ledger(tmp_path, epsilon=1.4 * asked.epsilon, delta=3 * DELTA, filter=filter)
    before = spent(book)
    run = book.claim_all([asked])[0].run
    with pytest.raises(Spent):
        book.claim_all([asked] * 3)
    assert held(book.state()) == {run: (0, 10)}
    assert checked(book).held == ((run, "fedavg", 0, 10),)
    assert release(book, run, "it was killed") == (0, 10)
    assert spent(book) == before
    assert (held(book.state()), checked(book).held) == ({}, ())
    last = book.entries()[-1]
    assert (last.kind, last.body["run"], last.body["reason"]) == ("release", run, "it was killed")
    assert book.signed_head.hash == last.hash
    book.claim_all([asked])
    assert checked(book).runs == 1


@pytest.mark.parametrize("filter", FILTERS)
def test_a_released_run_cannot_continue(tmp_path, filter):
    book = ledger(tmp_path, filter=filter)
    run = book.claim(plan()).run
    if filter == "rdp":
        book.reserve(run, 0, 4)
    release(book, run, "killed")
    head = book.head
    for attempt in (
        lambda: book.reserve(run, 4, 10),
        lambda: book.reserve(run, 0, 4),
        lambda: book.cancel(run),
    ):
        with refused("was released at row"):
            attempt()
    with refused("was released before, at row"):
        release(book, run, "again")
    assert book.head == head


def test_only_the_renyi_filter_gives_back_the_rest_of_a_run_that_began(tmp_path):
    """It charges rounds one by one; the others certify a run as a whole."""
    asked = plan()
    book = ledger(tmp_path, epsilon=1.2 * asked.epsilon, delta=DELTA, filter="rdp")
    run = book.claim_all([asked])[0].run
    row = book.reserve(run, 0, 3)
    before = spent(book)
    short = plan(rounds=6)
    with pytest.raises(Spent, match="what unfinished runs may still spend"):
        book.claim_all([short])
    assert release(book, run, "abandoned") == (3, 10)
    assert spent(book) == before
    book.claim_all([short])
    book.commit(row.seq, "x", 2)  # its process was alive, and gives back a round that did not happen
    assert 0 < spent(book)[0] < before[0]
    assert checked(book).runs == 2


@pytest.mark.parametrize("filter", ["basic", "gdp"])
def test_a_run_that_began_stays_charged_under_the_other_filters(tmp_path, filter):
    book = ledger(tmp_path, filter=filter)
    run = book.claim(plan()).run
    book.reserve(run, 0, 1)
    before, head = spent(book), book.head
    with refused(f"run {run} has reserved rounds, and the filter '{filter}' charges a run as planned"):
        release(book, run, "abandoned")
    assert (spent(book), book.head, held(book.state())) == (before, head, {})


@pytest.mark.parametrize("filter", FILTERS)
def test_what_cannot_be_released(tmp_path, filter):
    book = ledger(tmp_path, filter=filter)
    done, stopped = (book.claim(plan()).run for _ in range(2))
    book.reserve(done, 0, 10)
    row = book.reserve(stopped, 0, 6)
    book.commit(row.seq, "x", 3)
    chosen = replace(plan(rounds=2), trials=Trials("geometric", 2.0, None, None))
    swept = book.claim(replace(chosen, epsilon=chosen.certified(0, 2))).run
    waiting = book.claim(plan()).run
    head = book.head
    for run, said in (
        (done, "holds no rounds: it reserved all that it may train"),
        (stopped, "holds no rounds"),
        (swept, "is the chosen trial of a sweep"),
        (99, f"run 99 is not in this ledger (runs that hold rounds: {waiting})"),
        (row.seq, "is not in this ledger"),
    ):
        with refused(said):
            release(book, run, "abandoned")
    for reason in ("", " ", None, 3):
        with refused("--reason: say why"):
            release(book, waiting, reason)
    assert book.head == head


@pytest.mark.parametrize("filter", FILTERS)
def test_a_run_from_before_a_recovery_stays_charged(tmp_path, filter):
    """The rows that are lost may have reserved its rounds."""
    book = ledger(tmp_path, filter=filter)
    run = book.claim(plan()).run
    book.close()
    old = snapshot(book.path)
    book = ledger(tmp_path)
    book.reserve(run, 0, 10)
    book.close()
    restore(book.path, old)
    ct.recover_ledgers(book.path, "restored", witness=tmp_path / "witness")
    again = ledger(tmp_path)
    with refused("began before the ledger was recovered, so it stays charged"):
        release(again, run, "abandoned")
    assert held(again.state()) == {}


def test_releasing_and_restoring_an_old_copy_wins_nothing(tmp_path):
    """The copy has the claim again; it stays charged beside what was spent in its place."""
    asked = plan()
    book = ledger(tmp_path, epsilon=2.2 * asked.epsilon)
    run = book.claim(asked).run
    book.close()
    old = snapshot(book.path)
    book = ledger(tmp_path)
    release(book, run, "killed")
    for _ in range(2):
        book.reserve(book.claim(asked).run, 0, 10)
    true = spent(book)
    book.close()
    restore(book.path, old)
    ct.recover_ledgers(book.path, "restored", witness=tmp_path / "witness")
    again = ledger(tmp_path)
    assert spent(again)[0] >= true[0] * (1 - 1e-12)
    with pytest.raises(Spent):
        again.claim(asked)


def test_a_released_run_of_whole_silos_takes_its_raw_uploads_with_it(tmp_path):
    """Nothing was uploaded, so the total against the server is not `none`."""
    book = book_of(tmp_path)
    run = book.claim(replace(whole(), unprotected=("server",), seen=("silos", "shared", "personal"))).run
    assert book.state().bare("silo", "server")
    release(book, run, "killed")
    assert not book.state().bare("silo", "server")
    assert book.state().total("silo", "silos") == (0.0, 0.0)


def unsound_release(book, run):
    """Add a row as the holder of the key could, with a program of their own."""
    with book.change() as rows:
        rows.add("release", {"run": run, "reason": "because"})


@pytest.mark.parametrize("filter", ["basic", "gdp"])
def test_a_forged_release_is_found(tmp_path, filter):
    book = ledger(tmp_path, filter=filter)
    run = book.claim(plan()).run
    book.reserve(run, 0, 2)
    unsound_release(book, run)
    with pytest.raises(Problem, match=r"row 5: run 3 has reserved rounds, and the filter"):
        checked(book)


def test_rounds_that_are_reserved_after_a_release_are_found(tmp_path):
    book = ledger(tmp_path, filter="rdp")
    run = book.claim(plan()).run
    book.reserve(run, 0, 2)
    release(book, run, "killed")
    with book.change() as rows:
        rows.add("reserve", {"runs": [run], "first": 2, "last": 4})
    with pytest.raises(Problem, match="row 6: run 3 was released at row 5"):
        checked(book)


@pytest.mark.parametrize(
    "body", [{"run": 3}, {"reason": "x"}, {"run": "3", "reason": "x"}, {"run": [], "reason": "x"}]
)
def test_a_release_that_is_incomplete_is_found(tmp_path, body):
    book = ledger(tmp_path)
    book.claim(plan())
    book.close()
    rewrite(book.path, lambda rows: [*rows, ("release", body)])
    with pytest.raises(Problem, match="row 4"):
        checked(book)


# --- from the outside


def killed(clinics, monkeypatch, filter, first="fedavg"):
    """Kill a study of two methods in the first round of one of them, so that its claims stay."""
    ct.open_ledgers("kept", clinics, 40.0, 4e-3, filter=filter)
    with monkeypatch.context() as patch:
        patch.setattr(running, "cancel_waiting", lambda *_: None)
        with pytest.raises(Problem, match="on_round failed after round 1"):
            train(clinics, out="study", checkpoint=1, on_round=crash_after(first))
    assert runs() == [2, 2]


@pytest.mark.parametrize("filter", FILTERS)
def test_a_killed_study_is_released_by_a_command(clinics, monkeypatch, capsys, filter):
    killed(clinics, monkeypatch, filter)
    code, out, _ = call(monkeypatch, capsys, "ledger", "show", "kept")
    shown = " ".join(out.split())
    assert code == 0
    assert shown.count("(ditto) holds rounds 0 to 2, not reserved so far") == 2
    assert shown.count("(fedavg) holds rounds 1 to 2, not reserved so far") == (2 if filter == "rdp" else 0)
    assert "--reason WHY" in shown
    asked = ("ledger", "release", "kept", "all", "--reason", "the machine broke")
    code, out, err = call(monkeypatch, capsys, *asked)
    assert (code, err) == (0, "")
    assert out.count("gave back rounds 0 to 2") == 2
    code, _, err = call(monkeypatch, capsys, *asked)
    assert (code, "there is nothing to release" in err, err.count("\n")) == (2, True, 1)
    assert call(monkeypatch, capsys, "ledger", "verify", "kept")[0] == 0
    if filter == "rdp":  # the round that fedavg had not reserved was given back, too
        with refused("so it cannot continue: start over in another folder"):
            train(clinics, out="study", checkpoint=1)
    else:  # fedavg resumes, and ditto is claimed anew
        assert len(train(clinics, out="study", checkpoint=1).runs) == 2
    assert len(train(clinics, out="other").runs) == 2


def train_long(federation, **how):
    return ct.run(federation, "fedavg", BUDGET, rounds=4, epochs=1, ledger="kept", checkpoint=1, **how)


def die_after_two_rounds(patch):
    """Make a training end while its second checkpoint is written: two of four rounds are reserved."""
    saves, real = [], session.save

    def dies(*arguments):
        saves.append(arguments)
        if len(saves) == 3:  # the first is that of the start
            raise KeyboardInterrupt
        real(*arguments)

    patch.setattr(session, "save", dies)


@pytest.mark.parametrize("released", [True, False])
def test_a_run_that_began_is_released_and_cannot_resume(clinics, monkeypatch, released):
    """Its reserved rounds stay charged, and a new run fits into what it held."""
    ct.open_ledgers("kept", clinics, 40.0, 4e-3, filter="rdp")
    with monkeypatch.context() as patch:
        die_after_two_rounds(patch)
        with pytest.raises(KeyboardInterrupt):
            train_long(clinics, out="study")
    reports = ct.read_ledgers("kept")
    assert [report.held for report in reports] == [((3, "fedavg", 2, 4),)] * 2
    if not released:
        assert len(train_long(clinics, out="study").runs) == 1
        return
    found = release_runs("kept", "all", "given up")
    assert {(each.identity.silo, each.run, each.first, each.last) for each in found} == {
        ("north", 3, 2, 4),
        ("south", 3, 2, 4),
    }
    assert [report.totals for report in ct.read_ledgers("kept")] == [report.totals for report in reports]
    with refused("run 3 was released at row 7, so it cannot continue: start over in another"):
        train_long(clinics, out="study")
    assert len(train_long(clinics, out="other").runs) == 1
    assert ct.verify(Path("other/statements/fedavg/north.json"), "kept").in_ledger


def test_one_run_of_one_ledger(tmp_path, monkeypatch, capsys):
    book = opened(tmp_path)
    first, second = (book.claim(plan()).run for _ in range(2))
    book.close()
    name = ("ledger", "release", book.path)
    code, out, _ = call(monkeypatch, capsys, *name, first, "--reason", "killed")
    assert (code, f"run {first} gave back rounds 0 to 10; at most epsilon" in out) == (0, True)
    assert ct.release_runs(book.path, second, "killed too") == [Released(book.path, WHO, second, 0, 10)]
    assert check_ledger(book.path).totals["example"]["server"] == (0.0, 0.0)
    assert find_witness().latest(WHO.fingerprint).number == 5


def test_wrong_ways_to_release_get_one_sentence_and_change_nothing(tmp_path, monkeypatch, capsys):
    book = opened(tmp_path)
    book.claim(plan())
    head = book.head
    book.close()
    new_key(tmp_path / "keys", "north")
    for asked, said in (
        ((tmp_path, 3, "--reason", "x"), "row 3 differs from ledger to ledger: name the ledger's file"),
        ((book.path, "fedavg", "--reason", "x"), "expected the row of a run, or 'all', got 'fedavg'"),
        ((book.path, "-3", "--reason", "x"), "No such option"),
        ((book.path, "3", "--reason", " "), "--reason: say why"),
        ((book.path, "4", "--reason", "x"), "run 4 is not in this ledger (runs that hold rounds: 3)"),
        ((book.path, "3", "--reason", "x", "--keys", tmp_path / "keys"), "is signed with key"),
        ((book.path, "3", "--reason", "x", "--witness", tmp_path / "gone"), "cannot be reached"),
        ((tmp_path / "none", "3", "--reason", "x"), "there is no ledger"),
    ):
        code, _, err = call(monkeypatch, capsys, "ledger", "release", *asked)
        assert (code, said in " ".join(err.split())) == (2, True), err
    with refused("run: expected the row of a run, or 'all', got True"):
        ct.release_runs(book.path, True, "x")
    assert read_ledger(book.path, only_read=True).head == head


# --- whole folders


def test_a_folder_is_verified_as_a_whole_and_all_problems_are_reported(clinics, monkeypatch, capsys):
    """Before, the first problem hid all others."""
    ct.open_ledgers("kept", clinics, 40.0, 4e-3)
    other = ct.load({"x": clinics_rows(), "y": [0, 1] * 20, "silo": ["east"] * 20 + ["west"] * 20}, name="b")
    ct.open_ledgers("kept", other, 40.0, 4e-3)
    assert (
        call(monkeypatch, capsys, "ledger", "verify", "kept")[1].splitlines()[-1]
        == "All 4 ledgers are right."
    )
    train(clinics, "fedavg")
    paths = {report.identity.silo: report.path for report in ct.read_ledgers("kept")}
    cut(paths["north"], 3)
    rewrite(paths["south"], lambda rows: rows[:-1])
    paths["east"].unlink()
    paths["east"].with_suffix(".secret").write_bytes(b"x" * 32)
    Path("kept/stray.sqlite").write_text("this is no ledger")
    code, out, err = call(monkeypatch, capsys, "ledger", "verify", "kept")
    assert code == 2
    assert [line.split()[0] for line in out.splitlines()] == ["west"]
    first, *lines = err.splitlines()
    assert first == "coterie: the ledgers in 'kept' have 4 problems:"
    for said in (
        f"{paths['north']}': its witness",
        f"{paths['south']}': row",
        f"{paths['east']}' is missing, although its silo was metered",
        "stray.sqlite' cannot be read: file is not a database",
    ):
        assert sum(said in line for line in lines) == 1, said
    assert len(lines) == 4
    code, out, _ = call(monkeypatch, capsys, "ledger", "verify", "kept", "--json")
    assert (code, len(json.loads(out)["ledgers"]), len(json.loads(out)["problems"])) == (2, 1, 4)
    reports, problems = check_ledgers("kept", independently=True)
    assert ([report.identity.silo for report in reports], len(problems)) == (["west"], 4)
    for reader in (ct.read_ledgers, lambda place: call(monkeypatch, capsys, "ledger", "show", place)):
        try:
            found = reader("kept")
        except Problem as problem:
            found = (2, "", str(problem))
        assert (found[0], "have 4 problems" in found[2]) == (2, True)


def clinics_rows():
    return [[float(k), 1.0] for k in range(40)]


def test_a_folder_in_which_all_ledgers_are_gone(clinics):
    ct.open_ledgers("kept", clinics, 40.0, 4e-3)
    train(clinics, "fedavg")
    for path in Path("kept").glob("*.sqlite*"):
        path.unlink()
    with pytest.raises(Problem, match=r"have 2 problems:\n  ledger .* is missing.*\n  ledger .* is missing"):
        ct.read_ledgers("kept")


def test_a_witness_that_cannot_be_reached_is_one_problem(clinics, monkeypatch, capsys):
    ct.open_ledgers("kept", clinics, 40.0, 4e-3)
    code, out, err = call(monkeypatch, capsys, "ledger", "verify", "kept", "--witness", "gone")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the witness 'gone' cannot be reached: there is no such folder" in err
