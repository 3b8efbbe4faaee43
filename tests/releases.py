"""A small metered training on a faulty disk, what it released, and whether ledgers show at least that.

A round counts as released as soon as its noise is drawn: nothing can leave the training before.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from coterie import _threads
from coterie.data.federation import from_table
from coterie.errors import Problem
from coterie.guard.ledgers import open_ledgers
from coterie.guard.meter import Meter, make_meter
from coterie.guard.secret_streams import EntropyStreams
from coterie.guard.session import Session
from coterie.methods import FedAvg
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.entries import LedgerState
from coterie.privacy.ledger.witness import FolderWitness
from tests.conftest import regression_table
from tests.faulty_disk import Disk, Fault
from tests.faulty_files import below_python
from tests.helpers import experiment
from tests.sqlite_layer import below_sqlite

CHECKPOINT = Path("out") / "checkpoint"
BUDGETS = [(50.0, 1e-1)] * 2
DICE, CERTIFIED = EntropyStreams.dice, functools.cache(epsilon_of)


class Release(NamedTuple):
    """A round of a silo whose noise was drawn; the salt tells a repeated round from the first."""

    silo: str
    round: int
    salt: bytes


@functools.cache
def small():
    """Give a training of four rounds of two silos, and its plan."""
    made = experiment(from_table(regression_table((20, 12))), FedAvg(), rounds=4)
    return made, made.plan()


def custody_of(place: Path) -> Custody:
    return Custody(witness=FolderWitness(place / "state" / "witness", make=True))


def meter_at(place: Path) -> Meter:
    return make_meter(
        place / "project" / "ledgers", small()[0].federation, BUDGETS, custody=custody_of(place)
    )


def prepare(place: Path, filter: str = "basic") -> None:
    """Make the ledgers of the training, with nothing spent."""
    place.mkdir(parents=True, exist_ok=True)
    folder, federation = place / "project" / "ledgers", small()[0].federation
    for ledger in open_ledgers(folder, federation, BUDGETS, filter, custody=custody_of(place)):
        ledger.close()
    meter_at(place).close()  # makes the secrets


def train(place: Path, on_round: Callable[[int, float | None], None] | None = None) -> None:
    """Train in blocks of two rounds, or resume a training."""
    made, plan = small()
    meter = meter_at(place)
    try:
        made.train(plan, on_round, Session(place / CHECKPOINT, "key", meter, every=2))
    finally:
        meter.close()


@contextmanager
def faulty(root: Path, fault: Fault | None = None) -> Iterator[Disk]:
    """Have a folder on a faulty disk, which notes releases; ledgers take turns, so that calls have an order."""
    disk = Disk.of(root, fault)

    def dice(self, run, silo, round_, call):
        drawn = DICE(self, run, silo, round_, call)
        disk.release(Release(silo, round_, self._reserved[silo].salt))
        return drawn

    with (
        below_sqlite(disk),
        below_python(disk),
        mock.patch.object(EntropyStreams, "dice", dice),
        mock.patch.object(_threads, "WAITING", 1),
    ):
        yield disk


@contextmanager
def sound(root: Path) -> Iterator[None]:
    """Have a folder on a disk that does not fail, and takes no time to sync."""
    disk = Disk(root)
    with below_sqlite(disk), below_python(disk), mock.patch.object(_threads, "WAITING", 1):
        yield


def rounds_of(released: Iterable[Release], silo: str) -> Counter[int]:
    """Give how often each round of a silo was released."""
    return Counter(release.round for release in set(released) if release.silo == silo)


def assert_charged(state: LedgerState, released: Counter[int]) -> None:
    """Every round that was released is reserved as often, and the total covers all of them."""
    reserved = Counter(
        number
        for row in state.reservations.values()
        for _ in row["runs"]
        for number in range(row["first"], row["last"])
    )
    assert not released - reserved, (released, reserved)
    assert_covered(state, released)


def assert_covered(state: LedgerState, released: Counter[int], claim: Claim | None = None) -> None:
    """The total is at least the epsilon of all rounds that were released, of runs with the same claim."""
    if not released:
        return
    claim = claim or state.claim_of(min(state.runs))
    events = tuple(event for number in released.elements() for event in claim.events(number, number + 1))
    epsilon, delta = state.total("example", "server")
    assert epsilon >= CERTIFIED(events, delta) * (1 - 1e-9)


def sentence(problem: Problem) -> str:
    """Give the one sentence of a problem."""
    said = str(problem)
    assert said
    assert "\n" not in said
    return said


def refusal_of(place: Path, released: Iterable[Release]) -> str | None:
    """Reopen the ledgers as a training does: they show what was released, or give the sentence that refuses."""
    try:
        meter = meter_at(place)
    except Problem as problem:
        return sentence(problem)
    try:
        for name, ledger in zip(meter.names, meter.ledgers, strict=True):
            assert_charged(ledger.state(), rounds_of(released, name))
    finally:
        meter.close()
    return None
