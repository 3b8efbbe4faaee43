"""Power cuts and failing disks: afterwards a ledger shows at least what was released, or is refused."""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from coterie.errors import Problem
from coterie.privacy.ledger.ledger import open_ledger
from coterie.privacy.ledger.verify import check_ledger
from tests.books import WHO
from tests.books import plan as claim_of
from tests.faulty_disk import GROWING, KINDS, WAYS, Disk, Fault, cuts, lay_out
from tests.releases import Release, assert_charged, custody_of, faulty, prepare, refusal_of, rounds_of, sound, train
from tests.sqlite_layer import Unreachable, layer

try:
    layer()
except Unreachable as reason:
    pytest.skip(str(reason), allow_module_level=True)

THOROUGH = os.environ.get("COTERIE_FAULTS") == "all"  # every call and more chances: for a night
CHANCES = 8 if THOROUGH else 1
claim = functools.cache(claim_of)


def states_after_cuts(disk: Disk, folder: Path, chances: int = CHANCES):
    """Give each different state that a power cut at any instant may leave, with what was released before."""
    known = set()
    for number, replay in enumerate(cuts(disk)):
        for how in (*WAYS, *(Random(f"{number} {chance}") for chance in range(chances))):
            files = replay.left(how)
            state = hash(tuple(files.items())), len(set(replay.released))
            if state not in known:
                known.add(state)
                lay_out(files, folder / "cut")
                yield folder / "cut", replay.released
                shutil.rmtree(folder / "cut")


def book_at(place: Path):
    return open_ledger(place / "project" / "ledgers", WHO, (1e6, 0.5), custody=custody_of(place))


def spend(place: Path, disk: Disk) -> None:
    """Make a ledger; claim, reserve, release, commit, give rounds back and cancel."""

    def release(*rounds):
        for number in rounds:
            disk.release(Release(WHO.silo, number, b""))

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


def book_refusal(place: Path, released) -> str | None:
    """Reopen the ledger: it shows what was released, or give the sentence that refuses it."""
    try:
        book = book_at(place)
    except Problem as problem:
        assert "\n" not in str(problem)
        return str(problem)
    try:
        assert_charged(book.state(), rounds_of(released, WHO.silo))
        check_ledger(book.path, custody_of(place).witness)
    finally:
        book.close()
    return None


def new_disk(tmp_path: Path) -> Path:
    root = tmp_path / "disk"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    return root


def test_a_power_cut_at_any_instant_loses_nothing_that_a_ledger_was_charged(tmp_path):
    """From an empty disk on: the ledger always opens again, is whole, and shows every release."""
    root = new_disk(tmp_path)
    with faulty(root) as disk:
        spend(root, disk)
    count = most = 0
    for place, released in states_after_cuts(disk, tmp_path):
        with sound(place):
            assert book_refusal(place, released) is None
        count, most = count + 1, max(most, len(released))
    print(count)
    assert most == 3
    assert count > 150


@pytest.mark.parametrize("filter", ["basic", "rdp"])
def test_a_power_cut_at_any_instant_loses_nothing_that_was_released(tmp_path, filter):
    """From an empty disk, or with ledgers that exist: they always open again, and show every release."""
    root = new_disk(tmp_path)
    prepare(root, filter)
    with faulty(root) as disk:
        train(root)
    count = most = 0
    for place, released in states_after_cuts(disk, tmp_path):
        with sound(place):
            assert refusal_of(place, released) is None
        count, most = count + 1, max(most, len(set(released)))
    assert most == 8  # four rounds of two silos
    print(count)
    assert count > 150
