"""Metered training: charged before it happens, fresh noise, kills at any instant, silos that leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import coterie
from coterie.errors import Problem
from coterie.guard.checkpoint import Checkpoint, Recorded, load, save
from coterie.guard.claims import claims_of
from coterie.guard.meter import EntropyStreams, secret_of
from coterie.guard.session import Session
from coterie.methods import MRMTL, FedAvg, Local
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.verify import check_ledger
from coterie.protocol.messages import pack
from coterie.protocol.state import State
from tests.books import meter_of
from tests.helpers import experiment

ROOT = Path(__file__).parent.parent


def kill(mode: str, kills: int, tmp_path: Path) -> dict:
    command = [sys.executable, "-m", "tests.kills", mode, str(kills), "0", str(tmp_path / "kills")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_simulation_killed_at_any_instant_ends_as_one_never_killed(tmp_path):
    facts = kill("simulated", 40, tmp_path)
    assert facts["killed"] >= 40
    assert facts["with a checkpoint"] > 5


def test_a_metered_training_killed_at_any_instant_never_shows_less_than_was_released(tmp_path):
    facts = kill("metered", 25, tmp_path)
    assert facts["killed"] >= 25
    assert facts["with a checkpoint"] > 5


def test_a_metered_run_is_charged_as_planned(federation, tmp_path):
    made = experiment(federation, MRMTL(lam=0.5), epsilon={"each": [2.0, 5.0]})
    meter, plan = meter_of(made, tmp_path)
    result = made.train(plan, session=Session(meter=meter))
    for k, ledger in enumerate(meter.ledgers):
        report = check_ledger(ledger.path)
        silo = plan.silos[0][k]
        assert report.totals["example"]["server"] == (silo.epsilon, silo.delta)
        assert report.uncommitted == 0
        assert result.runs[0].silos[silo.name].epsilon == silo.epsilon
    with pytest.raises(Spent, match=r"silo 'silo-0': the budget of this data set"):
        made.train(plan, session=Session(meter=meter_of(made, tmp_path)[0]))


def test_a_refused_training_charges_nobody(federation, tmp_path):
    """The last silo has no budget left: what was charged to the others is taken back."""
    made = experiment(federation, FedAvg(), epsilon=2.0)
    poor = [(2.0, 1e-3), (2.0, 1e-3), (1e-3, 1e-3)]
    meter, plan = meter_of(made, tmp_path, poor)
    with pytest.raises(Spent, match="silo 'silo-2'"):
        made.train(plan, session=Session(meter=meter))
    for ledger in meter.ledgers:
        assert check_ledger(ledger.path).totals["example"]["server"] == (0.0, 0.0)


def test_a_silo_whose_budget_ends_leaves_and_the_others_go_on(federation, tmp_path):
    made = experiment(federation, FedAvg(), epsilon=4.0, rounds=8)
    meter, plan = meter_of(made, tmp_path, [(4.0, 1e-3), (2.0, 1e-3), (4.0, 1e-3)])
    result = made.train(plan, session=Session(meter=meter, partial=True))
    assert 0 < meter.rounds[1] < 8
    assert meter.rounds[0] == meter.rounds[2] == 8
    assert meter.left == {"silo-1": f"its budget covers {meter.rounds[1]} of 8 rounds"}
    spent = result.runs[0].silos["silo-1"].epsilon
    assert spent <= 2.0 < plan.silos[0][1].epsilon
    assert check_ledger(meter.ledgers[1].path).totals["example"]["server"][0] == spent


def test_a_training_that_no_silo_can_pay_to_its_end_is_refused_before_it_costs_anything(federation, tmp_path):
    made = experiment(federation, FedAvg(), epsilon=4.0, rounds=8)
    meter, plan = meter_of(made, tmp_path, [(2.0, 1e-3)] * 3)
    with pytest.raises(Spent, match=r"no silo's budget covers more than \d of 8 rounds.*nothing was charged"):
        made.train(plan, session=Session(meter=meter, partial=True))
    for ledger in meter.ledgers:
        assert check_ledger(ledger.path).totals["example"]["server"] == (0.0, 0.0)


def test_runs_that_train_together_must_all_fit(federation, tmp_path):
    made = experiment(federation, FedAvg(), epsilon=2.0, seeds=(0, 1))
    meter, plan = meter_of(made, tmp_path, [(3.0, 1e-2)] * 3)
    with pytest.raises(Spent, match="does not fit"):
        made.train(plan, session=Session(meter=meter))
    meter, plan = meter_of(made, tmp_path / "more", [(4.0, 1e-2)] * 3)
    made.train(plan, session=Session(meter=meter))
    total = check_ledger(meter.ledgers[0].path).totals["example"]["server"]
    assert total[0] == pytest.approx(2 * plan.silos[0][0].epsilon)


def test_without_privacy_nothing_is_metered(federation, tmp_path):
    made = experiment(federation, FedAvg(), epsilon=float("inf"))
    meter, plan = meter_of(made, tmp_path, [(3.0, 1e-2)] * 3)
    with pytest.raises(Spent, match="does not fit"):
        made.train(plan, session=Session(meter=meter))


def test_who_sends_nothing_is_seen_by_nobody_but_its_model(federation):
    (alone,) = claims_of("local", experiment(federation, Local()).plan(), 0)
    (together,) = claims_of("fedavg", experiment(federation, FedAvg()).plan(), 0)
    assert alone.seen == ("personal",)
    assert together.seen == ("server", "silos", "shared", "personal")
    assert alone.events(0, 3) == together.events(0, 3)


def test_two_metered_runs_share_no_noise_and_seeds_do_not_tell_it(federation, tmp_path):
    made = experiment(federation, Local(), epsilon=1.0)
    results = []
    for name in ("one", "two"):
        meter, plan = meter_of(made, tmp_path / name)
        results.append(made.train(plan, session=Session(meter=meter)).vectors[0])
    simulated = made.train(made.plan()).vectors[0]
    assert not torch.allclose(results[0], results[1], atol=1e-3)
    assert not torch.allclose(results[0], simulated, atol=1e-3)


def test_entropy_streams_never_answer_twice_and_never_repeat():
    streams = EntropyStreams({"a": b"x" * 32, "b": b"y" * 32})
    drawn = []
    for attempt in range(2):
        for silo in ("a", "b"):
            streams.begin(silo, "same row")
            drawn += [streams.dice(0, silo, 0, call).random(4) for call in range(2)]
            drawn.append(streams.dice(1, silo, 0, 0).random(4))
        assert attempt in (0, 1)
    assert len({tuple(values) for values in drawn}) == len(drawn)
    with pytest.raises(Problem, match="was drawn before"):
        streams.dice(0, "a", 0, 0)


def test_entropy_noise_is_normal():
    streams = EntropyStreams({"a": b"x" * 32})
    streams.begin("a", "row")
    noise = streams.dice(0, "a", 0, 0).noisy(np.zeros(20_000), 1.0)
    # fails by chance once in 10^6
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    assert stats.kstest(noise / 1.5, "norm").pvalue < 1e-6


def test_secrets_are_made_once_for_their_owner_only(federation, tmp_path):
    who = federation.identities[0]
    secret = secret_of(tmp_path, who)
    assert secret_of(tmp_path, who) == secret
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"short")
    with pytest.raises(Problem, match="is damaged"):
        secret_of(tmp_path, who)


def test_a_ledger_is_of_the_whole_silo_whatever_its_test_share(federation):
    from coterie.data.federation import load

    sizes = {load("digits", silos=3, test=share).sizes for share in (0.2, 0.5)}
    whole = {load("digits", silos=3, test=share).identities for share in (0.2, 0.5)}
    assert len(sizes) == 2
    assert len(whole) == 1


def test_a_checkpoint_comes_back_whole_or_not_at_all(tmp_path):
    state = State(3, (torch.ones(1, 1, 2), None), {"w": torch.arange(6.0).reshape(1, 3, 2)})
    point = Checkpoint(state, [Recorded(1, [0.5], [[0.4, 0.6]], [None])], [[3], [4]])
    path = tmp_path / "checkpoint"
    save(path, "key", point)
    again = load(path, "key")
    assert pack((again.state.shared, again.state.own)) == pack((state.shared, state.own))
    assert (again.state.round, again.history, again.claims) == (3, point.history, point.claims)
    assert load(tmp_path / "none", "key") is None
    with pytest.raises(Problem, match="belongs to another training"):
        load(path, "other key")
    content = bytearray(path.read_bytes())
    generator = np.random.default_rng(0)
    for place in generator.integers(0, len(content), 40):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(Problem, match="is damaged"):
            load(path, "key")


def test_blocks_are_reserved_before_and_committed_after(federation, tmp_path):
    """At every round that was done, it had been reserved; the checkpoint is there before the commit."""
    made = experiment(federation, FedAvg(), rounds=7)
    meter, plan = meter_of(made, tmp_path)
    seen = []

    def hear(number, _score):
        state = meter.ledgers[0].state()
        reserved = max((r["last"] for r in state.reservations.values()), default=0)
        seen.append((number, reserved, len(state.committed), (tmp_path / "checkpoint").exists()))

    session = Session(tmp_path / "checkpoint", "key", meter, every=3)
    made.train(plan, hear, session)
    assert [number for number, *_ in seen] == list(range(8))
    assert all(reserved >= number for number, reserved, *_ in seen)
    assert [committed for _, _, committed, _ in seen] == [0, 0, 0, 0, 1, 1, 1, 3]
    session.finish()
    assert not (tmp_path / "checkpoint").exists()


def test_two_trainings_at_once_on_ledgers_with_room_for_one(tmp_path):
    """One is trained, the other refused; the ledgers show one run."""
    (tmp_path / "c.toml").write_text(
        "[data]\nsilos = 3\n[train]\nrounds = 3\n[privacy]\nepsilon = 2.0\ndelta = 1e-4\n"
        '[[method]]\nname = "fedavg"\n'
    )
    command = [sys.executable, "-m", "coterie.cli.main"]
    opened = [*command, "ledger", "open", "c.toml", "--ledger", "kept", "--epsilon", "2", "--delta", "1e-4"]
    subprocess.run(opened, cwd=tmp_path, check=True, capture_output=True)
    both = [
        subprocess.Popen(
            [*command, "run", "c.toml", "--ledger", "kept", "--out", f"out-{name}"],
            cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )
        for name in "ab"
    ]  # fmt: skip
    errors = [child.communicate(timeout=300)[1] for child in both]
    assert sorted(child.returncode for child in both) == [0, 2]
    (refusal,) = [text for child, text in zip(both, errors, strict=True) if child.returncode]
    assert "does not fit" in refusal
    for path in (tmp_path / "kept").glob("*.sqlite"):
        report = check_ledger(path)
        assert report.runs == 1
        assert report.totals["example"]["server"][0] <= 2.0
    assert sum((tmp_path / f"out-{name}").exists() for name in "ab") == 1


def test_ledgers_in_python(federation, tmp_path):
    coterie.open_ledgers(tmp_path, federation, 2.0, 1e-3)
    ask = {"rounds": 2, "batch": 8, "ledger": tmp_path}
    privacy = coterie.Privacy(epsilon=2.0, delta=1e-3)
    result = coterie.run(federation, coterie.FedAvg(), privacy, **ask)
    assert len(result.runs) == 1
    with pytest.raises(Spent, match="does not fit"):
        coterie.run(federation, coterie.FedAvg(), privacy, **ask)
    several = [coterie.FedAvg(), coterie.Local()]
    with pytest.raises(Problem, match="there is no ledger of 'silo-0'"):
        coterie.run(federation, several, privacy, **(ask | {"ledger": tmp_path / "none"}))
    with pytest.raises(Problem, match=r"there is no ledger of 'silo-0' in .* has seen one"):
        coterie.run(federation, coterie.FedAvg(), privacy, **(ask | {"ledger": tmp_path / "new"}))
    (tmp_path / "other").mkdir()
    ask |= {"ledger": tmp_path / "new", "witness": tmp_path / "other"}
    alone = coterie.run(federation, coterie.FedAvg(), privacy, **ask)
    assert alone.statement("silo-0")["ledger"] is not None
    assert [
        report.budgets for report in coterie.read_ledgers(tmp_path / "new", witness=tmp_path / "other")
    ] == [{"example": (2.0, 1e-3)}] * 3


def test_going_on_with_the_ledger_of_another_run_is_refused(federation, tmp_path):
    made = experiment(federation, FedAvg(), rounds=4)
    meter, plan = meter_of(made, tmp_path, [(50.0, 1e-1)] * 3)
    asked = [claims_of("fedavg", plan, k) for k in range(3)]
    meter.claim(asked, partial=False)
    again = meter_of(made, tmp_path, [(50.0, 1e-1)] * 3)[0]
    again.resume(asked, meter.claims)
    other = [claims_of("fedavg", experiment(federation, FedAvg(), rounds=5).plan(), k) for k in range(3)]
    for wrong, rows in ((other, meter.claims), (asked, [[99]] * 3)):
        with pytest.raises(Problem, match="does not have the run that the checkpoint resumes"):
            meter_of(made, tmp_path, [(50.0, 1e-1)] * 3)[0].resume(wrong, rows)
