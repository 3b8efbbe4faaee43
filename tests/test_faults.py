"""Power cuts at any instant: afterwards a ledger shows at least what was released, or is refused."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from random import Random

import pytest

from coterie.errors import Problem
from coterie.guard.checkpoint import load
from coterie.privacy.ledger.place import recover_ledgers
from tests.books import WHO
from tests.faulty_books import (
    book_at,
    new_disk,
    path_at,
    refusal_of_book,
    spend,
    states_after_cuts,
    take_way_out,
)
from tests.faulty_books import claim as four_rounds
from tests.faulty_disk import WAYS, cuts, lay_out
from tests.helpers import refused
from tests.releases import (
    CHECKPOINT,
    assert_covered,
    custody_of,
    faulty,
    meter_at,
    prepare,
    refusal_of,
    rounds_of,
    sound,
    train,
)
from tests.sqlite_layer import needs_layer
from tests.tampering import restore, snapshot

pytestmark = needs_layer
THOROUGH = os.environ.get("COTERIE_FAULTS") == "all"  # every call and more chances: for a night
CHANCES = 8 if THOROUGH else 1


def test_a_power_cut_at_any_instant_loses_nothing_that_a_ledger_was_charged(tmp_path):
    """From an empty disk on: the ledger always opens again, is whole, and shows every release."""
    root = new_disk(tmp_path)
    with faulty(root) as disk:
        spend(root, disk)
    count = most = 0
    for place, released in states_after_cuts(disk, tmp_path, CHANCES):
        with sound(place):
            assert refusal_of_book(place, released) is None
        count, most = count + 1, max(most, len(released))
    assert most == 3
    assert count > 200


@pytest.mark.parametrize("filter", ["basic", "rdp"])
def test_a_power_cut_at_any_instant_loses_nothing_that_a_training_released(tmp_path, filter):
    root = new_disk(tmp_path)
    prepare(root, filter)
    with faulty(root) as disk:
        train(root)
    count = most = 0
    ways = WAYS if filter == "basic" or THOROUGH else ("nothing", "ends")
    for place, released in states_after_cuts(disk, tmp_path, CHANCES, ways):
        with sound(place):
            assert refusal_of(place, released) is None
        count, most = count + 1, max(most, len(set(released)))
    assert most == 8  # four rounds of two silos
    assert count > 100


def test_a_training_without_power_resumes_and_all_its_releases_are_charged(tmp_path):
    """Rounds that must be repeated are charged again; what is drawn in both trainings is shown."""
    root = new_disk(tmp_path)
    prepare(root)
    with faulty(root) as disk:
        train(root)
    repeated = 0
    for number, replay in enumerate(cuts(disk)):
        if number % 9 and not THOROUGH:
            continue
        lay_out(replay.left(Random(number)), tmp_path / "cut")
        with faulty(tmp_path / "cut") as again:
            train(tmp_path / "cut")
            both = [*replay.released, *(done.released for done in again.log if done.released)]
            assert refusal_of(tmp_path / "cut", both) is None
        rounds = rounds_of(both, "silo-0")
        repeated += max(rounds.values()) > 1
        assert set(rounds) == {0, 1, 2, 3}
        shutil.rmtree(tmp_path / "cut")
    assert repeated > 2


@pytest.mark.parametrize("lost", ["an old copy", "deleted"])
def test_a_power_cut_during_a_recovery_leaves_it_undone_or_done(tmp_path, lost):
    root = new_disk(tmp_path)
    book_at(root).close()
    old = snapshot(path_at(root))
    with faulty(root) as disk:
        spend(root, disk)
    released = [done.released for done in disk.log if done.released]
    restore(path_at(root), old if lost == "an old copy" else {})
    with faulty(root) as disk:
        recover_ledgers(path_at(root), "a disk was lost", witness=custody_of(root).witness.folder)
    outcomes = set()
    for place, _ in states_after_cuts(disk, tmp_path, CHANCES):
        with sound(place):
            try:
                book = book_at(place)
            except Problem:
                outcomes.add(take_way_out(place, released))
                continue
            assert_covered(book.state(), rounds_of(released, WHO.silo), four_rounds(4))
            book.close()
            outcomes.add("done")
    assert outcomes == {"recover", "done"}


def checkpoint_of_two_rounds(place):
    """Train until the second block begins; give the checkpoint, and what it holds."""
    prepare(place)

    def dies(number, _score):
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(place, dies)
    path = place / CHECKPOINT
    assert load(path, "key").state.round == 2
    return path, path.read_bytes()


def test_a_torn_checkpoint_is_refused_wherever_it_is_torn(tmp_path):
    """Cut off, zeroed from somewhere on, a lost sector, a changed byte: none is taken for a checkpoint."""
    path, whole = checkpoint_of_two_rounds(tmp_path)
    torn = [whole[:cut] for cut in range(len(whole))]
    torn += [whole[:cut] + bytes(len(whole) - cut) for cut in range(len(whole) - 1)]
    torn += [whole[:cut] + bytes(64) + whole[cut + 64 :] for cut in range(0, len(whole) - 64, 8)]
    torn += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for content in torn:
        path.write_bytes(content)
        if content != whole:
            with refused("is damaged: remove it to start over"):
                load(path, "key")
    assert len(torn) > 1000


def test_nothing_is_released_from_a_torn_checkpoint_and_starting_over_is_charged(tmp_path):
    path, whole = checkpoint_of_two_rounds(tmp_path)
    path.write_bytes(whole[:-1])
    with faulty(tmp_path) as disk:
        with refused("is damaged: remove it to start over"):
            train(tmp_path)
        assert not any(done.released for done in disk.log)
        path.unlink()
        train(tmp_path)
        again = [done.released for done in disk.log if done.released]
        assert refusal_of(tmp_path, again) is None
        meter = meter_at(tmp_path)
        for name, ledger in zip(meter.names, meter.ledgers, strict=True):
            state = ledger.state()
            assert len(state.runs) == 2
            assert sum(row["last"] - row["first"] for row in state.reservations.values()) == 8
            assert_covered(state, rounds_of(again, name) + Counter(range(3)))  # and those of the first
        meter.close()
