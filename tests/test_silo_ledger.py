"""Metered runs of whole silos: what is charged, who comes, whose noise it is, kills, silos that leave."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import pytest
import torch
from scipy import stats

import coterie
from coterie.cohort.merging import PrivateMerger
from coterie.errors import Problem
from coterie.experiment.experiment import Experiment
from coterie.guard.claims import claims_of
from coterie.guard.meter import make_meter
from coterie.guard.secret_streams import EntropyStreams
from coterie.guard.session import OpenSession, Session
from coterie.methods import MRMTL, FedAvg, Local, Related
from coterie.methods.relations import Relations
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from coterie.privacy.ledger.entries import NONE
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.verify import check_ledger
from tests.books import custody
from tests.helpers import task_for
from tests.measured import CHANCE, federation_of

POISSON, FIXED = Participation(0.5, "poisson"), Participation(0.5)
DRAWS = {"all": None, "poisson": POISSON, "fixed": FIXED}
CAME: list[torch.Tensor | None] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched(FedAvg):
    """A method of whose rounds tests are told who comes."""

    name: ClassVar[str] = "watched"


@pytest.fixture(autouse=True)
def watching(monkeypatch):
    """Note who comes where the engine makes its mergers: methods are not told."""
    make = PrivateMerger.of

    def noted(cls, roster, *given, **more):
        CAME.append(roster.present)
        return make(roster, *given, **more)

    monkeypatch.setattr(PrivateMerger, "of", classmethod(noted))
    CAME.clear()


def protected(federation, method, *, epsilon=6.0, delta=1e-2, noise_by="server", task=None, **more):
    quantile = more.pop("quantile", None)
    more = {"rounds": 4, "batch": 8, "lr": 0.3} | more
    privacy = Privacy(
        epsilon=epsilon, delta=delta, clip=0.5, unit="silo", noise_by=noise_by, quantile=quantile
    )
    made = Experiment(federation, task or task_for(federation), method, privacy, Training(**more))
    made.check()
    return made


def silent(silos=6, features=3000, method=None, **more):
    """Silos whose examples are null: what moves the shared model is the noise of merges."""
    made = federation_of(torch.zeros(silos, 10, features))
    return protected(made, method or FedAvg(), task=task_for(made, bias=False), **{"rounds": 3} | more)


def metered(made, folder, budgets=None, **how):
    """Train with ledgers; new ones get the budgets, or that of the run."""
    plan = made.plan()
    budgets = budgets or [(silo.budget, silo.delta) for silo in plan.silos[0]]
    meter = make_meter(folder, made.federation, budgets, "silo", custody(folder))
    hear = how.pop("hear", None)
    return made.train(plan, hear, Session(meter=meter, **how)), meter, plan


@pytest.mark.parametrize("how", DRAWS)
@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_a_run_is_charged_as_planned_against_whom_it_protects(classes, tmp_path, noise_by, how):
    made = protected(classes, MRMTL(), noise_by=noise_by, participation=DRAWS[how])
    result, meter, plan = metered(made, tmp_path, [(7.0, 1e-2)] * 4)
    for k, silo in enumerate(plan.silos[0]):
        report = check_ledger(meter.ledgers[k].path)
        assert report.uncommitted == 0
        charged = (silo.epsilon, silo.delta) if silo.epsilon else (0.0, 0.0)
        assert report.totals["silo"]["silos"] == report.totals["silo"]["shared"] == charged
        assert report.totals["silo"]["server"] == (
            charged if noise_by == "silos" or not silo.epsilon else NONE
        )
        assert report.totals["silo"]["personal"] == report.totals["example"]["personal"] == NONE
        events = silo.merges.strongest()
        assert report.totals["example"]["silos"][0] == epsilon_of(events, silo.delta, "replace-one")
        assert result.runs[0].silos[silo.name].epsilon == silo.epsilon


def test_what_is_asked_does_not_tell_who_came(classes):
    """Drawn secretly, all silos ask the same, in every round; drawn openly, for the rounds they come to."""
    hidden = protected(classes, FedAvg(), participation=POISSON).plan()
    asked = [claims_of("fedavg", hidden, k)[0] for k in range(4)]
    assert set(asked) == {asked[0]}
    assert asked[0].stages == ((4, (Event("gaussian", hidden.silos[0][0].noise, 0.5),)),)
    assert (asked[0].seen, asked[0].unprotected) == (("silos", "shared", "personal"), ("server",))
    known = protected(classes, FedAvg(), participation=FIXED).plan()
    for k in range(4):
        (asked,) = claims_of("fedavg", known, k)
        for number in range(4):
            came = bool(known.present[number, 0, k])
            event = (Event("gaussian", known.silos[0][k].noise),) if came else ()
            assert asked.events(number, number + 1) == event


def test_who_merges_nothing_is_charged_nothing(federation, tmp_path):
    _, meter, _ = metered(protected(federation, Local()), tmp_path, [(1.0, 1e-2)] * 3)
    state = meter.ledgers[0].state()
    assert state.total("silo", "server") == state.total("example", "silos") == (0.0, 0.0)
    assert state.total("silo", "personal") == NONE


def test_two_runs_add_up_and_the_third_is_refused(federation, tmp_path):
    made = protected(federation, FedAvg())
    for count in (1, 2):
        _, meter, plan = metered(made, tmp_path, [(12.5, 1e-1)] * 3)
        total = meter.ledgers[0].state().total("silo", "silos")
        assert total == (count * plan.silos[0][0].epsilon, count * 1e-2)
    with pytest.raises(Spent, match=r"silo 'silo-0': the budget of this data set is .* in the unit 'silo'"):
        metered(made, tmp_path)


def test_examples_have_a_budget_too(federation, tmp_path):
    """Runs of whole silos must fit into it; at twice the reach they cost more there."""
    made = protected(federation, FedAvg())
    _, meter, plan = metered(made, tmp_path, [(100.0, 1e-1)] * 3)
    cost = epsilon_of(plan.silos[0][0].merges.strongest(), 1e-2, "replace-one")
    meter.ledgers[1].set_budget("example", 1.9 * cost, 1e-1)
    with pytest.raises(Spent, match=r"silo 'silo-1': .* in the unit 'example'"):
        metered(made, tmp_path)


def test_a_ledger_without_a_budget_for_whole_silos_says_what_to_do(federation, tmp_path):
    made = protected(federation, FedAvg())
    meter = make_meter(tmp_path, federation, [(9.0, 1e-2)] * 3)
    with pytest.raises(Problem, match=r"no budget in the unit 'silo'; set one with `coterie ledger budget"):
        made.train(session=Session(meter=meter))


def test_ledgers_of_whole_silos_in_python(federation, tmp_path):
    coterie.open_ledgers(tmp_path, federation, 6.0, 1e-2, unit="silo")
    privacy = Privacy(epsilon=6.0, delta=1e-2, unit="silo")
    ask = {"rounds": 2, "batch": 8, "ledger": tmp_path, "participation": POISSON}
    coterie.run(federation, FedAvg(), privacy, **ask)
    with pytest.raises(Spent, match="in the unit 'silo'"):
        coterie.run(federation, FedAvg(), privacy, **ask)


def test_two_metered_runs_share_no_noise_and_seeds_do_not_tell_it(tmp_path):
    for noise_by in ("server", "silos"):
        made = silent(noise_by=noise_by)
        found = [metered(made, tmp_path / noise_by / name)[0].vectors[0] for name in ("one", "two")]
        found.append(made.train().vectors[0])
        for one, other in ((0, 1), (0, 2), (1, 2)):
            correlation = torch.corrcoef(torch.stack([found[one][0], found[other][0]]))[0, 1]
            assert abs(float(correlation)) < 5.3 / math.sqrt(3000)  # fails by chance once in 10^7


@pytest.mark.parametrize("noise_by", ["server", "silos"])
@pytest.mark.parametrize("how", DRAWS)
def test_the_noise_is_that_of_the_events(tmp_path, noise_by, how):
    """Measured from outside, on models that nothing else moves; fails by chance once in 10^7."""
    made = silent(method=Watched(), noise_by=noise_by, participation=DRAWS[how])
    plan = made.plan()
    CAME.clear()
    result = metered(made, tmp_path, [(7.0, 1e-2)] * 6)[0]
    came = sum(6 if here is None else int(here.sum()) for here in CAME)
    draws = came if noise_by == "silos" else 3
    assert plan.silos[0][0].merges.cohort == (6 if how == "all" else 3)
    deviation = plan.silos[0][0].noise * 0.5 / plan.silos[0][0].merges.cohort * math.sqrt(draws)
    moved = result.vectors[0][0].double().numpy()
    assert stats.kstest(moved / deviation, "norm").pvalue > CHANCE
    assert max(stats.kstest(moved / (deviation * x), "norm").pvalue for x in (2 / 3, 1.5)) < CHANCE


def test_groups_and_quantiles_are_metered(tmp_path):
    """Rows of a matrix have draws of their own, and so has the count of a quantile."""
    names = tuple(f"s{k}" for k in range(6))
    groups = Relations(names, groups=("a", "a", "a", "b", "b", "b"))
    vectors = metered(silent(method=Related(relations=groups)), tmp_path / "groups")[0].vectors[0]
    assert float(vectors.abs().max()) > 0
    metered(silent(quantile=0.5, participation=POISSON), tmp_path / "quantile")


def tossed(monkeypatch, rule=None):
    """Record the coins of metered runs, and replace them by a rule."""
    found, real = [], EntropyStreams.coins

    def coins(self, run, round_, silos):
        drawn = real(self, run, round_, silos)
        drawn = drawn if rule is None else drawn * 0 + rule(round_)
        found.append((run, round_, tuple(drawn)))
        return drawn

    monkeypatch.setattr(EntropyStreams, "coins", coins)
    return found


def test_who_comes_is_drawn_from_the_systems_entropy(tmp_path, monkeypatch):
    """Not by the seed, at the planned rate, and those come whom the coins say."""
    found = tossed(monkeypatch)
    made = silent(60, 2, method=Watched(), participation=POISSON, rounds=8)
    CAME.clear()
    for name in ("one", "two"):
        metered(made, tmp_path / name)
    coins = torch.tensor([values for _, _, values in found]) < 0.5
    assert torch.equal(torch.cat(CAME), coins)
    first, second, seeded = coins[:8], coins[8:], made.present[:, 0]
    for one, other in ((first, second), (first, seeded), (second, seeded)):
        assert stats.binomtest(int((one == other).sum()), 480, 0.5).pvalue > 1e-7
    assert stats.binomtest(int(coins.sum()), 960, 0.5).pvalue > 1e-7


def test_draws_of_fixed_size_are_those_of_the_plan(tmp_path):
    made = silent(method=Watched(), participation=FIXED)
    CAME.clear()
    metered(made, tmp_path, [(7.0, 1e-2)] * 6)
    assert torch.equal(torch.cat(CAME), made.present[:, 0])


def test_a_repeated_round_needs_coins_of_its_own():
    """Two answers with one coin are one sampled answer with less noise: more than two that are charged."""
    charged = epsilon_of((Event("gaussian", 0.6, 0.05, 2),), 1e-3)
    happened = epsilon_of((Event("gaussian", 0.6 / math.sqrt(2), 0.05, 1),), 1e-3)
    assert happened > 1.1 * charged


def interrupted(made, folder, at=3):
    """Train, stop as if killed in a round, and go on with other ledgers of the same files."""
    plan = made.plan()
    budgets = [(50.0, 1e-1)] * len(made.federation)

    def dies(number, _score):
        if number == at:
            raise KeyboardInterrupt

    states = []
    for hear in (dies, None):
        meter = make_meter(folder / "ledgers", made.federation, budgets, "silo", custody(folder))
        session = Session(folder / "checkpoint", "key", meter, every=2)
        real = OpenSession.after

        def after(self, state, history, real=real):
            states.append((state.round, state.shared.clone()))
            real(self, state, history)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OpenSession, "after", after)
            if hear is not None:
                with pytest.raises(KeyboardInterrupt):
                    made.train(plan, hear, session)
            else:
                result = made.train(plan, None, session)
    return result, meter, plan, states


@pytest.mark.parametrize("how", [None, POISSON], ids=["all", "poisson"])
def test_a_killed_run_goes_on_with_new_noise_and_new_coins_and_is_charged_again(tmp_path, monkeypatch, how):
    found = tossed(monkeypatch)
    made = silent(30, 400, participation=how, rounds=6)
    result, meter, plan, states = interrupted(made, tmp_path)
    assert [number for number, _ in states] == [0, 1, 2, 3, 2, 3, 4, 5, 6]
    assert torch.equal(states[2][1], states[4][1])
    killed, repeated = states[3][1] - states[2][1], states[5][1] - states[4][1]
    both = torch.corrcoef(torch.stack([killed.flatten(), repeated.flatten()]))
    assert abs(float(both[0, 1])) < 5.3 / math.sqrt(400)  # fails by chance once in 10^7
    if how is not None:
        again = [values for _, round_, values in found if round_ == 2]
        assert len(again) == len(set(again)) == 2
    silo = plan.silos[0][0]
    (asked,) = claims_of("fedavg", plan, 0)
    for ledger in meter.ledgers:
        total = check_ledger(ledger.path).totals["silo"]["silos"]
        assert total == (pytest.approx(silo.epsilon + asked.certified(2, 4)), 2e-2)
    assert result.runs[0].silos["s0"].epsilon == pytest.approx(silo.epsilon + asked.certified(2, 4))


def test_where_the_budget_does_not_pay_for_repetitions_nobody_goes_on(tmp_path, federation):
    made = protected(federation, FedAvg(), rounds=6)
    plan, path = made.plan(), tmp_path / "checkpoint"

    def dies(number, _score):
        if number == 3:
            raise KeyboardInterrupt

    budgets = [(silo.budget, silo.delta) for silo in plan.silos[0]]
    meter = make_meter(tmp_path, federation, budgets, "silo")
    with pytest.raises(KeyboardInterrupt):
        made.train(plan, dies, Session(path, "key", meter, every=2))
    again = make_meter(tmp_path, federation, budgets, "silo")
    before = [ledger.entries() for ledger in again.ledgers]
    with pytest.raises(Spent, match=r"rounds 2 to 4 would be repeated.*nothing was charged"):
        made.train(plan, session=Session(path, "key", again, every=2))
    assert [ledger.entries() for ledger in again.ledgers] == before


@pytest.mark.parametrize("how", [None, POISSON], ids=["all", "poisson"])
def test_a_silo_whose_budget_ends_leaves_and_the_merge_stays_as_it_was(tmp_path, how):
    """It is charged for the rounds it could come to; noise and denominator are those of the plan."""
    made = silent(6, 3000, method=Watched(), participation=how, rounds=6)
    plan = made.plan()
    budgets = [(7.0, 1e-2)] * 5 + [(4.0, 1e-2)]
    CAME.clear()
    result, meter, _ = metered(made, tmp_path, budgets, partial=True, every=1)
    left = meter.rounds[5]
    assert 0 < left < 6
    assert meter.left == {"s5": f"its budget covers {left} of 6 rounds"}
    assert len(CAME) == 6
    assert not any(bool(here[0, 5]) for here in CAME[left:])
    with pytest.raises(Problem, match="round 5 of 's5' was not reserved"):
        meter.streams.dice(0, "s5", 5, 0)
    (asked,) = claims_of("watched", plan, 5)
    assert meter.ledgers[5].state().total("silo", "silos")[0] == asked.certified(0, left) <= 4.0
    assert meter.ledgers[0].state().total("silo", "silos")[0] == plan.silos[0][0].epsilon
    merges = plan.silos[0][0].merges
    deviation = plan.silos[0][0].noise * 0.5 / merges.cohort * math.sqrt(6)
    assert stats.kstest(result.vectors[0][0].double().numpy() / deviation, "norm").pvalue > CHANCE


def test_when_a_silo_leaves_depends_on_its_ledger_alone(tmp_path):
    """Other examples, other coins, the same round."""
    left = []
    for scale in (0.0, 1.0, 30.0):
        x = scale * torch.randn(6, 10, 3, generator=torch.Generator().manual_seed(0))
        made = protected(federation_of(x, torch.ones(6, 10)), MRMTL(), participation=POISSON, rounds=6)
        budgets = [(7.0, 1e-2)] * 5 + [(4.0, 1e-2)]
        left.append(metered(made, tmp_path / str(scale), budgets, partial=True)[1].rounds)
    assert left[0] == left[1] == left[2]
    assert left[0][5] < left[0][0] == 6


def test_what_ledgers_show_of_a_state_is_without_what_is_at_home(tmp_path):
    """A digest of raw models could be tried out by whoever sees it."""
    shown = []
    for scale in (1.0, 2.0):
        x = scale * torch.randn(3, 10, 4, generator=torch.Generator().manual_seed(0))
        _, meter, _ = metered(
            protected(federation_of(x, x.sum(2)), Local()), tmp_path / str(scale), [(7.0, 1e-2)] * 3
        )
        shown.append([row.body["digest"] for row in meter.ledgers[0].entries() if row.kind == "commit"])
    assert shown[0] == shown[1] != []
