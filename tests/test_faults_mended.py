"""Faults of disks that once did harm: files without a name, half a ledger, logs of another, errors that were raw."""

from __future__ import annotations

import errno
import functools
import itertools
import sqlite3
from contextlib import closing

import pytest

from coterie.experiment.config.schema import check
from coterie.experiment.from_config import study_of
from coterie.guard.ledgers import open_ledgers
from coterie.guard.secret_streams import secret_of
from coterie.privacy.files import make_folder
from coterie.privacy.ledger.data_sets import data_sets
from coterie.privacy.ledger.entries import hash_of
from coterie.privacy.ledger.ledger import open_ledger
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.ledger.witness import FolderWitness, Unwitnessed
from coterie.report.folder import Folder
from tests.books import WHO, custody, ledger, plan
from tests.faulty_books import (
    book_at,
    new_disk,
    path_at,
    refusal_of_book,
    spend,
    states_after_cuts,
    stopped_by,
)
from tests.faulty_disk import GROWING, WAYS, Disk, Fault, cuts, lay_out
from tests.faulty_files import below_python
from tests.helpers import refused
from tests.releases import custody_of, faulty, sound
from tests.sqlite_layer import below_sqlite, needs_layer

pytestmark = needs_layer


def last(disk):
    *_, replay = cuts(disk)
    return replay


def test_a_secret_is_there_after_a_power_cut(tmp_path):
    """With another one, the same question would be answered again with other noise."""
    root = new_disk(tmp_path)
    disk = Disk.of(root)
    with below_python(disk):
        secret = secret_of(root, WHO)
    lay_out(last(disk).left("nothing"), tmp_path / "cut")
    assert secret_of(tmp_path / "cut", WHO) == secret


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_secret_that_cannot_be_kept_is_refused_in_a_sentence(tmp_path, error, lasting):
    refusals = 0
    for number in itertools.count():
        root = new_disk(tmp_path)
        disk = Disk.of(root, Fault(number, error, lasting=lasting))
        with below_python(disk):
            why = stopped_by(secret_of, root, WHO)
        if not disk.struck:
            break
        refusals += why is not None
        assert why is None or "cannot be read or written: " in why
        assert len(secret_of(root, WHO)) == 32
    assert refusals >= number - 1  # one call only tidies up


def test_a_folder_is_there_after_a_power_cut_also_if_whoever_made_it_was_stopped(tmp_path):
    for number in itertools.count():
        root = new_disk(tmp_path)
        disk = Disk.of(root, Fault(number, kinds=("open", "mkdir")))
        with below_python(disk):
            try:
                make_folder(root / "a" / "b" / "c")
            except OSError:
                disk.fault = None
                make_folder(root / "a" / "b" / "c")
            (root / "a" / "b" / "c" / "file").touch()
            disk.sync(root / "a" / "b" / "c")
        assert len(last(disk).left("nothing")) == 4
        if not disk.struck:
            break
    assert number > 4


def test_the_record_of_a_witness_has_a_lasting_name_though_the_first_attempt_failed(tmp_path):
    """The folder was synced only by whoever created the file, and not if that failed."""
    root = new_disk(tmp_path)
    witness = FolderWitness(root)
    head = ledger(tmp_path / "ledgers").signed_head
    disk = Disk.of(root, Fault(0, kinds=("open",), where=str(root)))
    with below_python(disk):
        with pytest.raises(Unwitnessed, match="cannot be written"):
            witness.record(head)
        disk.fault = None
        witness.record(head)
    lay_out(last(disk).left("nothing"), tmp_path / "cut")
    assert FolderWitness(tmp_path / "cut").latest(WHO.fingerprint) == head


def test_half_a_ledger_is_never_put_into_its_place(tmp_path):
    """Its rows were in a log that is removed, since only closing it moved them, and closing does not fail."""
    failed = 0
    for number in itertools.count():
        root = new_disk(tmp_path)
        disk = Disk.of(root, Fault(number, errno.ENOSPC, GROWING, where=".sqlite"))
        with below_sqlite(disk), below_python(disk):
            failed += stopped_by(book_at, root) is not None
        if not disk.struck:
            break
        assert not list(path_at(root).parent.glob(".*")), disk.struck
        with sound(root):
            book_at(root).close()
            check_ledger(path_at(root), custody_of(root).witness)
    assert failed > 0.8 * number


def test_a_new_ledger_does_not_take_up_the_log_of_one_that_is_gone(tmp_path):
    book = ledger(tmp_path)
    book.claim(plan())
    log = book.path.with_name(f"{book.path.name}-wal")
    content = log.read_bytes()
    book.close()
    book.path.unlink()
    log.write_bytes(content)
    with refused(f"'{log}' belongs to a ledger that is missing: restore the ledger, or move it away"):
        open_ledger(tmp_path, WHO, (1.0, 1e-3), custody=custody(tmp_path / "elsewhere"))
    log.unlink()
    open_ledger(tmp_path, WHO, (1.0, 1e-3), custody=custody(tmp_path / "elsewhere")).close()


def test_without_a_write_ahead_log_a_change_is_as_safe(tmp_path):
    """Some disks cannot have one. A change is undone as long as the removal of its journal is not synced."""
    root = new_disk(tmp_path)
    book_at(root).close()
    with closing(sqlite3.connect(path_at(root))) as connection:
        assert connection.execute("pragma journal_mode = delete").fetchone() == ("delete",)
    with faulty(root) as disk:
        spend(root, disk)
    journals = 0
    for place, released in states_after_cuts(disk, tmp_path, 0, ["nothing", "all"]):
        journals += len(list(place.rglob("*-journal")))
        with sound(place):
            assert refusal_of_book(place, released) is None
    assert journals > 20


def test_a_ledger_that_cannot_be_read_is_not_overlooked(tmp_path, federation):
    """Under an older name it is found by what it says; if it were overlooked, a new one had a new budget."""
    for book in open_ledgers(tmp_path, federation, [(1.0, 1e-3)] * 3, custody=custody(tmp_path)):
        book.close()
    (tmp_path / "note.sqlite").write_text("this is no database, and of no concern")
    with closing(sqlite3.connect(tmp_path / "table.sqlite")) as connection:
        connection.execute("create table entries (other)")
    assert len(data_sets(tmp_path)) == 3
    for kind in ("open", "read", "lock"):
        with below_sqlite(Disk.of(tmp_path, Fault(0, kinds=(kind,)))), refused("cannot be read: "):
            data_sets(tmp_path)
    broken = data_sets(tmp_path)[0][0]
    broken.write_bytes(broken.read_bytes()[:5000])
    with refused("cannot be read: database disk image is malformed"):
        data_sets(tmp_path)


def test_a_claim_that_was_written_but_could_not_be_shown_costs_nothing(tmp_path):
    """At any call: if a claim is refused, nothing of it stays charged, except where the disk is gone for good."""
    root = new_disk(tmp_path)
    book_at(root).close()
    refusals = 0
    for number in itertools.count():
        with faulty(root) as disk:
            book = book_at(root)
            disk.fault, disk.calls = Fault(number), 0
            why = stopped_by(book.claim, plan(4))
            disk.fault = None
            runs = list(book.state().runs)
            if why is None:
                book.cancel(runs[0])
            book.close()
        if not disk.struck:
            break
        refusals += why is not None
        assert (why is None) == bool(runs), disk.struck
    assert refusals > 10


def test_a_row_that_nobody_signed_is_refused_as_often_as_it_is_read(tmp_path):
    """An open ledger read it once with a complaint, and then went on as if it were right."""
    book = ledger(tmp_path)
    book.claim(plan())
    with closing(sqlite3.connect(book.path)) as other:
        row = other.execute("select * from entries where seq = 3").fetchone()
        forged = (4, row[1], row[2], row[4], hash_of(4, row[1], row[2], row[4]))
        other.execute("insert into entries values (?, ?, ?, ?, ?)", forged)
        other.commit()
    for action in (
        book.state,
        book.state,
        lambda: book.claim(plan()),
        lambda: book.claim(plan()),
        book.entries,
    ):
        with refused("row 4 is not the last that its key signed"):
            action()
    book.close()


@functools.cache
def study():
    return study_of(
        check({"data": {"silos": 2}, "method": [{"name": "local"}], "privacy": {"epsilon": 1}}, "c")
    )


def test_a_folder_that_was_begun_can_be_resumed_after_a_power_cut(tmp_path):
    """What it was charged for would be lost, if the folder did not know its own study any more."""
    root = new_disk(tmp_path)
    disk = Disk.of(root)
    with below_python(disk):
        (root / "out").mkdir()
        disk.sync(root)
        assert Folder(root / "out").open(study()) == []
        disk.sync(root / "out")  # as a checkpoint does, whose key depends on the digest
        digest = Folder(root / "out").examples
    for how in WAYS:
        lay_out(last(disk).left(how), tmp_path / how)
        assert Folder(tmp_path / how / "out").open(study()) == []
        assert Folder(tmp_path / how / "out").examples == digest


def test_a_folder_that_cannot_be_begun_is_not_left_behind(tmp_path):
    for number in itertools.count():
        root = new_disk(tmp_path)
        disk = Disk.of(root, Fault(number, errno.ENOSPC, ("create", "write", "rename")))
        with below_python(disk):
            why = stopped_by(Folder(root / "out").open, study())
        if not disk.struck:
            break
        assert "out: cannot write " in why
        assert not list(root.iterdir())
    assert number == 6  # two files
