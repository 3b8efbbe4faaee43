"""Noise that is given, not found: what it comes to, what papers report of it, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from scipy import stats

from coterie.experiment.experiment import Experiment
from coterie.experiment.statements import statement_of
from coterie.methods import FedAvg, Heads
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.accountant import epsilon, quick_lower
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from coterie.privacy.merges import MergeEvents
from coterie.privacy.published.formulas import central_limit_epsilon, pmtl_epsilon
from coterie.privacy.published.merges import merge_warnings, published_for_merges
from coterie.privacy.statement.build import checksum, text_of
from coterie.privacy.statement.verify import verify
from tests.helpers import call, refused, task_for, vectors
from tests.measured import CHANCE, federation_of


def made_of(federation, noise=1.3, method=None, noise_by="server", sensitivity="certified", **more):
    privacy = Privacy(
        noise=noise, delta=1e-2, clip=0.5, unit="silo", noise_by=noise_by, sensitivity=sensitivity
    )
    training = Training(**{"rounds": 4, "batch": 8, "lr": 0.3} | more)
    made = Experiment(federation, task_for(federation), method or FedAvg(), privacy, training)
    made.check()
    return made


@pytest.mark.parametrize("how", [None, Participation(0.5, "poisson")])
def test_what_a_given_noise_comes_to(federation, how):
    (silo, *_) = made_of(federation, participation=how).plan().silos[0]
    assert silo.noise == 1.3
    assert silo.epsilon == silo.budget == epsilon(1.3, 0.5 if how else 1.0, 4, 1e-2)


def test_a_list_is_a_run_for_each(federation):
    made = made_of(federation, noise=[0.5, 2.0])
    assert made.labels == ["fedavg noise=0.5", "fedavg noise=2"]
    assert [run[0].noise for run in made.plan().silos] == [0.5, 2.0]
    assert made.plan().silos[0][0].epsilon > made.plan().silos[1][0].epsilon


@pytest.mark.parametrize(("sensitivity", "factor"), [("certified", 1.0), ("paper", 2 * 0.5)])
def test_the_noise_that_is_added(sensitivity, factor):
    """Silos without gradients send nothing but noise; what the paper takes for a sensitivity is 2 C K / M."""
    silent = federation_of(torch.zeros(4, 10, 3000))
    how = Participation(0.5)
    made = made_of(
        silent, noise=1.5, noise_by="silos", sensitivity=sensitivity, participation=how, rounds=1, lr=0.1
    )
    assert made.plan().silos[0][0].noise == 1.5 * factor
    moved = vectors(made)[0, 0].double().numpy()
    assert stats.kstest(moved / (1.5 * factor * 0.5 * math.sqrt(2) / 2), "norm").pvalue > CHANCE


def merges(noise_by="silos", sampler="poisson", rate=3 / 174, noise=2 * 9.69 * 3 / 174, came=30):
    return MergeEvents(noise, 1.0, 174, rate, sampler, 1000, came, noise_by, True)


def test_what_the_paper_of_heads_reports_is_far_below_what_is_true():
    """At the paper's setting (sigma 9.69, 1,000 steps, 3 of 174): .18, where the server learns far more."""
    (published,) = published_for_merges(merges(), 1e-5)
    assert published.epsilon == pytest.approx(central_limit_epsilon(9.69, 3 / 174, 1000, 1e-5))
    assert 0.17 < published.epsilon < 0.19
    assert quick_lower((Event("gaussian", merges().noise, 1.0, 30),), 1e-5) > 75
    (line,) = merge_warnings(merges(), 1e-5)
    assert "gives epsilon 0.18" in line


def test_what_the_paper_of_whole_silos_reports():
    everybody = merges("server", rate=1.0, noise=40.0, came=1000)
    sampled, closed = published_for_merges(everybody, 1e-2)
    assert closed.epsilon == pytest.approx(pmtl_epsilon(40 / 174, 1000, 1e-2, 1.0, 174))
    assert sampled.epsilon >= epsilon(40.0, 1.0, 1000, 1e-2)
    assert merge_warnings(everybody, 1e-2) == []
    (alone,) = published_for_merges(merges("server", rate=0.1, noise=4.0), 1e-2)
    assert alone.formula == sampled.formula
    assert published_for_merges(merges(noise=0.0), 1e-2) == ()


def test_a_fixed_draw_is_not_warned_of_without_a_lower_bound():
    assert merge_warnings(merges("server", "fixed", rate=0.1, noise=0.5), 1e-2) == []


@pytest.mark.parametrize("noise_by", ["server", "silos"])
def test_statements_can_be_recomputed_and_forged_ones_are_found(federation, noise_by):
    how = Participation(0.5, "poisson")
    made = made_of(federation, method=Heads(head="1.weight"), noise_by=noise_by, participation=how)
    content = statement_of(made, made.plan(), 0, 0)
    assert verify(text_of(content)) == content
    assert content["published"]
    content["published"][0]["epsilon"] = 0.01
    content["checksum"] = checksum(content)
    with refused("published: does not match what the formulas give"):
        verify(text_of(content))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "expected either epsilon or noise"),
        ({"epsilon": 1.0, "noise": 1.0, "unit": "silo"}, "expected either epsilon or noise"),
        ({"noise": 1.0}, "allowed only with unit = 'silo'"),
        ({"noise": 0.0, "unit": "silo"}, "expected a number > 0"),
        ({"noise": math.inf, "unit": "silo"}, "expected a number > 0"),
        ({"noise": {"a": 1.0}, "unit": "silo"}, "expected a number > 0"),
        ({"noise": True, "unit": "silo"}, "expected a number, or one for each silo, got True"),
        ({"noise": 1.0, "unit": "silo", "sensitivity": "guess"}, "expected one of certified, paper"),
        ({"noise": 1.0, "unit": "silo", "sensitivity": "paper"}, "requires privacy.noise and noise_by"),
        (
            {"epsilon": 1.0, "unit": "silo", "noise_by": "silos", "sensitivity": "paper"},
            "requires privacy.noise",
        ),
    ],
)
def test_what_is_refused(settings, sentence):
    with refused(sentence):
        Privacy(**settings)


def test_all_problems_of_a_configuration_come_at_once(tmp_path, monkeypatch, capsys):
    config = tmp_path / "bad.toml"
    config.write_text("""
[data]
source = "digits"
[privacy]
epsilon = 1
noise = 2
sensitivity = "paper"
[[method]]
name = "heads"
[train]
rounds = 0
""")
    code, _, said = call(monkeypatch, capsys, "plan", config)
    assert code == 2
    for words in ("4 problem(s)", "not both", "only with unit = 'silo'", "'paper' requires", "train.rounds"):
        assert words in said


HEADS = """
[data]
source = "digits"
silos = {silos}
[model]
name = "mlp"
[train]
rounds = {rounds}
steps = 1
participation = {{ cohort = {cohort} }}
[privacy]
unit = "silo"
noise_by = "silos"
noise = {noise}
sensitivity = "paper"
delta = 1e-2
[[method]]
name = "heads"
"""


def test_a_plan_tells_what_papers_report(tmp_path, monkeypatch, capsys):
    config = tmp_path / "heads.toml"
    config.write_text(HEADS.format(silos=4, rounds=2, cohort=4, noise=2.42))
    code, out, said = call(monkeypatch, capsys, "plan", config, "--json")
    assert code == 0, said
    silo = next(iter(json.loads(out)["plans"][0]["variants"][0]["silos"].values()))
    assert silo["noise"] == pytest.approx(2 * 2.42)
    assert [one["paper"] for one in silo["published"]] == ["Wu, Chen, Wang 2020"]
    assert silo["budget"] is None
    assert silo["warnings"] == []  # everybody sends, every time: their sensitivity is too large here


def test_what_papers_report_too_little_of_is_told_where_it_is_read(tmp_path, monkeypatch, capsys):
    """In plans, in their data, after a run; and nobody reads a budget where a noise was given."""
    config = tmp_path / "few.toml"
    config.write_text(HEADS.format(silos=20, rounds=20, cohort=2, noise=0.65))
    monkeypatch.chdir(tmp_path)
    _, out, _ = call(monkeypatch, capsys, "plan", config)
    assert "a proven lower bound for these settings" in out
    assert " none " in out
    _, out, _ = call(monkeypatch, capsys, "plan", config, "--json")
    silos = json.loads(out)["plans"][0]["variants"][0]["silos"].values()
    assert all(silo["budget"] is None for silo in silos)
    assert all(bool(silo["warnings"]) == (silo["steps"] > 0) for silo in silos)
    _, out, _ = call(monkeypatch, capsys, "run", config, "--out", "x")
    assert out.count("a proven lower bound for these settings") == 1
    assert " none " in out
    pages = [path.read_text() for path in Path("x/statements").rglob("*.html")]
    assert pages
    assert not [page for page in pages if "The budget is" in page]
