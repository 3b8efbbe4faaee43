"""Ledgers for tests."""

from __future__ import annotations

from coterie.guard.ledgers import open_ledgers
from coterie.guard.meter import make_meter
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.keys import read_key
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.ledger import Identity, open_ledger
from coterie.privacy.ledger.witness import FolderWitness
from coterie.privacy.statement.build import checksum
from coterie.privacy.statement.origin import PURPOSE

WHO = Identity("school", "north", 100)
DELTA = 1e-5


def plan(rounds=10, noise=4.0, rate=0.5, delta=DELTA, seen=("server", "silos", "shared", "personal")):
    events = (Event("gaussian", noise, rate, 2),)
    whole = Claim("fedavg", "example", delta, 0.0, ((rounds, events),), seen)
    certified = epsilon_of(whole.events(0, rounds), delta)
    return Claim("fedavg", "example", delta, certified, whole.stages, seen)


def custody(folder):
    """Custody with a witness in the folder of the ledgers: several folders know nothing of each other."""
    return Custody(witness=FolderWitness(folder / "witness", make=True))


def ledger(tmp_path, epsilon=100.0, delta=1e-3, filter="basic"):
    return open_ledger(tmp_path, WHO, (epsilon, delta), filter=filter, custody=custody(tmp_path))


def spent(book, adversary="server"):
    return book.state().total("example", adversary)


def meter_of(made, tmp_path, budgets=None, filter="basic"):
    """Make the meter of an experiment, with new ledgers where there are none, and its plan."""
    plan = made.plan()
    budgets = budgets or [(silo.budget, silo.delta) for silo in plan.silos[0]]
    place = tmp_path / "ledgers"
    for made_now in open_ledgers(place, made.federation, budgets, filter, custody=custody(place)):
        made_now.close()
    return make_meter(place, made.federation, budgets, custody=custody(place)), plan


def signed_anew(content, key):
    """Give a statement that the holder of a key changed: its checksum and its signature are right again."""
    rest = {name: value for name, value in content.items() if name not in ("checksum", "signature")}
    own = checksum(rest)
    return {**rest, "checksum": own, "signature": None if key is None else key.sign(PURPOSE, own)}


def key_in(folder, content):
    """Give the key with which a statement of a metered run was signed, found beside its ledger."""
    return read_key(folder / f"{content['data']['fingerprint']}.key")
