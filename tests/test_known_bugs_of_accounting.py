"""Bugs of accounting that other systems shipped, planted here: each is found."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from coterie.cli.statement import verify_statements
from coterie.errors import Problem
from coterie.experiment.statements import statement_of
from coterie.guard import claims, ledgers
from coterie.guard import meter as metering
from coterie.guard.session import Session
from coterie.methods import FedAvg
from coterie.planning import accounting
from coterie.planning import example_plan as planning
from coterie.privacy.accountant import epsilon
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.entries import LedgerState
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.ledger import Identity, open_ledger
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from tests.books import custody
from tests.helpers import experiment
from tests.measured import batch_sizes, is_poisson, noise_is_as_charged, silent

ROUNDS, DELTA = 5, 1e-3


def small(federation):
    return experiment(federation, FedAvg(), rounds=ROUNDS, delta=DELTA)


def meter_for(made, folder):
    """Ledgers whose budget is that of one run, and the run's plan."""
    plan = made.plan()
    budgets = [(silo.budget, silo.delta) for silo in plan.silos[0]]
    return metering.make_meter(folder, made.federation, budgets, custody=custody(folder)), plan


def metered(made, folder):
    """Train with ledgers; give their paths and a statement."""
    meter, plan = meter_for(made, folder)
    try:
        made.train(plan, session=Session(meter=meter))
        return [ledger.path for ledger in meter.ledgers], statement_of(made, plan, 0, 0, meter)
    finally:
        meter.close()


def stated(made):
    """The statement of a run without ledgers."""
    return text_of(statement_of(made, made.plan(), 0, 0))


def targets_with(monkeypatch, **change):
    """Calibrate for other targets than those that are asked for: each field is changed by its function."""

    def changed(target):
        return dataclasses.replace(target, **{name: by(getattr(target, name)) for name, by in change.items()})

    right = planning.calibrate

    def calibrate(targets, *more):
        asked = {target: changed(target) for target in targets}
        found = right(asked.values(), *more)
        return {target: found[other] for target, other in asked.items()}

    monkeypatch.setattr(planning, "calibrate", calibrate)


def test_an_accountant_that_starts_anew_every_round(monkeypatch, federation, tmp_path):
    """Elsewhere the epsilon of one round was shown as that of all."""
    made = small(federation)
    verify(stated(made))
    for path in metered(made, tmp_path / "sound")[0]:
        check_ledger(path)
    targets_with(monkeypatch, steps=lambda steps: steps // ROUNDS)
    shown = made.plan().silos[0][0]
    assert shown.epsilon <= shown.budget
    assert epsilon(shown.noise, shown.work.rate, ROUNDS * shown.work.steps, DELTA) > 1.5 * shown.budget
    with pytest.raises(Problem, match=r"guarantee\.budget"):
        verify(stated(made))
    with pytest.raises(Problem, match=r"the plan states epsilon .* but its events give"):
        metered(made, tmp_path / "planted")


def test_one_round_charged_where_many_were_trained(monkeypatch, tmp_path):
    """The same mistake in what is charged: the noise tells how many rounds there were."""
    made = silent(rounds=ROUNDS, steps=2)
    stages = accounting.stages_of
    assert noise_is_as_charged(made)
    monkeypatch.setattr(
        accounting, "stages_of", lambda calls, present, steps: stages(calls[:1], present, steps)
    )
    assert not noise_is_as_charged(made)
    meter, plan = meter_for(made, tmp_path)
    with pytest.raises(Spent, match="round 1: no silo can continue"):  # what is not charged does not happen
        made.train(plan, session=Session(meter=meter))
    meter.close()


def run_until_refused(folder):
    """Reserve round after round in a ledger that adds up divergences; give its path."""
    events = (Event("gaussian", 4.0, 0.5, 2),)
    asked = Claim("fedavg", "example", DELTA, epsilon(4.0, 0.5, 80, DELTA), ((40, events),))
    who = Identity("made", "north", 100)
    book = open_ledger(folder, who, (3.0, DELTA), filter="rdp", custody=custody(folder))
    claim = book.claim(asked, partial=True)
    for number in range(claim.rounds):
        book.reserve(claim.run, number, number + 1)
    again = book.claim(asked, partial=True)
    for number in range(again.rounds):
        book.reserve(again.run, number, number + 1)
    return book.path


def test_a_ledger_that_remembers_the_last_round_only(monkeypatch, tmp_path):
    """The same mistake in a ledger: what was reserved before the last round is forgotten."""
    with pytest.raises(Spent, match="does not"):
        run_until_refused(tmp_path / "sound")
    (path,) = (tmp_path / "sound").glob("*.sqlite")
    assert check_ledger(path).totals["example"]["server"][0] <= 3.0
    reserved = LedgerState.reserved
    with monkeypatch.context() as planted:
        planted.setattr(LedgerState, "reserved", lambda self, run: reserved(self, run)[-1:])
        path = run_until_refused(tmp_path / "planted")
    with pytest.raises(Problem, match="exceeds the budget"):
        check_ledger(path)


def test_taking_part_and_being_drawn_multiplied_to_one_rate(monkeypatch, federation, tmp_path):
    """Elsewhere the chance of a silo times that of an example was the rate: 1.46 shown, up to 17.9 spent."""
    made = small(federation)
    verify(stated(made))
    for path in metered(made, tmp_path / "sound")[0]:
        check_ledger(path)
    targets_with(monkeypatch, rate=lambda rate: 0.2 * rate)
    shown = made.plan().silos[0][0]
    true = [epsilon(shown.noise, shown.work.rate, rounds * shown.work.steps, DELTA) for rounds in (1, ROUNDS)]
    assert shown.epsilon < true[0] < true[1]
    with pytest.raises(Problem, match=r"guarantee\.budget"):
        verify(stated(made))
    with pytest.raises(Problem, match=r"the plan states epsilon .* but its events give"):
        metered(made, tmp_path / "planted")


def test_a_rate_that_is_charged_and_not_drawn(monkeypatch, federation):
    """The same mistake in what is charged: the batches tell the rate that really was."""

    def charged():
        (asked,) = claims.claims_of("local", silent().plan(), 0)
        return asked.events(0, 1)[0].rate

    def product(mechanism, noise, rate, count):
        return Event(mechanism, noise, 0.2 * rate, count)

    assert is_poisson(batch_sizes(), charged())
    verify(stated(small(federation)))
    monkeypatch.setattr("coterie.protocol.doors.Event", product)
    assert not is_poisson(batch_sizes(), charged())
    with pytest.raises(Problem, match=r"statement: doors: \d+ noisy sums at rate"):
        verify(stated(small(federation)))


def test_a_budget_that_is_full_again_at_every_start(monkeypatch, federation, tmp_path):
    """Elsewhere what was spent lived in memory, and a new start began with the whole budget."""
    made, folder = small(federation), tmp_path / "ledgers"
    _, first = metered(made, folder)
    file = tmp_path / "first.json"
    file.write_text(text_of(first))
    verify_statements([file], folder, as_json=False)
    with pytest.raises(Spent, match="does not fit"):
        metered(made, folder)
    real = ledgers.open_ledger

    def starts_anew(place, identity, *rest, **more):
        for path in place.glob(f"{identity.fingerprint}.{ending}*"):
            path.unlink()
        return real(place, identity, *rest, **more)

    monkeypatch.setattr(ledgers, "open_ledger", starts_anew)
    for removed in ("sqlite", ""):  # the ledger alone, or together with its key and its secret
        ending = removed
        with pytest.raises(Problem, match=r"there is no ledger of 'silo-0' .* the witness .* has seen one"):
            metered(made, folder)
    shutil.rmtree(folder)  # together with the witness, and all that knew of it: the statement tells
    metered(made, folder)
    with pytest.raises(Problem, match="rows were lost"):
        verify_statements([file], folder, as_json=False)


def test_rows_that_are_written_and_not_counted_at_the_next_start(monkeypatch, federation, tmp_path):
    """The same mistake with a ledger that is kept: its rows are there, and nobody adds them up."""
    made, folder = small(federation), tmp_path / "ledgers"
    for path in metered(made, folder)[0]:
        check_ledger(path)
    with pytest.raises(Spent, match="does not fit"):
        metered(made, folder)
    with monkeypatch.context() as planted:
        planted.setattr(LedgerState, "seen", lambda self, unit, adversary: ())
        paths, _ = metered(made, folder)
    for path in paths:
        with pytest.raises(Problem, match="exceeds the budget"):
            check_ledger(path)
