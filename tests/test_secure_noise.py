"""Noise that silos add in parts for a secure sum: how much, what is left of it, and that it is what runs."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.cohort.merging import PrivateMerger
from coterie.errors import Problem, Refused
from coterie.experiment.experiment import Experiment
from coterie.methods import MRMTL, Ditto, FedAvg, Local, Related
from coterie.noise.dice import KeyedDice
from coterie.planning.schedule import Dropping, Participation
from coterie.planning.training import Training
from coterie.privacy.accountant import epsilon
from coterie.privacy.budget import Privacy
from coterie.privacy.distributed import assumption_problems, least_threshold, noise_share
from coterie.protocol.merging import MergeRule
from coterie.protocol.roster import Roster
from coterie.protocol.streams import SeededStreams
from coterie.secure_sum import contribution, from_cells
from tests.helpers import refused, task_for, vectors
from tests.measured import CHANCE, federation_of, reference_of
from tests.secure_rounds import Round, terms_for

NOISE, CLIP, WIDTH = 1.5, 2.0, 20_000


def assumptions(most):
    """All numbers of silos, dropouts and colluding silos that a secure sum can withstand."""
    return [
        (n, d, c)
        for n in range(3, most + 1)
        for c in range(n)
        for d in range(n)
        if not assumption_problems(n, d, c)
    ]


def test_the_threshold_is_the_least_that_lets_only_one_set_be_confirmed():
    for n in range(3, 256):
        for c in range(n):
            t = least_threshold(n, c)
            assert 2 * t > n + c >= 2 * (t - 1)
            assert c < t <= n
    for n, d, c in assumptions(12):
        assert least_threshold(n, c) <= n - d


@pytest.mark.parametrize("noise", [1.0, 0.1, 3.7, 1e-3, 12345.6789])
def test_honest_noise_is_enough_whoever_drops_out_and_colludes(noise):
    """By exact fractions: whatever set survives, without the colluding ones, has at least the variance."""
    for n, d, c in assumptions(12):
        share = Fraction(noise_share(noise, n, d, c))
        for survivors in range(n - d, n + 1):
            honest = survivors - min(c, survivors)
            assert honest * share**2 >= Fraction(noise) ** 2
        tight = Fraction(noise) ** 2 * (1 + Fraction(2) ** -50)
        assert (n - d - c) * share**2 <= tight


def test_what_cannot_be_withstood():
    with refused("a secure sum needs from 3 to 255 silos, got 2"):
        noise_share(1.0, 2, 0, 0)
    with refused("with 10 silos of which 1 may collude, at most 4 may drop out, got 5"):
        noise_share(1.0, 10, 5, 1)
    with refused("colluding: expected fewer than all 5 silos, got 5"):
        noise_share(1.0, 5, 0, 5)
    for bad in (-1, 1.5, True):
        with refused(f"dropouts: expected a whole number >= 0, got {bad!r}"):
            noise_share(1.0, 5, bad, 0)
    for bad in (-1.0, math.nan, math.inf):
        with refused("noise: expected a finite number >= 0"):
            noise_share(bad, 5, 0, 0)
    assert noise_share(0.0, 5, 0, 0) == 0.0


def rule_of(silos, dropouts=2, colluding=1, noise=NOISE, where="secure"):
    return MergeRule(
        torch.tensor([noise]),
        torch.tensor([CLIP]),
        float(silos),
        where,
        dropouts=dropouts,
        colluding=colluding,
    )


def merged(present, rule, uploads=None, streams=None):
    """Merge uploads of zeros: what comes out is the noise of the sum."""
    silos = len(present)
    roster = Roster(tuple(f"s{k}" for k in range(silos)), torch.ones(silos), torch.full((1, silos), 4.0))
    facts = dataclasses.replace(roster, present=torch.tensor([present]), round=3)
    sent = torch.zeros(1, silos, WIDTH, dtype=torch.float64) if uploads is None else uploads
    merger = PrivateMerger.of(facts, rule, streams or SeededStreams(((0, 0),)), sent)
    return merger.mean(sent)[0, 0].numpy() * silos


def is_noise(found, deviation):
    return stats.kstest(found / deviation, "norm").pvalue > CHANCE


def test_the_sum_has_the_stated_noise_after_the_worst_that_is_assumed():
    """Two of nine silos drop out, and one of the others subtracts its noise: exactly the noise is left."""
    rule = rule_of(9)
    total = merged([True] * 7 + [False] * 2, rule)
    own = NOISE * CLIP / math.sqrt(9 - 2 - 1)
    assert is_noise(total, own * math.sqrt(7))
    known = SeededStreams(((0, 0),)).merging(0, "s3", 3).noisy(np.zeros(WIDTH), own)
    assert is_noise(total - known, NOISE * CLIP)
    for wrong in (9, 9 - 2, 9 - 1):  # noise for all silos, without colluding ones, or without dropouts
        assert not is_noise((total - known) * math.sqrt(6 / wrong), NOISE * CLIP)
    assert is_noise(merged([True] * 9, rule), own * 3)


@pytest.mark.parametrize("left", [0, 1, 6])
def test_if_too_few_are_left_nothing_is_released(left):
    uploads = torch.ones(1, 9, 4)
    assert (merged([True] * left + [False] * (9 - left), rule_of(9), uploads) == 0).all()
    assert (merged([True] * 7 + [False] * 2, rule_of(9), uploads) != 0).all()


def test_the_sum_is_uniform_and_divided_by_the_planned_cohort():
    """Removing one silo moves the sum by at most the clip, whatever the sizes of silos are."""
    rule = rule_of(5, 1, 1, noise=0.0)
    roster = Roster(tuple("abcde"), torch.tensor([9e5, 1.0, 1.0, 1.0, 1.0]), torch.ones(1, 5))
    uploads = torch.full((1, 5, 4), 50.0, dtype=torch.float64)
    without = uploads.clone()
    without[:, 0] = 0
    means = [PrivateMerger.of(roster, rule, SeededStreams(((0, 0),)), x).mean(x) for x in (uploads, without)]
    assert CLIP * 0.999 < 5 * float((means[0] - means[1]).norm()) <= CLIP
    with pytest.raises(Refused, match="uniform"):
        PrivateMerger.of(roster, rule, SeededStreams(((0, 0),)), uploads).mean(uploads, torch.ones(1, 5))
    with pytest.raises(Refused, match="noise_by = 'server' here"):
        PrivateMerger.of(roster, rule, SeededStreams(((0, 0),)), uploads).mix(uploads, torch.ones(1, 5))


class FixedDice:
    """Secret streams with known keys, one for each silo."""

    def merging(self, run, silo, round_):
        return KeyedDice(f"{silo}/{run}/{round_}".encode().ljust(32))


def test_a_simulation_adds_up_what_the_protocol_adds_up():
    """The same uploads and the same dice, with masks and without, to the last bit."""
    terms = terms_for(8, size=500, clip=CLIP, deviation=NOISE * CLIP, dropouts=2, colluding=1)
    generator = np.random.default_rng(5)
    uploads = generator.standard_normal((8, 500))
    uploads *= 0.9 * CLIP / np.linalg.norm(uploads, axis=1, keepdims=True)
    names = [f"silo-{k}" for k in range(8)]
    streams = FixedDice()
    cells = {
        name: contribution(upload, terms, streams.merging(0, name, 3))
        for name, upload in zip(names, uploads, strict=True)
    }
    made = Round(terms, cells, gone=((), (5,), (2,), (), ())).until("confirmations")
    found = from_cells(made.total(), terms)
    roster = Roster(tuple(names), torch.ones(8), torch.ones(1, 8))
    present = torch.tensor([[name not in ("silo-2", "silo-5") for name in names]])
    facts = dataclasses.replace(roster, present=present, round=3)
    sent = torch.from_numpy(uploads).unsqueeze(0)
    simulated = PrivateMerger.of(facts, rule_of(8), streams, sent).mean(sent)[0, 0].numpy() * 8
    assert (found == simulated).all()


def test_sums_of_contributions_are_gaussian():
    terms = terms_for(6, size=WIDTH, dropouts=1, colluding=1, deviation=0.3)
    total = sum(contribution(np.zeros(WIDTH), terms, KeyedDice(bytes([k]) * 32)) for k in range(6))
    assert is_noise(from_cells(total, terms), terms.own_deviation * math.sqrt(6))
    assert terms.own_deviation * math.sqrt(4) == pytest.approx(0.3)


def protected(federation, method, *, budget=6.0, dropouts=0, colluding=1, task=None, **more):
    more = {"rounds": 4, "batch": 8, "lr": 0.3} | more
    privacy = Privacy(
        epsilon=budget,
        delta=1e-2,
        clip=0.5,
        unit="silo",
        noise_by="secure",
        dropouts=dropouts,
        colluding=colluding,
    )
    made = Experiment(federation, task or task_for(federation), method, privacy, Training(**more))
    made.check()
    return made


def eight(features=3):
    x = torch.randn(8, 10, features, generator=torch.Generator().manual_seed(0))
    return federation_of(x, torch.ones(8, 10))


CASES = {
    "all": {},
    "drawn": {"participation": Participation(0.625), "colluding": 2},
    "dropping": {"dropping": Dropping(drop=0.3), "dropouts": 2, "rounds": 8},
    "in secret": {"participation": Participation(0.4, "poisson"), "dropouts": 1},
}


@pytest.mark.parametrize("how", CASES)
@pytest.mark.parametrize("method", [Local(), FedAvg(), MRMTL(lam=0.4), Ditto()])
def test_engines_agree(method, how):
    made = protected(eight(), method, seeds=(0, 5), **CASES[how])
    found = vectors(made)
    for run in range(2):
        torch.testing.assert_close(found[run], reference_of(made, run), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("how", CASES)
def test_what_runs_is_what_is_charged(how):
    """The noise on the shared model, measured from outside, is at least that of the events."""
    federation = federation_of(torch.zeros(8, 10, 3000))
    made = protected(federation, FedAvg(), task=task_for(federation, bias=False), **CASES[how])
    plan = made.plan()
    silo = plan.silos[0][0]
    due, honest = silo.merges.members, silo.merges.members - silo.merges.dropouts - silo.merges.colluding
    secret, rounds = plan.drawn_in_secret, made.training.rounds
    here = torch.full((rounds,), 8) if plan.present is None or secret else plan.present[:, 0].sum(1)
    if how == "dropping":
        assert (here < 6).any()
        assert ((here >= 6) & (here < 8)).any()
        assert any("fewer than 6 silos are left" in note for note in plan.notes)
    drawn = int(here[here >= due - silo.merges.dropouts].sum())
    own = silo.noise * 0.5 / math.sqrt(honest)
    assert is_noise(vectors(made)[0, 0].double().numpy(), own / silo.merges.cohort * math.sqrt(drawn))
    every = plan.present is None or secret
    merges = silo.merges.merges if every else int(max(plan.present[:, 0].sum(0)))
    most = max(plan.silos[0], key=lambda one: one.merges.came)
    assert most.merges.came == merges
    rate = 0.4 if secret else 1.0  # only a secret draw counts
    assert most.epsilon == pytest.approx(epsilon(silo.noise, rate, merges, 1e-2))
    assert most.epsilon <= 6.0


def test_a_secure_sum_needs_less_noise_than_silos_that_add_it_alone():
    secure = protected(eight(), FedAvg()).plan()
    alone = dataclasses.replace(protected(eight(), FedAvg()), privacy=Privacy(
        epsilon=6.0, delta=1e-2, clip=0.5, unit="silo", noise_by="silos")).plan()  # fmt: skip
    own = secure.silos[0][0].merges.own_noise
    assert secure.silos[0][0].noise == alone.silos[0][0].noise
    assert own == pytest.approx(alone.silos[0][0].noise / math.sqrt(7))


def test_plans_say_what_is_assumed():
    notes = protected(eight(), FedAvg(), dropouts=2).plan().notes
    assert any(
        "at most 1 of the 8 silos of a round side with the server; at most 2 may drop out, and 5 must" in note
        for note in notes
    )


def test_settings_that_are_refused(federation):
    with refused("privacy.dropouts: allowed only with noise_by = 'secure'"):
        Privacy(epsilon=1.0, unit="silo", noise_by="silos", dropouts=1)
    with refused("privacy.colluding: expected a whole number >= 0, got -1"):
        Privacy(epsilon=1.0, unit="silo", noise_by="secure", colluding=-1)
    with refused("privacy.noise_by: allowed only with unit = 'silo'"):
        Privacy(epsilon=1.0, noise_by="secure")
    with refused("privacy.quantile: expected a number in (0, 1), with unit = 'silo' and noise_by = 'server'"):
        Privacy(epsilon=1.0, unit="silo", noise_by="secure", quantile=0.5)
    with refused("with 3 silos of which 1 may collude, at most 0 may drop out, got 1"):
        protected(federation, FedAvg(), dropouts=1).plan()
    with refused("a secure sum needs from 3 to 255 silos, got 2"):
        protected(federation, FedAvg(), participation=Participation(0.5)).plan()
    with refused("a secure sum if whole silos are drawn in secret: say how many may drop out"):
        protected(eight(), FedAvg(), participation=Participation(0.5, "poisson"), dropping=Dropping(drop=0.1))
    with refused("with 8 silos of which 1 may collude, at most 3 may drop out, got 4"):
        protected(eight(), FedAvg(), participation=Participation(0.5, "poisson"), dropouts=4).plan()
    with pytest.raises(Problem, match="noise_by = 'server' here"):
        protected(eight(), Related()).plan()
