"""Blocks of rounds in ledgers and checkpoints: stopped, killed, gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from coterie.errors import Problem
from coterie.guard.checkpoint import load
from coterie.guard.interrupts import InterruptAfterRound, InterruptsHeld
from coterie.guard.session import Pace, Session
from coterie.methods import MRMTL, FedAvg
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.ledger import Ledger, read_ledger
from coterie.privacy.ledger.verify import check_ledger
from tests.books import ledger as book
from tests.books import meter_of, plan, spent
from tests.helpers import experiment
from tests.test_audit import forge


def asked_at(at):
    """Ask to stop in a certain round."""
    stopping = InterruptAfterRound(lambda: None)

    def hear(number, _score):
        stopping.heard = stopping.heard or number == at

    return stopping, hear


def test_a_block_is_committed_after_its_checkpoint_is_on_disk(federation, tmp_path):
    made = experiment(federation, FedAvg(), rounds=6)
    meter, plan = meter_of(made, tmp_path)
    path, seen = tmp_path / "checkpoint", []
    for ledger in meter.ledgers:

        def commit(rows, reservation, digest, ledger=ledger):
            seen.append((load(path, "key").state.round, rows.state.reservations[reservation]["last"]))
            Ledger._commit(ledger, rows, reservation, digest)

        ledger._commit = commit
    made.train(plan, session=Session(path, "key", meter, every=2))
    assert seen == [(last, last) for last in (2, 4, 6) for _ in meter.ledgers]


def test_what_was_done_is_committed_though_the_next_block_is_refused(federation, tmp_path):
    """A silo whose owner lowers its budget leaves; its last rounds are recorded as done."""
    made = experiment(federation, FedAvg(), rounds=6)
    meter, plan = meter_of(made, tmp_path)

    def lower(number, _score):
        if number == 1:
            meter.ledgers[0].set_budget("example", 0.01, 1e-6)

    made.train(plan, lower, Session(meter=meter, every=2))
    first, second = (ledger.state() for ledger in meter.ledgers[:2])
    assert [row["last"] for row in first.reservations.values()] == [2]
    assert [row["last"] for row in second.reservations.values()] == [2, 4, 6]
    for state in (first, second):
        assert state.committed == set(state.reservations)


@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_block_whose_checkpoint_is_there_is_committed_when_it_goes_on(federation, tmp_path, at):
    """Stopped after a checkpoint and before the commit: what is in the checkpoint happened."""
    made = experiment(federation, FedAvg(), rounds=6)
    meter, plan = meter_of(made, tmp_path)
    path = tmp_path / "checkpoint"

    def stops(number, _score):
        if number == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.train(plan, stops, Session(path, "key", meter, every=2))
    again = meter_of(made, tmp_path)[0]
    made.train(plan, session=Session(path, "key", again, every=2))
    for ledger in again.ledgers:
        state = ledger.state()
        assert [row["last"] for row in state.reservations.values()] == [2, 4, 6]
        assert state.committed == set(state.reservations)


def dies_in_the_third_round(made, plan, meter, folder):
    """Train with a checkpoint every two rounds until something kills it; give the checkpoint."""

    def dies(number, _score):
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.train(plan, dies, Session(folder / "checkpoint", "key", meter, every=2))
    return folder / "checkpoint"


def test_rounds_that_were_lost_stay_uncommitted(federation, tmp_path):
    """Stopped between two checkpoints: nothing says that the block happened, and it is charged again."""
    made = experiment(federation, FedAvg(), rounds=6)
    meter, plan = meter_of(made, tmp_path, [(50.0, 1e-1)] * 3)
    path = dies_in_the_third_round(made, plan, meter, tmp_path)
    again = meter_of(made, tmp_path, [(50.0, 1e-1)] * 3)[0]
    made.train(plan, session=Session(path, "key", again, every=2))
    for ledger in again.ledgers:
        state = ledger.state()
        assert [row["last"] for row in state.reservations.values()] == [2, 4, 4, 6]
        assert len(state.committed) == 3
        assert sorted(state.reservations)[1] not in state.committed


def test_a_quick_training_after_another_is_one_block(federation, tmp_path):
    """The pace of one training tells how long the next may go without a checkpoint."""
    made = experiment(federation, FedAvg(), rounds=40)
    blocks = []
    for pace in (None, 1e-4, 1.0):
        meter, plan = meter_of(made, tmp_path / str(pace))
        session = Session(meter=meter, pace=Pace(pace))
        made.train(plan, session=session)
        blocks.append([row["last"] for row in meter.ledgers[0].state().reservations.values()])
        assert session.pace.seconds_per_call is not None
    assert [found[0] for found in blocks] == [2, 40, 2]


def test_the_pace_is_that_of_one_run(federation, tmp_path):
    """Many runs together take longer: they are not one block because one run was quick."""
    firsts = []
    for settings in (1, 60):
        made = experiment(federation, MRMTL(lam=[0.1 + 0.01 * n for n in range(settings)]), rounds=40)
        meter, plan = meter_of(made, tmp_path / str(settings), [(1e4, 0.5)] * 3)
        made.train(plan, session=Session(meter=meter, pace=Pace(0.005)))
        firsts.append(next(iter(meter.ledgers[0].state().reservations.values()))["last"])
    assert firsts == [40, 2]


def test_where_no_silo_can_go_on_the_training_stops_and_can_be_taken_up(federation, tmp_path):
    """A killed run whose ledgers have no room for repeats is not finished by doing nothing."""
    made = experiment(federation, FedAvg(), rounds=6, epsilon=2.0)
    meter, plan = meter_of(made, tmp_path)
    path = dies_in_the_third_round(made, plan, meter, tmp_path)
    again = meter_of(made, tmp_path)[0]
    before = [spent(ledger) for ledger in again.ledgers]
    for _ in range(2):
        with pytest.raises(
            Spent, match=r"'silo-0': rounds 2 to 4 would be repeated.*then run the same again"
        ):
            made.train(plan, session=Session(path, "key", meter_of(made, tmp_path)[0], every=2))
    assert [spent(ledger) for ledger in again.ledgers] == before
    for ledger in again.ledgers:
        ledger.set_budget("example", 9.0, 1e-1, reason="a crash", higher=True)
    later = meter_of(made, tmp_path)[0]
    result = made.train(plan, session=Session(path, "key", later, every=2))
    assert result.runs[0].silos["silo-0"].epsilon > 2.0
    assert any("3 silo(s) repeated rounds" in note for note in result.notes)
    assert sum(last - first for first, last in later.account(0, 0).rounds) == 8


@pytest.mark.parametrize("at", [1, 3, 4, 5])
@pytest.mark.parametrize("filter", ["basic", "rdp"])
def test_asked_to_stop_a_training_ends_its_round_and_going_on_costs_nothing(federation, tmp_path, at, filter):
    """Blocks of four rounds: those that were not done are given back, and none is repeated."""
    made = experiment(federation, FedAvg(), rounds=8)
    path, spans = tmp_path / "checkpoint", {}
    for name in ("whole", "stopped"):
        meter, plan = meter_of(made, tmp_path / name, [(50.0, 1e-1)] * 3, filter)
        if name == "stopped":
            stopping, hear = asked_at(at)
            with pytest.raises(KeyboardInterrupt):
                made.train(plan, hear, Session(path, "key", meter, every=4, stopping=stopping))
            assert load(path, "key").state.round == at + 1
            meter = meter_of(made, tmp_path / name, [(50.0, 1e-1)] * 3, filter)[0]
        result = made.train(plan, session=Session(path if name == "stopped" else None, "key", meter, every=4))
        spans[name] = [spent(ledger) for ledger in meter.ledgers]
        for ledger in meter.ledgers:
            state = ledger.state()
            assert state.committed == set(state.reservations)
            assert [last for _, last in state.reserved(3)][-1] == 8
            assert check_ledger(ledger.path).uncommitted == 0
    assert spans["stopped"] == [pytest.approx(each) for each in spans["whole"]]
    assert not any("repeated" in note for note in result.notes)
    assert result.runs[0].silos["silo-0"].epsilon <= 4.0


def test_a_simulation_that_was_asked_to_stop_goes_on_to_the_same_bits(federation, tmp_path):
    made = experiment(federation, MRMTL(), rounds=8)
    stopping, hear = asked_at(4)
    with pytest.raises(KeyboardInterrupt):
        made.train(None, hear, Session(tmp_path / "point", "key", stopping=stopping))
    gone_on, whole = made.train(session=Session(tmp_path / "point", "key")), made.train()
    assert torch.equal(gone_on.vectors[0], whole.vectors[0])
    assert gone_on.runs[0].history == whole.runs[0].history


def test_asked_to_stop_in_the_last_round_a_training_is_done(federation, tmp_path):
    made = experiment(federation, FedAvg(), rounds=4)
    meter, plan = meter_of(made, tmp_path)
    stopping, hear = asked_at(3)
    made.train(plan, hear, Session(tmp_path / "point", "key", meter, every=4, stopping=stopping))
    assert load(tmp_path / "point", "key").state.round == 4
    assert all(ledger.state().committed for ledger in meter.ledgers)


def test_rounds_that_are_given_back_are_answered_no_more(federation, tmp_path):
    made = experiment(federation, FedAvg(), rounds=4)
    meter, plan = meter_of(made, tmp_path)
    stopping, hear = asked_at(1)
    with pytest.raises(KeyboardInterrupt):
        made.train(plan, hear, Session(tmp_path / "point", "key", meter, every=4, stopping=stopping))
    with pytest.raises(Problem, match="was not reserved"):
        meter.streams.dice(0, "silo-0", 2, 0)


def test_what_is_repeated_after_a_kill_is_one_reservation(federation, tmp_path):
    """In one block, however short blocks are: two would cost more."""
    made = experiment(federation, FedAvg(), rounds=9)
    meter, plan = meter_of(made, tmp_path, [(50.0, 1e-1)] * 3)

    def dies(number, _score):
        if number == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.train(plan, dies, Session(tmp_path / "point", "key", meter, every=4))
    again = meter_of(made, tmp_path, [(50.0, 1e-1)] * 3)[0]
    made.train(plan, session=Session(tmp_path / "point", "key", again, every=1))
    assert again.ledgers[0].state().reserved(3) == ((0, 4), (4, 8), (4, 8), (8, 9))


def test_a_silo_that_cannot_pay_for_repeated_rounds_leaves_before_it_is_charged(federation, tmp_path):
    made = experiment(federation, FedAvg(), rounds=6, epsilon=2.0)
    budgets = [(2.0, 1e-3), (9.0, 1e-1), (9.0, 1e-1)]
    meter, plan = meter_of(made, tmp_path, budgets)

    def dies(number, _score):
        if number == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.train(plan, dies, Session(tmp_path / "point", "key", meter, every=2))
    again = meter_of(made, tmp_path, budgets)[0]
    made.train(plan, session=Session(tmp_path / "point", "key", again, every=2))
    states = [ledger.state() for ledger in again.ledgers]
    assert states[0].reserved(3) == ((0, 2), (2, 4))
    assert states[1].reserved(3) == ((0, 2), (2, 4), (2, 4), (4, 6))
    assert spent(again.ledgers[0])[0] <= 2.0
    assert "would be repeated" in again.left["silo-0"]


@pytest.mark.parametrize(("row", "last"), [(6, 6), (6, 3), (6, 11), (6, "7"), (4, 3)])
def test_rounds_cannot_be_given_back_by_forging(tmp_path, row, last):
    """Neither of a reservation that is committed or not the newest, nor more or less than there is."""
    own = book(tmp_path)
    run = own.claim(plan(rounds=20)).run
    own.commit(own.reserve(run, 0, 6).seq, "")
    assert own.reserve(run, 6, 10).seq == 6
    if last != "7" and last < 10:
        with pytest.raises(Problem, match="cannot be given back"):
            own.commit(row, "", last)
    forge(own, ("commit", {"reservation": row, "digest": "", "last": last}))
    with pytest.raises(Problem, match=r"row 7: .*(given back|whole number)"):
        check_ledger(own.path)


@pytest.mark.parametrize("newer", [(6, 10), (6, 8), (10, 12)])
def test_rounds_of_an_older_reservation_cannot_be_given_back(tmp_path, newer):
    """Also where it was never committed, and the newer one has the same rounds."""
    own = book(tmp_path)
    run = own.claim(plan(rounds=20)).run
    own.commit(own.reserve(run, 0, 6).seq, "")
    dead = own.reserve(run, 6, 10).seq
    own.reserve(run, *newer)
    before = spent(own)
    with pytest.raises(Problem, match="cannot be given back"):
        own.commit(dead, "", 7)
    assert spent(own) == before
    forge(own, ("commit", {"reservation": dead, "digest": "", "last": 7}))
    with pytest.raises(Problem, match="given back"):
        check_ledger(own.path)


def test_rounds_of_a_committed_reservation_cannot_be_given_back(tmp_path):
    own = book(tmp_path)
    run = own.claim(plan(rounds=20)).run
    done = own.reserve(run, 0, 6).seq
    own.commit(done, "")
    with pytest.raises(Problem, match="cannot be given back"):
        own.commit(done, "", 3)
    forge(own, ("commit", {"reservation": done, "digest": "", "last": 3}))
    with pytest.raises(Problem, match="given back"):
        check_ledger(own.path)


def interrupted(holding, times):
    """Press Ctrl-C so often; tell what happened then."""
    held = 0
    try:
        with holding:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
                held += 1
    except KeyboardInterrupt:
        return held
    return None


def test_control_c_is_held_back_once_in_a_training_and_always_while_files_are_written():
    heard = []
    assert interrupted(InterruptAfterRound(lambda: heard.append(1)), 0) is None
    assert interrupted(InterruptAfterRound(lambda: heard.append(1)), 1) == 1
    assert heard == [1]
    assert interrupted(InterruptAfterRound(lambda: heard.append(1)), 3) == 1
    assert interrupted(InterruptsHeld(), 3) == 3


def test_a_metered_run_stopped_by_control_c_costs_what_was_planned(tmp_path):
    (tmp_path / "c.toml").write_text(
        "[data]\nsilos = 3\n[train]\nrounds = 300\n[privacy]\nepsilon = 2.0\ndelta = 1e-4\n"
        '[[method]]\nname = "fedavg"\n'
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "coterie.cli.main"]
    run = [*command, "run", "c.toml", "--ledger", "kept", "--out", "out"]
    opened = [*command, "ledger", "open", "c.toml", "--ledger", "kept", "--epsilon", "2", "--delta", "1e-4"]
    subprocess.run(opened, cwd=tmp_path, env=environment, check=True, capture_output=True)
    child = subprocess.Popen(
        run, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    for _ in range(3000):
        if (tmp_path / "out" / ".checkpoint-0").exists() or child.poll() is not None:
            break
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=600)[1]
    assert child.returncode == 130, said
    assert "Stopping after this round" in said
    again = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert again.returncode == 0, again.stderr
    for path in Path(tmp_path / "kept").glob("*.sqlite"):
        assert check_ledger(path).totals["example"]["server"][0] <= 2.0
        own = read_ledger(path)
        assert any("last" in entry.body for entry in own.entries() if entry.kind == "commit")
        own.close()
