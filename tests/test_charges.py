"""Every method: what runs, what ledgers are asked for and what statements say are one thing."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from coterie.cohort.dp_sgd import descend
from coterie.data.federation import Federation
from coterie.errors import Problem
from coterie.experiment.config.schema import Tuning, check
from coterie.experiment.statements import statement_of
from coterie.experiment.sweep import check_sweep, tuned_plan
from coterie.guard.claims import claims_of
from coterie.guard.ledgers import open_ledgers
from coterie.guard.meter import make_meter
from coterie.guard.session import Session
from coterie.methods import IFCA, MRMTL, PFA, Ditto, FedAvg, Mocha, PFAPlus, RandomProjection, Then, WeiAvg
from coterie.methods.ifca import Clusters, Upload
from coterie.methods.mr_mtl_auto import observe
from coterie.planning.schedule import Participation
from coterie.privacy.accountant import epsilon
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from coterie.protocol.merging import PlainMerger
from coterie.protocol.roster import Roster
from coterie.protocol.streams import SeededStreams
from tests.helpers import call, every_method, experiment, reference_vectors, refused, title, vectors

BUDGETS = {"each": [2.0, 3.0, 4.0]}
SOMETIMES = Participation(0.4, "poisson")


@pytest.mark.parametrize("method", every_method(), ids=title)
@pytest.mark.parametrize("how", [None, SOMETIMES])
def test_ledgers_are_asked_for_what_was_planned(federation, method, how):
    made = experiment(federation, method, epsilon=BUDGETS, rounds=6, participation=how, seeds=(1, 4))
    plan = made.plan()
    for run, row in enumerate(plan.silos):
        for k, silo in enumerate(row):
            asked = claims_of(method.name, plan, k)[run]
            events = asked.events(0, 6)
            assert sum(e.count for e in events if e.mechanism == "gaussian") == silo.steps
            assert sum(e.count for e in events if e.mechanism == "selection") == silo.selections
            assert asked.seen == (() if not events else asked.seen)
            if events:
                assert asked.certified(0, 6, anew=True) == pytest.approx(silo.epsilon)
                assert silo.epsilon <= silo.budget


@pytest.mark.parametrize("method", every_method(), ids=title)
def test_statements_verify(federation, method):
    made = experiment(federation, method, epsilon=BUDGETS, rounds=6, participation=SOMETIMES, seeds=(1,))
    plan = made.plan()
    for k, silo in enumerate(plan.silos[0]):
        said = verify(text_of(statement_of(made, plan, 0, k)))
        doors = {door["door"]: door["calls"] * door["steps"] for door in said["doors"]}
        assert doors.get("select", 0) == silo.selections
        assert doors.get("descend", 0) + doors.get("solve_dual", 0) == silo.steps


def test_one_noise_pays_for_both_passes_of_ditto(federation):
    made = dataclasses.replace(experiment(federation, Ditto(), epsilon=BUDGETS, rounds=12), budgets="uniform")
    made = dataclasses.replace(
        made, privacy=dataclasses.replace(made.privacy, delta={"each": [1e-4, 1e-3, 1e-2]})
    )
    silos = made.plan().silos[0]
    assert silos[2].rounds == 12
    assert 0.99 * 4 < silos[2].epsilon <= 4
    for silo in silos:
        assert silo.steps == 2 * silo.rounds * silo.work.steps
        if silo.rounds:
            assert silo.epsilon == epsilon(silo.noise, silo.work.rate, silo.steps, silo.delta) <= silo.budget


def test_the_closed_form_leaves_choices_within_the_budget(federation):
    made = experiment(federation, IFCA(clusters=2, choosing=0.5, spend=0.5), epsilon=BUDGETS, rounds=6)
    made = dataclasses.replace(made, budgets="closed-form")
    plan = made.plan()
    for k, silo in enumerate(plan.silos[0]):
        assert claims_of("ifca", plan, k)[0].certified(0, 6, anew=True) <= silo.budget


def test_silos_weigh_as_much_as_their_budgets():
    roster = Roster(("a", "b"), torch.ones(2), torch.tensor([[1.0, 3.0]]))
    merged = WeiAvg().merge(torch.zeros(1, 1, 1), torch.tensor([[[4.0], [8.0]]]), PlainMerger(roster))
    assert float(merged) == pytest.approx(7.0)


def test_clusters_refill_and_absent_silos_keep_their_choice():
    method = IFCA(clusters=3, choosing=1.0)
    models = torch.tensor([[[1.0], [2.0], [3.0]]])
    roster = Roster(tuple("abc"), torch.ones(3), torch.ones(1, 3), rounds=10)
    chosen = torch.tensor([[[2], [2], [0]]])
    shared = Clusters(models, chosen)
    uploads = Upload(torch.zeros(1, 3, 1), torch.tensor([[[2], [2], [1]]]))
    here = torch.tensor([[True, True, False]])
    found = method.merge(shared, uploads, PlainMerger(roster.at(here)))
    assert found.choice.flatten().tolist() == [2, 2, 0]
    assert found.models.flatten().tolist() == [1, 3, 3]  # nobody had chosen the second
    nobody = Clusters(models, chosen * 0 - 1)
    uploads = uploads._replace(choice=nobody.choice)
    kept = method.merge(nobody, uploads, PlainMerger(roster.at(~here & here)))
    assert kept.models.flatten().tolist() == [1, 2, 3]


def test_what_is_learnt_of_silos_waits_while_they_are_absent(federation):
    made = experiment(federation, MRMTL(), rounds=3)
    cohort = made.cohort(made.plan())
    from coterie.engines.simulation import steps_of
    from coterie.engines.start import SeededStart
    from coterie.methods import MRMTLAuto

    roster = dataclasses.replace(made.roster, steps=steps_of(cohort.work, cohort.settings))
    state, _ = MRMTLAuto().init(SeededStart(made.task, [0], roster, 3), 3)
    here = torch.tensor([[True, False, True]])
    found = observe(state, torch.ones_like(state.models), roster.at(here))
    assert found.seen.flatten().tolist() == [1, 0, 1]
    assert not found.gradient[0, 1].any()
    nobody = MRMTLAuto().merge(state, torch.zeros_like(state.models), PlainMerger(roster.at(here & ~here)))
    assert not nobody.lam.any()


class Seeing(MRMTL):
    """MR-MTL that uploads whole models, and keeps what reaches the server, whoever it is from."""

    def local(self, sent, own, oracle):
        _, trained = super().local(sent, own, oracle)
        return trained, trained

    def merge(self, shared, uploads, merger):
        if merger.roster.present is not None:
            seen.append((uploads.clone(), merger.roster.present.clone()))
        return super().merge(shared, uploads, merger)


seen: list = []


def test_nothing_of_an_absent_silo_reaches_the_server(federation):
    made = experiment(federation, Seeing(lam=0.5), rounds=6, participation=SOMETIMES, seeds=(0,))
    plan = made.plan()
    seen.clear()
    made.train(plan)
    assert any(not bool(present.all()) for _, present in seen)
    for uploads, present in seen:
        assert not uploads[~present].any()
        assert uploads[present].any() == present.any()


def test_absent_silos_draw_nothing(federation):
    made = experiment(federation, FedAvg())
    asked = []

    class Watched(SeededStreams):
        def dice(self, run, silo, round_, call):
            asked.append(silo)
            return super().dice(run, silo, round_, call)

    cohort = made.cohort(made.plan())
    start = torch.zeros(1, 3, made.task.layout.size)
    here = torch.tensor([[True, False, True]])
    found = descend(cohort, start, Watched(((0, 0),)), 0, 0, present=here)
    assert asked == ["silo-0", "silo-2"]
    assert not found[0, 1].any()
    assert found[0, 0].any()


CHAINS = [
    Then(first=IFCA(clusters=2, choosing=1.0), second=FedAvg(), share=0.4),
    Then(first=FedAvg(), second=Ditto(), share=0.4),
]


@pytest.mark.parametrize("method", [*CHAINS, *every_method()], ids=title)
def test_a_round_in_which_nobody_comes_is_a_round(federation, method):
    """Engines agree, and a seed's results do not depend on the seeds that train beside it."""
    settings = {"epsilon": BUDGETS, "rounds": 6, "participation": Participation(0.3, "poisson")}
    alone = experiment(federation, method, seeds=(4,), **settings)
    assert (~alone.present.any(2)).any(), "the test wants a round without anybody"
    found = vectors(alone)[0]
    beside = vectors(experiment(federation, method, seeds=(2, 4), **settings))[1]
    torch.testing.assert_close(found, beside, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found, reference_vectors(alone, 0), atol=1e-5, rtol=1e-4)


def test_as_many_clusters_as_silos_are_sent_to_everybody(federation):
    made = experiment(federation, IFCA(clusters=3, choosing=0.5))
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)
    size = 4 * made.task.layout.size
    assert made.plan().silos[0][0].bytes_down == 3 * 3 * size


def test_bytes_are_those_of_each_run(federation):
    budgets = [{"each": [1.0, 1.0, 4.0]}, {"each": [1.0, 4.0, 4.0]}]
    method = PFAPlus(divide="top", top=0.7)
    both = experiment(federation, method, epsilon=budgets).plan()
    for run, each in enumerate(budgets):
        alone = experiment(federation, method, epsilon=each).plan()
        assert [s.bytes_up for s in both.silos[run]] == [s.bytes_up for s in alone.silos[0]]


@pytest.mark.parametrize(
    ("method", "change", "said"),
    [
        (MRMTL(lam=(0.1, 1.0)), {"participation": SOMETIMES}, "every silo must take part"),
        (MRMTL(lam=(0.1, 1.0)), {"budgets": "uniform"}, "got 'uniform'"),
        (MRMTL(lam=(0.1, 1.0)), {"budgets": "closed-form"}, "got 'closed-form'"),
    ],
)
def test_sweeps_of_what_they_cannot_bill_are_refused(federation, method, change, said):
    budgets = change.pop("budgets", "own")
    made = dataclasses.replace(experiment(federation, method, epsilon=4.0, **change), budgets=budgets)
    with refused(said):
        check_sweep(made, Tuning(), metered=False)


def test_a_sweep_of_private_choices_is_refused(federation):
    made = experiment(federation, IFCA(clusters=2), lr=[0.1, 0.3])
    with refused("private choices, which a sweep does not support"):
        tuned_plan(made, None)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"name": "fedavg", "budgets": ["own", "minimum"]}, "budgets: expected one of"),
        ({"name": "fedavg", "after": {"name": "ifca", "after": {"name": "x"}}}, "after.after: not allowed"),
        ({"name": "fedavg", "after": {"name": "ifca", "budgets": "none"}}, "after.budgets: not allowed"),
    ],
)
def test_tables_that_make_no_sense(table, said):
    with pytest.raises(Problem, match=said):
        check({"privacy": {"epsilon": 1.0}, "method": [table]})


def test_a_share_of_one_is_everybody():
    check({"privacy": {"epsilon": 1.0}, "method": [{"name": "fedavg"}], "train": {"participation": 1}})
    with pytest.raises(Problem, match="expected a share"):
        check({"privacy": {"epsilon": 1.0}, "method": [{"name": "fedavg"}], "train": {"participation": 1.5}})


def test_whole_numbers_may_be_written_as_floats(federation):
    assert IFCA(clusters=2.0).clusters == 2
    assert isinstance(IFCA(clusters=2.0).clusters, int)


def test_ranks(federation: Federation):
    with refused("rank 50 is too large"):
        experiment(federation, PFA(rank=50), epsilon=4.0).plan()
    experiment(federation, RandomProjection(rank=3, divide="top", top=0.3), epsilon=BUDGETS).plan()


def test_mocha_does_not_learn_within_clusters(federation):
    with pytest.raises(Problem, match="cannot learn within clusters"):
        experiment(federation, Then(first=IFCA(clusters=2), second=Mocha(), share=0.4)).plan()


def test_silos_absent_from_every_choice_are_told_of(federation):
    made = experiment(
        federation, IFCA(clusters=2, choosing=0.1), rounds=10, participation=Participation(0.34), seeds=(0,)
    )
    assert any("absent in every round with a choice" in note for note in made.plan().notes)


def test_what_releases_something_is_seen_by_somebody():
    Claim("x", "example", 1e-3, 0.0, ((2, ()),), ())
    with refused("at least one adversary must see it"):
        Claim("x", "example", 1e-3, 1.0, ((2, (Event("gaussian", 1.0),)),), ())


METERED = """
[data]
source = "digits"
silos = 4
rows = 200
[train]
rounds = 3
participation = 0.5
[privacy]
epsilon = 4
delta = 1e-3
[[method]]
name = "fedavg"
"""


def test_a_silo_that_never_comes_is_charged_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(METERED.replace("rounds = 3", "rounds = 1"))
    ledgers = ["--ledger", "ledgers"]
    call(monkeypatch, capsys, "ledger", "open", "a.toml", *ledgers, "--epsilon", "10", "--delta", "1e-2")
    code, out, err = call(monkeypatch, capsys, "run", "a.toml", *ledgers, "--out", "done")
    assert code == 0, out + err
    statements = sorted((tmp_path / "done" / "statements" / "fedavg").glob("*.json"))
    assert len(statements) == 4
    absent = 0
    for file in statements:
        code, out, err = call(monkeypatch, capsys, "statement", "verify", str(file), *ledgers)
        assert code == 0, out + err
        absent += "epsilon 0.000" in out
    assert absent == 2
    _, out, _ = call(monkeypatch, capsys, "ledger", "show", "ledgers", "--json")
    assert out.count('"delta": 0.0') >= 2


@pytest.mark.parametrize(
    ("key", "said"), [("maximum", "for comparison only"), ("none", "for comparison only")]
)
def test_no_ledger_pays_for_comparisons(tmp_path, monkeypatch, capsys, key, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(METERED + f'budgets = "{key}"\n')
    code, out, err = call(monkeypatch, capsys, "run", "a.toml", "--ledger", "ledgers", "--out", "done")
    assert code == 2
    assert said in out + err


@pytest.mark.parametrize("unit", ["silo", "example"])
def test_python_refuses_before_anything_is_charged(federation, tmp_path, unit):
    """Not only the command: a ledger asked for what it does not keep stays as it was."""
    made = experiment(federation, FedAvg(), epsilon=2.0)
    if unit == "silo":
        made = dataclasses.replace(made, privacy=Privacy(epsilon=2.0, delta=1e-3, unit="silo"))
    else:
        made = dataclasses.replace(made, budgets="maximum")
    for ledger in open_ledgers(tmp_path, federation, [(5.0, 1e-2)] * len(federation)):
        ledger.close()
    meter = make_meter(tmp_path, federation, [None] * len(federation))
    with pytest.raises(Problem, match="ledger"):
        made.train(session=Session(meter=meter))
    assert [len(ledger.entries()) for ledger in meter.ledgers] == [2] * len(federation)
    meter.close()
