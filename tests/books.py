"""Ledgers for tests."""

from __future__ import annotations

from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.ledger import Identity, open_ledger
from coterie.privacy.runplan import RunPlan

WHO = Identity("school", "north", 100)
DELTA = 1e-5


def plan(rounds=10, noise=4.0, rate=0.5, delta=DELTA, seen=("server", "silos", "shared", "personal")):
    events = (Event("gaussian", noise, rate, 2),)
    whole = RunPlan("fedavg", "example", delta, 0.0, ((rounds, events),), seen)
    certified = epsilon_of(whole.events(0, rounds), delta)
    return RunPlan("fedavg", "example", delta, certified, whole.stages, seen)


def ledger(tmp_path, epsilon=100.0, delta=1e-3, filter="basic"):
    return open_ledger(tmp_path, WHO, (epsilon, delta), filter=filter)


def spent(book, adversary="server"):
    return book.state().total("example", adversary)
