"""Rollback is noticed: old copies, forks and deleted ledgers are refused, and the way out charges what was lost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import coterie
from coterie.errors import Problem
from coterie.guard.meter import make_meter
from coterie.guard.session import Session
from coterie.methods import FedAvg
from coterie.privacy.keys import read_key
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.identity import Identity
from coterie.privacy.ledger.ledger import open_ledger, read_ledger
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.ledger.witness import FolderWitness, Unwitnessed, default_folder, find_witness
from tests.books import WHO, plan, spent
from tests.helpers import call, experiment, refused
from tests.tampering import cut, restore, rewrite, snapshot
from tests.test_ledger_units import whole
from tests.test_signed_ledgers import sign_last


def opened(folder, budget=(100.0, 1e-3), filter="basic", unit="example", witness=None):
    custody = Custody.of(None, witness)
    return open_ledger(folder, WHO, budget, unit, filter, custody)


def use(book, rounds=10, **how):
    claim = book.claim(plan(rounds, **how))
    book.reserve(claim.run, 0, rounds)
    return claim.run


def closed(book):
    book.close()
    return snapshot(book.path)


def test_the_witness_keeps_every_head(tmp_path, witness):
    book = opened(tmp_path)
    use(book)
    seen = find_witness().latest(WHO.fingerprint)
    assert (seen.number, seen.hash, seen.identity) == (3, book.head, WHO)
    lines = (witness / f"{WHO.fingerprint}.heads").read_text().split("\n")
    assert [json.loads(line)["number"] for line in lines if line] == [1, 2, 3]
    assert (witness / f"{WHO.fingerprint}.heads").stat().st_mode & 0o077 == 0
    assert find_witness().latest("0" * 24) is None


@pytest.mark.parametrize("filter", ["basic", "rdp", "gdp"])
def test_a_restored_copy_is_refused_and_recovered_with_what_the_witness_knows(tmp_path, filter):
    book = opened(tmp_path, filter=filter)
    use(book)
    old = closed(book)
    book = opened(tmp_path)
    use(book, rounds=7, noise=3.0)
    true = spent(book)
    book.close()
    restore(book.path, old)
    with refused("has seen 5 changes of it"):
        opened(tmp_path)
    with refused("it is an old copy"):
        check_ledger(book.path)
    with refused("it is an old copy"):
        read_ledger(book.path).claim(plan())
    with refused("it is an old copy"):
        coterie.set_budget(book.path, 5.0, 1e-4)
    with refused("--reason: say why"):
        coterie.recover_ledgers(tmp_path, "")
    assert check_ledger(book.path, FolderWitness(tmp_path / "none", make=True)).sequence == 3
    ((path, who),) = coterie.recover_ledgers(tmp_path, "the disk was restored")
    assert (path, who) == (book.path, WHO)
    again = opened(tmp_path)
    assert spent(again) == pytest.approx(true)
    assert spent(again, "personal") == pytest.approx(true)
    report = check_ledger(path)
    assert (report.sequence, report.witnessed) == (6, 6)
    assert report.notes == ("recovered at row 5: the disk was restored",)
    use(again)
    assert spent(again)[0] > true[0]
    check_ledger(path)
    with refused("agree with their witness: there is nothing to recover"):
        coterie.recover_ledgers(tmp_path, "again")
    with refused("agrees with its witness: there is nothing to recover"):
        coterie.recover_ledgers(path, "again")


def test_what_was_lost_counts_for_the_budget(tmp_path):
    one = plan()
    book = opened(tmp_path, budget=(2.5 * one.epsilon, 1e-3))
    old = closed(book)
    book = opened(tmp_path)
    use(book)
    use(book)
    book.close()
    restore(book.path, old)
    coterie.recover_ledgers(tmp_path, "lost")
    with pytest.raises(Spent, match="does not fit"):
        opened(tmp_path).claim(one)


def test_runs_from_before_a_recovery_cannot_continue_or_be_given_back(tmp_path):
    """The rows that are lost may have released their rounds, or repeated them."""
    book = opened(tmp_path)
    idle, run = book.claim(plan()).run, book.claim(plan()).run
    row = book.reserve(run, 0, 5)
    old = closed(book)
    book = opened(tmp_path)
    book.commit(row.seq, "x")
    book.reserve(run, 5, 10)
    book.close()
    restore(book.path, old)
    coterie.recover_ledgers(tmp_path, "lost")
    again = opened(tmp_path)
    before = spent(again)
    for attempt in (
        lambda: again.reserve(run, 5, 10),
        lambda: again.commit(row.seq, "y", 3),
        lambda: again.cancel(idle),
    ):
        with refused(
            "began before the ledger was recovered (row 6), so it stays charged and cannot continue"
        ):
            attempt()
    assert spent(again) == before
    again.commit(row.seq, "y")  # that it happened may be said
    check_ledger(again.path)


@pytest.mark.parametrize("kept", [(), (".secret",), (".key", ".pub"), (".key", ".pub", ".secret")])
@pytest.mark.parametrize("filter", ["basic", "rdp", "gdp"])
def test_a_deleted_ledger_is_noticed_and_begins_with_what_it_had_spent(tmp_path, kept, filter):
    """Before, deleting the ledger and its secret gave a fresh budget."""
    book = opened(tmp_path, filter=filter)
    book.set_budget("silo", 300.0, 1e-2)
    use(book)
    silo = book.claim(whole())
    book.reserve(silo.run, 0, 6)
    before = {
        unit: {who: book.state().total(unit, who) for who in ("server", "silos")}
        for unit in ("silo", "example")
    }
    book.path.with_suffix(".secret").write_bytes(b"s" * 32)
    book.close()
    for file in tmp_path.iterdir():
        if file.suffix not in kept:
            file.unlink()
    for budget in ((100.0, 1e-3), None):
        with refused("has seen one with 6 changes"):
            opened(tmp_path, budget)
    assert {file.suffix for file in tmp_path.iterdir()} == set(kept)
    if ".key" not in kept:
        with refused("but a new key would sign it from now on: give the old key (--keys) or, if it is lost,"):
            coterie.recover_ledgers(book.path, "the folder was deleted")
        assert {file.suffix for file in tmp_path.iterdir()} == set(kept)
    coterie.recover_ledgers(book.path, "the folder was deleted", new_key=".key" not in kept)
    again = opened(tmp_path)
    assert again.state().budgets == {"example": (100.0, 1e-3), "silo": (300.0, 1e-2)}
    assert again.state().filter_name == filter
    for unit, totals in before.items():
        for who, total in totals.items():
            assert again.state().total(unit, who) == pytest.approx(total), (unit, who)
    assert check_ledger(book.path).sequence == 7


def test_the_total_against_those_who_saw_the_silo_raw_stays_none(tmp_path):
    book = opened(tmp_path, unit="silo")
    book.claim(whole(unprotected=("server",)))
    assert book.state().bare("silo", "server")
    assert book.state().bare("example", "server")
    book.close()
    book.path.unlink()
    coterie.recover_ledgers(book.path, "deleted")
    totals = check_ledger(book.path).totals
    assert totals["silo"]["server"] == totals["example"]["server"] == (float("inf"), float("inf"))
    assert totals["silo"]["silos"][0] == pytest.approx(whole(unprotected=("server",)).epsilon)


def test_another_folder_is_no_fresh_budget(tmp_path):
    use(opened(tmp_path / "one"))
    with refused(f"there is no ledger of 'north' in '{tmp_path / 'two'}', but the witness"):
        opened(tmp_path / "two")
    assert not (tmp_path / "two").exists()
    shutil.copytree(tmp_path / "one", tmp_path / "moved")  # a folder may be moved, of course
    moved = opened(tmp_path / "moved")
    use(moved)
    with refused("it is an old copy"):
        opened(tmp_path / "one")


def test_two_copies_are_a_fork_whoever_is_first(tmp_path):
    book = opened(tmp_path / "one")
    use(book)
    book.close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    first, second = opened(tmp_path / "one"), opened(tmp_path / "two")
    run = first.claim(plan()).run
    for _ in range(2):  # also when it tries again
        with refused("it is an old copy"):
            second.claim(plan())
    first.reserve(run, 0, 10)
    before = spent(first)
    first.close()
    coterie.recover_ledgers(tmp_path / "two", "this one is right")
    with refused("it is an old copy"):
        opened(tmp_path / "one")
    assert spent(opened(tmp_path / "two")) == pytest.approx(before)


def test_two_copies_that_change_at_the_same_time_do_not_both_go_on(tmp_path, monkeypatch):
    """Both look, both write, both record: at most one may rely on it, though the clock says the same to both."""
    monkeypatch.setattr("coterie.privacy.ledger.entries.time.time", lambda: 1_800_000_000.123)
    book = opened(tmp_path / "one")
    use(book)
    book.close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    first, second = opened(tmp_path / "one"), opened(tmp_path / "two")
    record = FolderWitness.record

    def late(self, head):
        monkeypatch.setattr(FolderWitness, "record", record)
        second.claim(plan())
        record(self, head)

    monkeypatch.setattr(FolderWitness, "record", late)
    with refused("has seen other rows than these"):
        first.claim(plan())
    second.claim(plan())
    with refused("it is an old copy"):
        first.claim(plan())
    coterie.recover_ledgers(tmp_path / "one", "merge them")
    both = read_ledger(first.path)
    assert spent(both)[0] >= spent(second)[0]
    check_ledger(first.path)


def test_a_crash_before_the_witness_is_told_is_caught_up_with(tmp_path, monkeypatch):
    """A ledger that is ahead is no rollback: nothing was released that relied on the witness."""
    for ahead in (1, 2):
        book = opened(tmp_path)
        with monkeypatch.context() as dies:
            dies.setattr(FolderWitness, "record", lambda *_: None)
            for _ in range(ahead):
                book.claim(plan())
        number = book.signed_head.number
        book.close()
        assert find_witness().latest(WHO.fingerprint).number == number - ahead
        opened(tmp_path).close()
        assert find_witness().latest(WHO.fingerprint).number == number


def test_a_crash_when_a_ledger_was_just_made_is_caught_up_with(tmp_path, monkeypatch):
    with monkeypatch.context() as dies:
        dies.setattr(FolderWitness, "record", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path)
    assert find_witness().latest(WHO.fingerprint) is None
    assert opened(tmp_path, None).signed_head == find_witness().latest(WHO.fingerprint)


def test_a_witness_that_has_never_heard_of_a_ledger_is_not_believed(tmp_path):
    """Else whoever deletes the witness's file could restore an old copy, too."""
    book = opened(tmp_path)
    old = closed(book)
    use(opened(tmp_path))
    (find_witness().folder / f"{WHO.fingerprint}.heads").unlink()
    with refused("does not know it, although it has been changed before"):
        opened(tmp_path)
    coterie.recover_ledgers(tmp_path, "a new machine")
    report = check_ledger(book.path)
    assert report.notes == ("recovered at row 5: a new machine",)
    assert spent(opened(tmp_path))[0] == plan().epsilon
    restore(book.path, old)
    with refused("it is an old copy"):
        opened(tmp_path)


def test_who_only_reads_needs_no_witness(tmp_path):
    book = opened(tmp_path / "ledgers")
    use(book)
    book.close()
    auditor = FolderWitness(tmp_path / "auditor", make=True)
    assert check_ledger(book.path, auditor).witnessed is None
    assert not (tmp_path / "auditor").exists()


def test_a_witness_that_cannot_be_reached(tmp_path, monkeypatch):
    with refused("cannot be reached: there is no such folder; mount it, or create it"):
        opened(tmp_path / "ledgers", witness=tmp_path / "unmounted")
    assert not (tmp_path / "ledgers").exists()
    (tmp_path / "file").write_text("")
    with refused("cannot be reached: there is no such folder"):
        opened(tmp_path / "ledgers", witness=tmp_path / "file")
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with refused("cannot be written: the folder is not writable"):
        opened(tmp_path / "ledgers", witness=tmp_path / "locked")
    monkeypatch.undo()
    monkeypatch.setenv("COTERIE_WITNESS", str(tmp_path / "unmounted"))
    with refused("mount it, or create it"):
        opened(tmp_path / "ledgers")
    monkeypatch.delenv("COTERIE_WITNESS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert find_witness() == FolderWitness(tmp_path / "state" / "coterie" / "witness", make=True)
    opened(tmp_path / "ledgers")
    assert len(list(default_folder().iterdir())) == 1
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with refused("cannot be reached: "):
        opened(tmp_path / "others")


@pytest.mark.parametrize("fault", ["write", "fsync", "short"])
def test_a_run_that_the_witness_could_not_record_does_not_begin_and_costs_nothing(
    tmp_path, monkeypatch, fault
):
    book = opened(tmp_path)
    with monkeypatch.context() as full:
        if fault == "short":
            real = os.write
            full.setattr(os, "write", lambda handle, data: real(handle, data[:100]))
        else:
            full.setattr(os, fault, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(Unwitnessed, match=r"\A[^\n]*cannot be written: (n|the disk is full)[^\n]*\Z"):
            book.claim(plan())
    assert book.state().runs == {}
    book.close()
    again = opened(tmp_path)
    assert spent(again) == (0, 0)
    use(again)
    assert find_witness().latest(WHO.fingerprint) == again.signed_head
    check_ledger(book.path)


def test_nothing_is_drawn_before_the_witness_has_kept_the_charge(tmp_path, federation, monkeypatch):
    """Noise must not be drawn for rounds that a restored ledger would not know."""
    made = experiment(federation, FedAvg())
    planned = made.plan()
    meter = make_meter(tmp_path, federation, [(silo.budget, silo.delta) for silo in planned.silos[0]])
    heard = []
    record = FolderWitness.record

    def fails(self, head):
        if head.identity.silo == "silo-1" and head.number == 3:
            raise Unwitnessed("the witness is gone")
        record(self, head)

    monkeypatch.setattr(FolderWitness, "record", fails)
    with refused("the witness is gone"):
        made.train(planned, lambda *_: heard.append(_), Session(meter=meter))
    assert len(heard) <= 1  # the start
    for name in federation.names:
        with refused("was not reserved, so its noise is not drawn"):
            meter.streams.dice(0, name, 0, 0)
    sequences = [check_ledger(book.path).sequence for book in meter.ledgers]
    assert sequences[:2] == [3, 3]  # what was reserved stays charged
    assert sequences[2] in (2, 3)


TORN = [
    b"{",
    b'{"number": 9, "head',
    b"\0" * 50,
    b"",
    b"\n\n",
    b'\0\0\0signature": "ab"}',
    b'{"number": 9\0\0"}',
]


@pytest.mark.parametrize("torn", TORN)
def test_a_record_that_a_crash_cut_off_hides_no_other(tmp_path, witness, torn):
    book = opened(tmp_path)
    with (witness / f"{WHO.fingerprint}.heads").open("ab") as file:
        file.write(b"\n" + torn)
    assert find_witness().latest(WHO.fingerprint).number == 1
    use(book)
    assert find_witness().latest(WHO.fingerprint) == book.signed_head


def test_a_damaged_witness_is_refused(tmp_path, witness):
    book = opened(tmp_path)
    use(book)
    book.close()
    file = witness / f"{WHO.fingerprint}.heads"
    good = file.read_bytes()
    lines = good.split(b"\n")
    other = Identity("school", "south", 100)
    for bad, said in (
        (good.replace(b"north", b"south"), "the head is damaged, or its signature is wrong"),
        (good + b"\n{}\n", "is damaged: restore it from a backup"),
        (good + b'\n{"number": "x", "head": 1}\n', "is damaged: restore it from a backup"),
        (lines[-2][:-5] + b'00"}', "the head is damaged, or its signature is wrong"),
    ):
        file.write_bytes(bad)
        with refused(said):
            opened(tmp_path)
    file.write_bytes(good)
    (witness / f"{other.fingerprint}.heads").write_bytes(good)
    with refused("is that of another data set"):
        find_witness().latest(other.fingerprint)


def test_only_the_end_of_a_long_record_is_read(tmp_path, witness):
    book = opened(tmp_path)
    use(book)
    file = witness / f"{WHO.fingerprint}.heads"
    file.write_bytes(b"\n" + b"x" * 100_000 + file.read_bytes())
    assert find_witness().latest(WHO.fingerprint) == book.signed_head
    for _ in range(40):
        book.set_budget("example", 50.0, 1e-3)
    assert find_witness().latest(WHO.fingerprint) == book.signed_head


def test_a_recovery_that_charges_too_little_is_found(tmp_path):
    """By who replays the ledger: the holder of the key could sign it."""
    book = opened(tmp_path)
    old = closed(book)
    use(opened(tmp_path))
    restore(book.path, old)
    coterie.recover_ledgers(tmp_path, "lost")

    def cheaper(rows):
        *rest, (kind, body) = rows
        carried = {unit: {name: [0.0, 0.0] for name in each} for unit, each in body["carried"].items()}
        return [*rest, (kind, body | {"carried": carried})]

    rewrite(book.path, cheaper)
    sign_last(book.path, read_key(book.path.with_suffix(".key")))
    with pytest.raises(Problem, match="row 3: it does not charge what its witness had seen"):
        check_ledger(book.path, FolderWitness(tmp_path / "none", make=True))


@pytest.mark.parametrize("how", ["removed", "an old copy", "lowered since"])
def test_a_recovery_does_not_forget_that_the_budget_was_raised(tmp_path, how):
    """Before, raising a budget, removing the ledger and recovering it left a budget that was never raised."""
    book = opened(tmp_path, budget=(5.0, 1e-3))
    old = closed(book)
    book = opened(tmp_path, budget=(5.0, 1e-3))
    if how == "lowered since":
        book.set_budget("example", 4.0, 1e-3)
    else:
        book.set_budget("example", 9.0, 1e-3, "board", higher=True)
        book.set_budget("example", 50.0, 1e-3, "board", higher=True)
    book.close()
    if how == "removed":
        book.path.unlink()
    else:
        restore(book.path, old)
    coterie.recover_ledgers(book.path, "the disk died")
    times = 1 if how == "lowered since" else 2
    again = read_ledger(book.path)
    assert again.state().raised == {"example": times}
    again.close()
    said = f"; the budget in the unit 'example' had been raised {times} time(s) before"
    assert check_ledger(book.path).notes[-1].endswith(f"the disk died{said}")

    def forgetful(rows):
        *rest, (kind, body) = rows
        return [*rest, (kind, {name: value for name, value in body.items() if name != "raised"})]

    rewrite(book.path, forgetful)
    sign_last(book.path, read_key(book.path.with_suffix(".key")))
    with pytest.raises(Problem, match="it does not say how often its witness had seen the budget raised"):
        check_ledger(book.path, FolderWitness(tmp_path / "none", make=True))


def test_a_lost_ledger_with_another_filter_is_not_mixed_up(tmp_path):
    use(opened(tmp_path / "one", filter="rdp"))
    elsewhere = FolderWitness(tmp_path / "w", make=True)
    open_ledger(tmp_path / "two", WHO, (100.0, 1e-3), custody=Custody(witness=elsewhere)).close()
    with refused("adds up in another way"):
        coterie.recover_ledgers(tmp_path / "two", "use this one")


def test_a_ledger_that_nobody_knows_cannot_be_recovered(tmp_path):
    with refused("does not know it"):
        coterie.recover_ledgers(tmp_path / f"{'0' * 24}.sqlite", "why not")
    (tmp_path / f"{WHO.fingerprint}.secret").write_bytes(b"s" * 32)
    with refused("is missing, although its silo was metered before, and the witness"):
        opened(tmp_path)


def test_commands_notice_a_rollback_and_tell_the_way_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(
        "[data]\nsilos = 2\n[train]\nrounds = 2\n[privacy]\nepsilon = 2\ndelta = 1e-4\n"
        'ledger = "ledgers"\n[[method]]\nname = "fedavg"\n'
    )
    Path("remote").mkdir()
    opening = ("ledger", "open", "c.toml", "--epsilon", 5, "--delta", 1e-3, "--witness", "remote")
    code, _, err = call(monkeypatch, capsys, *opening)
    assert code == 0, err
    shutil.copytree("ledgers", "backup")
    run = ("run", "c.toml", "--witness", "remote", "--out")
    assert call(monkeypatch, capsys, *run, "one")[0] == 0
    shutil.rmtree("ledgers")
    shutil.copytree("backup", "ledgers")
    code, _, err = call(monkeypatch, capsys, *run, "two")
    assert (code, err.count("coterie: "), err.count("Traceback")) == (2, 1, 0)
    assert (
        "it is an old copy; restore the newest copy, or accept this one with `coterie ledger recover" in err
    )
    assert not Path("two").exists()
    code, _, err = call(monkeypatch, capsys, "ledger", "verify", "ledgers", "--witness", "remote")
    assert (code, "it is an old copy" in err) == (2, True)
    code, out, _ = call(monkeypatch, capsys, "ledger", "verify", "ledgers")  # the default knows nothing
    assert (code, out.count("no witness knows it")) == (2, 2)
    code, out, err = call(
        monkeypatch, capsys, "ledger", "recover", "ledgers", "--reason", "a backup", "--witness", "remote"
    )
    assert code == 0, err
    assert out.count("recovered; at most epsilon 1.99") == 2
    code, out, _ = call(monkeypatch, capsys, "ledger", "verify", "ledgers", "--witness", "remote")
    assert (code, out.count("  recovered at row 3: a backup")) == (0, 2)
    assert "its witness has seen 6" in out
    assert (
        "recovered at row 3"
        in call(monkeypatch, capsys, "ledger", "show", "ledgers", "--witness", "remote")[1]
    )
    assert call(monkeypatch, capsys, *run, "two")[0] == 0
    code, _, err = call(monkeypatch, capsys, *run, "three")  # 2 lost, 2 new, 2 asked for: 5 are allowed
    assert (code, "does not fit" in err) == (2, True)
    cut(next(Path("ledgers").glob("*.sqlite")), 4)
    code, _, err = call(monkeypatch, capsys, *run, "three")
    assert (code, "it is an old copy" in err) == (2, True)
    for folder in ("nowhere", "c.toml"):
        code, _, err = call(monkeypatch, capsys, "run", "c.toml", "--witness", folder, "--out", "four")
        assert (code, err.count("coterie: "), Path("four").exists()) == (2, 1, False)
        assert "cannot be reached" in err
