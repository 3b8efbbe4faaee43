"""Silos that drop out, come back or not, and do less: who is there, what it costs, what is sent."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from coterie.engines.simulation import simulate
from coterie.experiment.config.schema import Tuning, check
from coterie.experiment.statements import statement_of
from coterie.experiment.sweep import check_sweep
from coterie.guard.claims import claims_of
from coterie.guard.meter import make_meter
from coterie.guard.session import Session
from coterie.methods import IFCA, MRMTL, Dual, FedAvg, Heads
from coterie.planning.schedule import Dropping, Participation, draw_schedule, live, steps_taken
from coterie.planning.training import Training
from coterie.privacy.accountant import epsilon
from coterie.privacy.budget import Privacy
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from coterie.protocol.doors import Work
from coterie.report.statement_page import page
from tests.helpers import call, experiment, reference_vectors, refused, vectors
from tests.measured import reference_of

NAMES = ("silo-0", "silo-1", "silo-2")
BOTH = Dropping(drop=0.4, uneven=0.8)


def test_rounds_are_independent_unless_it_is_said_how_silos_come_back():
    here = live(Dropping(drop=0.3), 0, [f"s{k}" for k in range(20)], 2000).double()
    assert float(here.mean()) == pytest.approx(0.7, abs=0.01)
    after = here[1:][here[:-1] == 0].mean()
    assert float(after) == pytest.approx(0.7, abs=0.02)


def test_silos_come_back_with_the_chance_given():
    here = live(Dropping(drop=0.1, recover=0.3), 0, [f"s{k}" for k in range(20)], 2000).double()
    assert float(here[1:][here[:-1] == 0].mean()) == pytest.approx(0.3, abs=0.02)
    assert float(here[1:][here[:-1] == 1].mean()) == pytest.approx(0.9, abs=0.02)


def test_a_silo_that_never_comes_back():
    here = live(Dropping(drop={"silo-1": 0.2, "default": 0.0}, recover=0.0), 3, NAMES, 200)
    assert here[:, [0, 2]].all()
    gone = int(here[:, 1].sum())
    assert 0 < gone < 200
    assert here[:gone, 1].all()
    assert not here[gone:, 1].any()


def test_one_silo_s_coins_do_not_depend_on_the_others():
    assert torch.equal(live(BOTH, 1, NAMES, 50)[:, 2], live(BOTH, 1, NAMES[2:], 50)[:, 0])
    assert not torch.equal(live(BOTH, 1, NAMES, 50), live(BOTH, 2, NAMES, 50))


def test_steps_lie_between_the_least_and_all():
    taken = steps_taken(Dropping(uneven=0.5), 0, ["a", "b"], [10, 1], 3000)
    assert set(taken[:, 0].tolist()) == set(range(5, 11))
    assert set(taken[:, 1].tolist()) == {1}
    counts = np.bincount(taken[:, 0].numpy())[5:]
    assert counts.min() > 400
    assert set(steps_taken(Dropping(uneven=1.0), 0, ["a"], [3], 100)[:, 0].tolist()) == {1, 2, 3}


def test_only_who_was_to_take_part_can_drop_out():
    training = Training(rounds=40, participation=Participation(0.5), dropping=Dropping(drop=0.3))
    found = draw_schedule(training, [0, 1], NAMES, [Work(9, 3, 2)] * 3)
    assert (found.planned | ~found.present).all()
    assert (found.planned.sum(2) == 2).all()
    assert found.present.sum() < found.planned.sum()
    assert found.steps is None
    assert draw_schedule(Training(), [0], NAMES, []) == (None, None, None)


@pytest.mark.parametrize("method", [MRMTL(), Dual(), Dual(form="upload"), IFCA(clusters=2, choosing=0.7)])
def test_noise_is_that_of_who_is_always_there_and_only_what_is_sent_is_charged(federation, method):
    given = {"rounds": 10, "epsilon": {"each": [2.0, 5.0]}, "seeds": (0, 1), "steps": 4}
    always = experiment(federation, method, **given).plan()
    made = experiment(federation, method, dropping=BOTH, **given)
    plan = made.plan()
    for run, row in enumerate(plan.silos):
        for k, silo in enumerate(row):
            full = always.silos[run][k]
            assert (silo.noise, silo.choice_noise) == (full.noise, full.choice_noise)
            here = plan.present[:, run, k]
            assert silo.rounds == int(here.sum()) < 10
            sums = int(here.sum()) if silo.whole else int(plan.steps[here, run, k].sum())
            assert silo.steps == sums < full.steps
            assert silo.epsilon < full.epsilon <= silo.budget
            assert silo.bytes_up < full.bytes_up
            asked = claims_of(method.name, plan, k)[run]
            assert sum(e.count for e in asked.events(0, 10) if e.mechanism == "gaussian") == silo.steps
            assert asked.certified(0, 10, anew=True) == pytest.approx(silo.epsilon)
            if not silo.selections:
                spent = epsilon(silo.noise, silo.rate, silo.steps, silo.delta)
                assert silo.epsilon == pytest.approx(spent)
            said = verify(text_of(statement_of(made, plan, run, k)))
            assert said["guarantee"]["epsilon"] == pytest.approx(silo.epsilon)


@pytest.mark.parametrize("method", [MRMTL(), FedAvg(), Dual(), Dual(form="upload")])
def test_the_slow_engine_gives_the_same(federation, method):
    made = experiment(federation, method, dropping=BOTH, seeds=(0, 5), steps=3, rounds=4)
    assert not made.present.all()
    fast = vectors(made)
    for run in range(2):
        torch.testing.assert_close(fast[run], reference_vectors(made, run), atol=1e-4, rtol=1e-3)


def test_who_drops_out_keeps_its_duals_and_sends_nothing(federation):
    made = experiment(federation, Dual(), dropping=Dropping(drop=0.5), rounds=8)
    plan = made.plan()
    states = list(simulate(made.running, made.cohort(plan), plan, made.roster, [0], made.streams()))
    away = 0
    for number, (before, after) in enumerate(zip(states, states[1:], strict=False)):
        for k in range(3):
            same = torch.equal(before.own[:, k], after.own[:, k])
            unsent = torch.equal(before.shared.sums[:, k], after.shared.sums[:, k])
            assert same == unsent == (not bool(plan.present[number, 0, k]))
            away += same
    assert away > 3


@pytest.mark.parametrize("method", [MRMTL(), Dual(), Dual(form="upload")])
def test_nine_of_ten_drop_at_once_and_training_goes_on(federation, method):
    made = experiment(federation, method, dropping=Dropping(drop=0.9), rounds=30)
    plan = made.plan()
    assert (~plan.present.any(2)).any(), "the test wants a round without anybody"
    result = made.train(plan)
    assert torch.isfinite(result.vectors[0]).all()
    for silo, record in zip(plan.silos[0], result.runs[0].silos.values(), strict=True):
        assert record.epsilon == silo.epsilon
        assert (record.epsilon == 0) == (silo.rounds == 0)


def test_a_silo_that_is_never_there_is_charged_nothing(federation):
    made = experiment(federation, Dual(), dropping=Dropping(drop={"silo-1": 1.0, "default": 0.0}), rounds=5)
    plan = made.plan()
    result = made.train(plan)
    assert plan.silos[0][1].epsilon == 0.0
    assert plan.silos[0][1].bytes_up == 0
    assert claims_of("dual", plan, 1)[0].events(0, 5) == ()
    assert result.runs[0].silos["silo-1"].epsilon == 0
    assert all(result.runs[0].silos[name].epsilon > 3.9 for name in ("silo-0", "silo-2"))
    assert any("'silo-1', take part in no round" in note for note in result.notes)


def whole(federation, method, share=None, **given):
    """Give an experiment that protects whole silos."""
    made = experiment(federation, method, participation=share, steps=3, **given)
    return dataclasses.replace(made, privacy=Privacy(epsilon=4.0, delta=1e-3, unit="silo"))


@pytest.mark.parametrize("share", [None, Participation(0.7), Participation(0.7, "poisson")], ids=str)
@pytest.mark.parametrize("method", [MRMTL(), FedAvg(), Heads(head=0.5)], ids=lambda m: m.name)
def test_whole_silos_that_drop_out_add_nothing_and_save_no_noise(federation, method, share):
    """Where nobody may know who came they are charged for every merge, else for what they sent."""
    always = whole(federation, method, share, rounds=10).plan()
    made = whole(federation, method, share, rounds=10, dropping=BOTH)
    plan = made.plan()
    assert plan.merge.noise == pytest.approx(always.merge.noise)
    for k, silo in enumerate(plan.silos[0]):
        came = int(plan.present[:, 0, k].sum())
        hidden = share is not None and share.sampler == "poisson"
        assert silo.merges.came == (10 if hidden else came)
        assert silo.epsilon <= always.silos[0][k].epsilon
        assert (silo.epsilon < always.silos[0][k].epsilon) == (not hidden)
        said = verify(text_of(statement_of(made, plan, 0, k)))
        assert "Nothing protects against the server" in page(said)
    torch.testing.assert_close(vectors(made)[0], reference_of(made, 0), atol=1e-4, rtol=1e-3)


def test_ledgers_of_whole_silos_are_charged_for_what_is_sent(federation, tmp_path):
    made = whole(federation, FedAvg(), rounds=6, dropping=BOTH)
    made.check_metered()
    plan = made.plan()
    meter = make_meter(tmp_path, made.federation, [(8.0, 1e-2)] * 3, "silo")
    try:
        made.train(plan, session=Session(meter=meter))
        for k, silo in enumerate(plan.silos[0]):
            account = meter.account(k, 0)
            assert sum(event.count for event in account.events) == int(plan.present[:, 0, k].sum())
            assert account.epsilon == pytest.approx(silo.epsilon, rel=1e-6)
            verify(text_of(statement_of(made, plan, 0, k, meter)))
    finally:
        meter.close()


def test_ledgers_are_charged_for_what_is_sent(federation, tmp_path):
    made = experiment(federation, Dual(), dropping=BOTH, rounds=6, epsilon=4.0, steps=3)
    plan = made.plan()
    short = made.federation
    meter = make_meter(tmp_path, short, [(8.0, 1e-2)] * 3)
    try:
        made.train(plan, session=Session(meter=meter))
        for k, silo in enumerate(plan.silos[0]):
            account = meter.account(k, 0)
            assert sum(event.count for event in account.events) == silo.steps
            assert account.epsilon == pytest.approx(silo.epsilon, rel=1e-6)
    finally:
        meter.close()


def test_bad_numbers_are_one_sentence(federation):
    with refused("train.drop: expected a number from 0 to 1, got 1.5"):
        experiment(federation, FedAvg(), dropping=Dropping(drop={"each": [0.1, 1.5]}))
    for key in ("recover", "uneven"):
        with refused(f"train.{key}: expected a number from 0 to 1, got -0.5"):
            Dropping(**{key: -0.5})
    with refused("train.uneven: every silo takes one step a round"):
        experiment(federation, FedAvg(), dropping=Dropping(uneven=0.5), steps=1)
    made = experiment(federation, FedAvg(), lr=[0.1, 0.2])
    uniform = dataclasses.replace(
        made, budgets="uniform", training=dataclasses.replace(made.training, dropping=BOTH)
    )
    with refused("not with budgets = 'uniform'"):
        uniform.check()
    with refused("train.drop, train.uneven: a sweep is billed"):
        check_sweep(dataclasses.replace(uniform, budgets="own"), Tuning(), metered=False)
    private = dataclasses.replace(uniform.privacy, unit="silo", noise_by="silos")
    with refused("noises of silos that drop out would be missing"):
        dataclasses.replace(uniform, budgets="own", privacy=private).check()
    share = Participation(0.5, "poisson")
    drawn = dataclasses.replace(
        made,
        privacy=dataclasses.replace(private, noise_by="server"),
        training=dataclasses.replace(made.training, dropping=BOTH, participation=share),
    )
    with refused("not with a ledger where whole silos are drawn in secret"):
        drawn.check_metered()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("drop", 2, "train.drop: expected a number from 0 to 1"),
        ("drop", {"a": -1}, "train.drop: expected a number from 0 to 1"),
        ("recover", 3, "train.recover"),
        ("uneven", "x", "train.uneven"),
    ],
)
def test_configurations_say_what_is_wrong(key, value, said):
    content = {"privacy": {"epsilon": 1}, "method": [{"name": "fedavg"}], "train": {key: value}}
    with pytest.raises(Exception, match=said):
        check(content)


def test_from_the_command_line(config, monkeypatch, capsys):
    code, out, _ = call(
        monkeypatch, capsys, "plan", config, "--set", "train.drop=0.5", "--set", "train.uneven=0.5"
    )
    assert code == 0
    code, _, said = call(monkeypatch, capsys, "plan", config, "--set", "train.recover=0.5")
    assert code == 2
    assert "nobody drops out" in said
    assert out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recover": 0.5, "uneven": 0.5}, "train.recover: nobody drops out"),
        ({"drop": {"silo-0": 0.0, "default": 0.0}, "recover": 0.5}, "train.recover: nobody drops out"),
        ({"drop": 1.0}, "every silo is out of every round"),
        ({"drop": 0.1, "recover": "x"}, "train.recover: expected a number from 0 to 1, got 'x'"),
        ({"uneven": None}, "train.uneven: expected a number from 0 to 1, got None"),
    ],
)
def test_dropping_that_does_nothing_or_everything_is_refused(federation, settings, said):
    with refused(said):
        experiment(federation, FedAvg(), steps=3, dropping=Dropping(**settings)).check()
