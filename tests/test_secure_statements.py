"""Secure sums in accounts: epsilon against each adversary with and without them, ledgers and statements."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from coterie.cli.statement import verify_statements
from coterie.errors import Problem
from coterie.experiment.config.schema import check
from coterie.experiment.experiment import Experiment
from coterie.experiment.from_config import privacy_of
from coterie.experiment.statements import statement_of
from coterie.guard.claims import claims_of
from coterie.guard.meter import make_meter
from coterie.guard.session import Session
from coterie.methods import MRMTL, FedAvg, Local
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.accountant import epsilon
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from coterie.privacy.ledger.entries import NONE
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.merges import MergeEvents
from coterie.privacy.published.merges import merge_warnings, published_for_merges
from coterie.privacy.statement.build import HIDDEN, checksum, text_of
from coterie.privacy.statement.secure_words import OTHERS_TOGETHER
from coterie.privacy.statement.verify import verify
from coterie.report.privacy_lines import against_whom
from coterie.report.statement_page import page
from tests.books import custody
from tests.helpers import refused, task_for
from tests.measured import federation_of

DELTA = 1e-3
SECRET = Participation(0.5, "poisson")


def merges(**facts):
    given = {"noise": 2.0, "clip": 1.0, "silos": 10, "rate": 1.0, "sampler": "poisson", "merges": 20,
             "came": 7, "noise_by": "secure", "raw_personal": False, "dropouts": 2, "colluding": 1}  # fmt: skip
    return MergeEvents(**given | facts)


def known(noise, came=7):
    return epsilon(noise, 1.0, came, DELTA)


def test_epsilon_against_each_adversary_with_and_without_a_secure_sum():
    own = 2.0 / math.sqrt(7)
    assert merges().own_noise == pytest.approx(own)
    secure = merges().against(DELTA)
    assert secure["server"] == known(2.0)
    assert secure["silos"] == pytest.approx(known(own))
    assert secure["shared"] == secure["personal"] == pytest.approx(known(own * math.sqrt(8)))
    assert secure["shared"] < secure["server"] < secure["silos"]
    neither = {"dropouts": 0, "colluding": 0}
    alone = merges(noise_by="silos", **neither).against(DELTA)
    assert alone["server"] == alone["silos"] == known(2.0)  # for 7 times the variance on every upload
    plain = merges(noise_by="server", **neither).against(DELTA)
    assert (plain["server"], plain["silos"]) == (None, known(2.0))
    drawn = merges(silos=20, rate=0.5, sampler="fixed").against(DELTA)
    assert drawn == secure  # the server knows who is due: no amplification


def test_colluding_silos_and_dropouts_cost_what_they_take_away():
    """The noise on the sum is the same, but a silo's own part grows with those who are not counted on."""
    shares = [merges(dropouts=d, colluding=c).own_noise for d, c in ((0, 0), (2, 0), (2, 1), (4, 1), (1, 7))]
    assert shares == sorted(shares)
    assert shares == pytest.approx([2 / math.sqrt(n) for n in (10, 8, 7, 5, 2)])
    assert merges(dropouts=0, colluding=9).own_noise == 2.0
    everyone = merges(dropouts=0, colluding=9).against(DELTA)
    assert everyone["silos"] == everyone["server"] == known(2.0)


def test_what_a_ledger_charges():
    found = replace(merges(), metered=True)
    event = (Event("gaussian", 2.0, 1.0, 7),)
    assert found.releases() == {"server": event, "silos": None, "shared": event, "personal": event}
    assert found.strongest() == merges().strongest() == event
    everyone = replace(merges(dropouts=0, colluding=9), metered=True)
    assert everyone.releases()["silos"] == event
    absent = replace(merges(came=0), metered=True)
    assert set(absent.releases().values()) == {()}
    assert replace(merges(raw_personal=True), metered=True).releases()["personal"] is None


def test_a_secret_draw_counts_against_everybody_who_cannot_see_it():
    """All silos add noise, drawn or not, and every merge is charged as a sampled one."""
    secret = merges(rate=0.3, came=20)
    assert secret.hidden
    assert secret.members == 10
    assert secret.own_noise == merges().own_noise == pytest.approx(2.0 / math.sqrt(7))
    found = secret.against(DELTA)
    assert found["server"] == epsilon(2.0, 0.3, 20, DELTA)
    assert found["silos"] == pytest.approx(epsilon(secret.own_noise, 0.3, 20, DELTA))
    assert found["shared"] == pytest.approx(epsilon(secret.own_noise * math.sqrt(8), 0.3, 20, DELTA))
    assert found["server"] < merges(came=20).against(DELTA)["server"]
    metered = replace(secret, metered=True).releases()
    assert metered["server"] == metered["shared"] == (Event("gaussian", 2.0, 0.3, 20, "poisson"),)
    assert metered["silos"] is None
    fixed = merges(silos=20, rate=0.5, sampler="fixed")  # who is due is known, so its draw does not count
    assert not fixed.hidden
    assert fixed.against(DELTA)["server"] == known(2.0)


def test_merges_that_cannot_be():
    with refused("at most 4 may drop out, got 5"):
        merges(dropouts=5)
    with refused("only a secure sum counts silos that drop out or collude"):
        merges(noise_by="silos")
    with refused("noise_by: expected one of server, silos, secure"):
        merges(noise_by="nobody")


def test_published_formulas_are_compared_with_what_the_server_sees():
    found = merges(silos=200, rate=0.05, sampler="fixed", noise=0.6, came=20)
    assert [one.paper for one in published_for_merges(found, DELTA)] == ["Hu, Wu, Smith 2023"]
    assert merge_warnings(found, DELTA)  # a formula for secret draws is too small against the server


def federation(features=3):
    x = torch.randn(8, 10, features, generator=torch.Generator().manual_seed(0))
    return federation_of(x, torch.ones(8, 10))


def protected(method=None, budget=6.0, **more):
    data = federation()
    privacy = Privacy(
        epsilon=budget, delta=1e-2, clip=0.5, unit="silo", noise_by="secure", dropouts=2, colluding=1
    )
    given = {"rounds": 4, "batch": 8, "lr": 0.3, "seeds": (4,)} | more
    made = Experiment(data, task_for(data), method or MRMTL(), privacy, Training(**given))
    made.check()
    return made


def test_statements_are_recomputed_and_say_what_is_assumed():
    made = protected()
    content = verify(text_of(statement_of(made, made.plan(), 0, 0)))
    against = {name: entry["epsilon"] for name, entry in content["adversaries"].items()}
    assert against["server"] == content["guarantee"]["epsilon"] <= 6.0
    assert against["silos"] > 2 * against["server"]
    assert against["shared"] < against["server"]
    assert (content["merges"]["dropouts"], content["merges"]["colluding"]) == (2, 1)
    (assumed,) = (line for line in content["not_covered"] if "side" in line)
    assert "more than 1 of a round's 8 silos side" in assumed
    assert "the sum, of at least 6, after 5 silos confirmed" in assumed
    assert OTHERS_TOGETHER not in content["not_covered"]
    assert "the server sees only the sum, of at least 6 uploads" in page(content)
    silent = protected(Local())
    alone = verify(text_of(statement_of(silent, silent.plan(), 0, 0)))
    assert alone["guarantee"]["epsilon"] == 0
    assert not any("side" in line for line in alone["not_covered"])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("merges", "noise"), 9.0),
        (("merges", "colluding"), 0),
        (("merges", "dropouts"), 0),
        (("merges", "dropouts"), 7),
        (("merges", "silos"), 80),
        (("merges", "noise_by"), "silos"),
        (("merges", "metered"), True),
        (("adversaries", "server", "epsilon"), 0.1),
        (("adversaries", "silos", "epsilon"), 1.0),
        (("adversaries", "shared", "epsilon"), 0.1),
        (("not_covered",), []),
    ],
)
def test_forged_statements_are_found(place, value):
    made = protected()
    forged = json.loads(json.dumps(statement_of(made, made.plan(), 0, 0)))
    at = forged
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    forged["checksum"] = checksum(forged)
    with pytest.raises(Problem, match="statement: "):
        verify(text_of(forged))


def test_plans_tell_the_epsilons_apart():
    made = protected()
    (line,) = against_whom([made], [made.plan()])
    assert "epsilon holds against the server, anyone who holds the shared model" in line
    assert "against all other silos together it is" in line


def metered(made, folder, budgets=None, **how):
    plan = made.plan()
    given = budgets or [(50.0, 1e-1)] * 8
    meter = make_meter(folder, made.federation, given, "silo", custody(folder))
    made.train(plan, session=Session(meter=meter, **how))
    return plan, meter


def test_ledgers_and_metered_statements(tmp_path, capsys):
    made = protected()
    plan, meter = metered(made, tmp_path)
    (asked,) = claims_of("mr-mtl", plan, 0)
    assert asked.unprotected == ("silos", "personal")  # the personal model stays at home, without noise
    assert asked.seen == ("server", "shared")
    silo = plan.silos[0][0]
    totals = check_ledger(meter.ledgers[0].path).totals["silo"]
    assert totals["server"] == totals["shared"] == (silo.epsilon, silo.delta)
    assert totals["silos"] == NONE
    content = statement_of(made, plan, 0, 0, meter)
    assert verify(text_of(content)) == content
    against = {name: entry["epsilon"] for name, entry in content["adversaries"].items()}
    assert against == {"server": silo.epsilon, "silos": None, "shared": silo.epsilon, "personal": None}
    assert OTHERS_TOGETHER in content["not_covered"]
    (tmp_path / "statement.json").write_text(text_of(content))
    verify_statements([tmp_path / "statement.json"], tmp_path, as_json=False)
    assert "found in its ledger" in capsys.readouterr().out


def test_a_training_ends_when_too_few_silos_can_pay_for_a_secure_sum(tmp_path):
    """Of eight silos six are needed; three have spent their budgets after some rounds."""
    made = protected(FedAvg(), rounds=6)
    plan = made.plan()
    budgets = [(7.0, 1e-2)] * 5 + [(4.0, 1e-2)] * 3
    meter = make_meter(tmp_path, made.federation, budgets, "silo", custody(tmp_path))
    with pytest.raises(Spent, match=r"round \d: too few silos can continue"):
        made.train(plan, session=Session(meter=meter, partial=True, every=1))
    left = meter.rounds[7]
    assert 0 < left < 6
    for ledger, runs in zip(meter.ledgers, meter.claims, strict=True):  # what happened was reserved, no more
        state = ledger.state()
        assert [last for _, last in state.reserved(runs[0])] == list(range(1, left + 1))
        assert len(state.committed) == left
    two = [(7.0, 1e-2)] * 6 + [(4.0, 1e-2)] * 2
    folder = tmp_path / "two"
    folder.mkdir()
    _, enough = metered(made, folder, two, partial=True, every=1)
    assert enough.ledgers[0].state().total("silo", "server")[0] == plan.silos[0][0].epsilon


def test_a_metered_secret_draw_is_charged_every_round_and_verified(tmp_path):
    """Also if two silos left early: the noise of the other six is what was planned for."""
    made = replace(protected(FedAvg()), training=Training(rounds=4, batch=8, participation=SECRET))
    plan, meter = metered(made, tmp_path)
    silo = plan.silos[0][0]
    assert silo.epsilon == epsilon(silo.noise, 0.5, 4, silo.delta)
    totals = check_ledger(meter.ledgers[0].path).totals["silo"]
    assert totals["server"] == totals["shared"] == (silo.epsilon, silo.delta)
    assert totals["silos"] == NONE
    content = statement_of(made, plan, 0, 0, meter)
    assert verify(text_of(content)) == content
    assert "in secret: a silo that was not drawn uploads noise alone" in page(content)
    assert HIDDEN in content["not_covered"]
    short = tmp_path / "short"
    short.mkdir()
    budgets = [(7.0, 1e-2)] * 6 + [(silo.epsilon / 2, 1e-2)] * 2
    _, left = metered(made, short, budgets, partial=True, every=1)
    assert len(left.left) == 2


def test_configurations():
    table = {"epsilon": 1.0, "unit": "silo", "noise_by": "secure", "dropouts": 3, "colluding": 2}
    whole = {"data": {"source": "digits"}, "privacy": table, "method": [{"name": "fedavg"}]}
    found = privacy_of(check(whole).privacy)
    assert (found.noise_by, found.dropouts, found.colluding) == ("secure", 3, 2)
    assert privacy_of(check(whole | {"privacy": {"epsilon": 1.0}}).privacy) == Privacy(epsilon=1.0)
    for wrong, said in (
        ({"noise_by": "silos"}, "privacy.dropouts: allowed only with noise_by = 'secure'"),
        ({"unit": "example"}, "privacy.noise_by: allowed only with unit = 'silo'"),
        ({"quantile": 0.5}, "privacy.quantile: requires unit = 'silo' and noise_by = 'server'"),
        ({"dropouts": -1}, "privacy.dropouts: expected a number >= 0"),
    ):
        with pytest.raises(Problem, match=said):
            check(whole | {"privacy": table | wrong})
