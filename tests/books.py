"""Ledgers for tests."""

from __future__ import annotations

from coterie.guard.ledgers import open_ledgers
from coterie.guard.meter import make_meter
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.ledger import Identity, open_ledger

WHO = Identity("school", "north", 100)
DELTA = 1e-5


def plan(rounds=10, noise=4.0, rate=0.5, delta=DELTA, seen=("server", "silos", "shared", "personal")):
    events = (Event("gaussian", noise, rate, 2),)
    whole = Claim("fedavg", "example", delta, 0.0, ((rounds, events),), seen)
    certified = epsilon_of(whole.events(0, rounds), delta)
    return Claim("fedavg", "example", delta, certified, whole.stages, seen)


def ledger(tmp_path, epsilon=100.0, delta=1e-3, filter="basic"):
    return open_ledger(tmp_path, WHO, (epsilon, delta), filter=filter)


def spent(book, adversary="server"):
    return book.state().total("example", adversary)


def meter_of(made, tmp_path, budgets=None, filter="basic"):
    """Make the meter of an experiment, with new ledgers where there are none, and its plan."""
    plan = made.plan()
    budgets = budgets or [(silo.budget, silo.delta) for silo in plan.silos[0]]
    for made_now in open_ledgers(tmp_path / "ledgers", made.federation, budgets, filter):
        made_now.close()
    return make_meter(tmp_path / "ledgers", made.federation, budgets), plan
