"""A ledger on a faulty disk: it is made, charged and given back to, cut off, opened again or recovered."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from coterie.errors import Problem
from coterie.privacy.keys import new_key
from coterie.privacy.ledger.ledger import Ledger, open_ledger
from coterie.privacy.ledger.place import recover_ledgers, rekey_ledgers
from coterie.privacy.ledger.verify import check_ledger
from tests.books import WHO, plan
from tests.faulty_disk import WAYS, Disk, cuts, lay_out
from tests.helpers import refused
from tests.releases import Release, assert_charged, assert_covered, custody_of, rounds_of, sentence

claim = functools.cache(plan)


def new_disk(tmp_path: Path) -> Path:
    """Give an empty folder, the same each time."""
    root = tmp_path / "disk"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return root


def path_at(place: Path) -> Path:
    return place / "project" / "ledgers" / f"{WHO.fingerprint}.sqlite"


def book_at(place: Path) -> Ledger:
    return open_ledger(path_at(place).parent, WHO, (1e6, 0.5), custody=custody_of(place))


def spend(place: Path, disk: Disk, salt: bytes = b"") -> None:
    """Make a ledger, or open it; claim, reserve, release, commit, give a round back and cancel."""

    def release(*rounds: int) -> None:
        for number in rounds:
            disk.release(Release(WHO.silo, number, salt))

    book = book_at(place)
    try:
        idle, run = book.claim(claim(4)).run, book.claim(claim(4)).run
        row = book.reserve(run, 0, 2)
        release(0, 1)
        row = book.reserve_all([run], 2, 4, (row.seq, "digest"))
        release(2)
        book.commit(row.seq, "digest", 3)
        book.cancel(idle)
    finally:
        book.close()


def stopped_by(action: Callable[..., object], *arguments: object) -> str | None:
    """Give the one sentence with which something is refused; None if it is not."""
    try:
        action(*arguments)
    except Problem as problem:
        return sentence(problem)
    return None


def refusal_of_book(place: Path, released: list[Release]) -> str | None:
    """Reopen the ledger: it is whole and shows what was released, or give the sentence that refuses it."""
    try:
        book = book_at(place)
    except Problem as problem:
        return sentence(problem)
    try:
        assert_charged(book.state(), rounds_of(released, WHO.silo))
        check_ledger(book.path, custody_of(place).witness)
    finally:
        book.close()
    return None


def take_way_out(place: Path, released: list[Release]) -> str | None:
    """Reopen the ledger; if it is refused, do what the sentence says: then it shows what was released."""
    why = refusal_of_book(place, released)
    if why is None:
        return None
    path, witness = path_at(place), custody_of(place).witness.folder
    way = next(way for way in ("rekey", "recover") if f"coterie ledger {way}" in why)
    if way == "rekey":
        new_key(place / "new.key")
        rekey_ledgers(path, "the key is lost", place / "new.key", old_key_lost=True, witness=witness)
        book = open_ledger(path.parent, WHO, custody=replace(custody_of(place), keys=place / "new.key"))
    else:
        if "remove the file" in why:
            path.unlink()
        if not path.exists():
            move_remains_away(path, witness)
        key_lost = not path.exists() and not path.with_suffix(".key").exists()
        recover_ledgers(path, "the disk failed", witness=witness, new_key=key_lost)
        book = book_at(place)
    assert_covered(book.state(), rounds_of(released, WHO.silo), claim(4))
    book.close()
    return way


def move_remains_away(path: Path, witness: Path) -> None:
    """Do what is said of logs that are left of a ledger."""
    for log in path.parent.glob(f"{path.name}-[wj]*"):
        with refused(f"'{log}' belongs to a ledger that is missing: restore the ledger, or move it away"):
            recover_ledgers(path, "the disk failed", witness=witness)
        log.unlink()


def states_after_cuts(
    disk: Disk, folder: Path, chances: int, ways: Sequence[str] = WAYS
) -> Iterator[tuple[Path, list[Release]]]:
    """Give each different state that a power cut at any instant may leave, with what was released before."""
    known = set()
    for number, replay in enumerate(cuts(disk)):
        for how in (*ways, *(Random(f"{number} {chance}") for chance in range(chances))):
            files = replay.left(how)
            state = hash(tuple(files.items())), len(set(replay.released))
            if state not in known:
                known.add(state)
                lay_out(files, folder / "cut")
                yield folder / "cut", list(replay.released)
                shutil.rmtree(folder / "cut")
