"""Sweeps: a random number of trials, a noised choice, billed to the chosen model and to the server."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.cohort.examples import stack
from coterie.cohort.score import bounded_total
from coterie.errors import Problem
from coterie.experiment.config.schema import Tuning
from coterie.experiment.sweep import (
    Sweep,
    best_of,
    check_sweep,
    draw,
    noised_scores,
    score_events,
    trials_of,
    tuned_plan,
)
from coterie.guard.meter import make_meter
from coterie.methods import FedAvg
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.calibration import Target, noise_for
from coterie.privacy.events import Event
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.statement.build import checksum, text_of
from coterie.privacy.statement.verify import verify
from coterie.privacy.trials import Trials, chance_above
from coterie.privacy.tuning import chosen_epsilon, noise_for_tuning, server_epsilon
from coterie.report.statement_page import page
from tests.helpers import call, experiment, refused

CONFIG = """
[data]
silos = 3
[train]
rounds = 3
lr = [0.03, 0.3]
[privacy]
epsilon = 4.0
delta = 1e-4
[tuning]
mean = 3
[[method]]
name = "fedavg"
"""
TRIALS = Trials("geometric", 3.0)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text(CONFIG)
    return tmp_path / "c.toml"


def made_sweep(federation, count=4, epsilon=4.0, tuning=None):
    made = experiment(federation, FedAvg(), epsilon=epsilon, lr=[0.1, 0.3])
    made = replace(made, picked=tuple((trial, trial % 2) for trial in range(count)))
    tuning = tuning or Tuning()
    drawn = tuple(v for _, v in made.keys)
    return made, Sweep(TRIALS, drawn, score_events(made, tuning), tuning.score == "public")


def test_the_chosen_model_keeps_to_the_budget_and_all_trials_add_up(federation):
    made, sweep = made_sweep(federation)
    plan = tuned_plan(made, sweep)
    for k, silo in enumerate(plan.silos[0]):
        one = (Event("gaussian", silo.noise, silo.work.rate, silo.steps), sweep.scores[k])
        assert 0.98 * 4.0 < chosen_epsilon(one, TRIALS, silo.delta) <= 4.0
        assert silo.epsilon == server_epsilon(one, 4, silo.delta) > 4.0
        untuned = noise_for(Target(4.0, silo.delta, silo.work.rate, silo.steps)).noise
        assert silo.noise > 1.2 * untuned


def test_a_ledger_is_asked_for_all_trials_and_for_the_chosen_one(federation):
    made, sweep = made_sweep(federation)
    plan = tuned_plan(made, sweep)
    (trials,), chosen = sweep.asks("fedavg", plan, 0), sweep.best("fedavg", plan, 0)
    assert (trials.seen, chosen.seen) == (("server", "silos"), ("shared", "personal"))
    assert trials.rounds == chosen.rounds == 3
    assert trials.epsilon == pytest.approx(plan.silos[0][0].epsilon, rel=1e-3)
    assert chosen.epsilon <= 4.0 < trials.epsilon
    steps = sum(e.count for e in trials.events(0, 3))
    assert steps == 4 * sum(e.count for e in chosen.events(0, 3)) == 4 * (plan.silos[0][0].steps + 1)
    assert sweep.scores[0] in chosen.events(2, 3)
    assert sweep.scores[0] not in chosen.events(0, 2)


def test_the_number_of_trials_and_their_settings_follow_what_was_said():
    drawn = [draw(TRIALS, 4, np.random.default_rng(seed)) for seed in range(3_000)]
    counts = np.array([len(d) for d in drawn])
    deviation = math.sqrt(6.0)  # of a geometric number with mean 3
    assert abs(counts.mean() - 3.0) < 5 * deviation / math.sqrt(3_000)
    settings = np.bincount(np.concatenate(drawn), minlength=4) / counts.sum()
    assert np.abs(settings - 0.25).max() < 5 * math.sqrt(0.19 / counts.sum())
    assert draw(TRIALS, 4, np.random.default_rng(7)) == draw(TRIALS, 4, np.random.default_rng(7))
    assert len({draw(Trials("poisson", 50.0), 1000, np.random.default_rng(seed)) for seed in range(3)}) == 3


def test_a_score_is_bounded_also_where_a_model_is_broken(federation):
    """One example changes a sum by at most 1: the noise is for that."""
    made, _ = made_sweep(federation)
    test = stack(federation, "test", "cpu")
    wild = torch.full((1, len(federation), made.task.layout.size), 1e6)
    for vectors in (wild, wild * math.nan, wild * math.inf):
        found = bounded_total(made.task, test, vectors)
        assert ((found >= 0) & (found <= torch.tensor(test.sizes))).all()


def test_the_noise_of_scores_is_what_is_charged(federation):
    """Measured from outside, over many trials of equal models."""
    count = 4_000
    made, sweep = made_sweep(federation, count)
    vectors = torch.zeros(count, len(federation), made.task.layout.size)
    scores = np.array(noised_scores(made, sweep, vectors, None))
    sizes = [len(silo.test_y) for silo in federation.silos]
    expected = math.sqrt(sum(event.noise**2 for event in sweep.scores)) / sum(sizes)
    assert abs(scores.std() / expected - 1) < 5 / math.sqrt(2 * count)
    for event, delta in zip(sweep.scores, made.delta[0].tolist(), strict=True):
        assert epsilon_of((event,), delta) <= 0.4


def test_a_repeated_score_is_the_same_and_another_model_has_other_noise(federation, tmp_path):
    made, sweep = made_sweep(federation)
    meter = make_meter(tmp_path, federation, [(100.0, 1e-2)] * len(federation))
    meter.claims, meter.rounds = [[3, 4]] * len(federation), [3] * len(federation)
    vectors = torch.zeros(4, len(federation), made.task.layout.size)
    first = noised_scores(made, sweep, vectors, meter)
    assert noised_scores(made, sweep, vectors, meter) == first
    assert len(set(first)) == 4
    other = noised_scores(made, sweep, vectors + 1e-9, meter)
    assert all(abs(a - b) > 1e-6 for a, b in zip(first, other, strict=True))


def test_public_scores_are_of_silos_without_privacy_only(federation):
    epsilon = {"default": 4.0, federation.names[0]: math.inf}
    made, sweep = made_sweep(federation, epsilon=epsilon, tuning=Tuning(score="public"))
    assert sweep.scores == (None,) * len(federation)
    vectors = torch.zeros(4, len(federation), made.task.layout.size)
    test = stack(federation, "test", "cpu")
    public = float(bounded_total(made.task, test, vectors)[0, 0]) / test.sizes[0]
    assert noised_scores(made, sweep, vectors, None) == pytest.approx([public] * 4)


def test_the_best_is_the_highest_or_the_lowest():
    assert best_of([0.1, 0.9, 0.5], True) == 1
    assert best_of([0.1, 0.9, 0.5], False) == 0


def test_more_trials_than_the_most_cost_delta():
    events = (Event("gaussian", 4.0, 0.1, 100),)
    free = chosen_epsilon(events, TRIALS, 1e-4)
    capped = chosen_epsilon(events, replace(TRIALS, most=100), 1e-4)
    assert free < capped == chosen_epsilon(events, TRIALS, 5e-5)
    assert (1 + math.exp(capped)) * chance_above(TRIALS, 100) <= 5e-5
    assert chosen_epsilon(events, replace(TRIALS, most=5), 1e-4) == math.inf
    between = next(n for n in range(1, 100) if chance_above(TRIALS, n) <= 5e-5)
    assert (1 + math.exp(capped)) * chance_above(TRIALS, between) > 5e-5
    assert chosen_epsilon(events, replace(TRIALS, most=between), 1e-4) == math.inf
    with refused("delta covers only"):
        noise_for_tuning(1.0, 1e-4, 0.1, 100, replace(TRIALS, most=5))


def test_a_sweep_from_the_command_line(file, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "sweep", "c.toml", "--out", "out")
    assert code == 0
    assert "against anyone who sees only the chosen models" in out
    tuning = json.loads((file.parent / "out/result.json").read_text())["tuning"]
    assert tuning["accounted"]
    assert len(tuning["scores"]) == tuning["ran"] > tuning["chosen"]
    assert tuning["epsilon"]["chosen"] <= 4.0
    (statement,) = (file.parent / "out/statements").glob("*/silo-0.json")
    content = verify(statement.read_text())
    assert content["tuning"]["ran"] == tuning["ran"]
    against = {name: entry["epsilon"] for name, entry in content["adversaries"].items()}
    assert against["server"] == against["silos"] == content["guarantee"]["epsilon"]
    assert against["shared"] == against["personal"] <= 4.0
    assert "the best of" in page(content)
    assert "The budget of the chosen model is 4, for anyone who sees no other trial." in page(content)
    code, _, err = call(monkeypatch, capsys, "sweep", "c.toml", "--out", "out")
    assert code == 2
    assert "already holds this result" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["tuning"].update(ran=c["tuning"]["ran"] + 9), "tuning.trial"),
        (lambda c: c["tuning"].update(mean=50.0), "tuning.epsilon"),
        (lambda c: c["tuning"].update(epsilon=0.1), "tuning.epsilon"),
        (lambda c: c["tuning"].update(trial=[]), "tuning.trial"),
        (lambda c: c["tuning"].update(most=10**13), "statement: tuning"),
        (lambda c: c["adversaries"]["personal"].update(epsilon=0.5), "adversaries.personal"),
        (lambda c: c["tuning"]["trial"][0].update(noise=9.0), "tuning.trial"),
    ],
)
def test_a_forged_sweep_is_refused(file, monkeypatch, capsys, change, message):
    call(monkeypatch, capsys, "sweep", "c.toml", "--out", "out")
    (statement,) = (file.parent / "out/statements").glob("*/silo-0.json")
    content = json.loads(statement.read_text())
    change(content)
    content["checksum"] = checksum(content)
    with pytest.raises(Problem, match=message):
        verify(text_of(content))


def test_a_metered_sweep_charges_both_rows_and_goes_on_with_the_same_draw(file, monkeypatch, capsys):
    most = ["--set", "tuning.most=50", "--set", "tuning.mean=2"]
    opened = call(monkeypatch, capsys, "ledger", "open", "c.toml", "--ledger", "kept",
                  "--epsilon", "60", "--delta", "1e-3")  # fmt: skip
    assert opened[0] == 0
    code, _, err = call(monkeypatch, capsys, "sweep", "c.toml", "--ledger", "kept", "--out", "out")
    assert (code, "tuning.most" in err) == (2, True)

    def broken(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("coterie.experiment.run_sweep.noised_scores", broken)
        assert (
            call(monkeypatch, capsys, "sweep", "c.toml", "--ledger", "kept", "--out", "out", *most)[0] == 130
        )
    drawn = json.loads((file.parent / "out/draw.json").read_text())["settings"]
    code, out, _ = call(monkeypatch, capsys, "sweep", "c.toml", "--ledger", "kept", "--out", "out", *most)
    assert (code, "scores of a metered run on test examples" in " ".join(out.split())) == (0, True)
    tuning = json.loads((file.parent / "out/result.json").read_text())["tuning"]
    assert tuning["ran"] == len(drawn)
    for path in (file.parent / "kept").glob("*.sqlite"):
        report = check_ledger(path)
        assert report.runs == 2
        assert report.totals["example"]["server"][0] == pytest.approx(tuning["epsilon"]["server"], rel=0.01)
        assert report.totals["example"]["personal"][0] <= 4.0
    (statement,) = (file.parent / "out/statements").glob("*/silo-0.json")
    code, out, _ = call(monkeypatch, capsys, "statement", "verify", str(statement), "--ledger", "kept")
    assert (code, "found in its ledger" in out) == (0, True)


def test_a_ledger_that_could_not_pay_for_the_most_is_refused_before_anything_is_drawn(
    file, monkeypatch, capsys
):
    call(
        monkeypatch,
        capsys,
        "ledger",
        "open",
        "c.toml",
        "--ledger",
        "kept",
        "--epsilon",
        "6",
        "--delta",
        "1e-3",
    )
    arguments = ["sweep", "c.toml", "--ledger", "kept", "--out", "out", "--set", "tuning.most=50"]
    code, _, err = call(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "for 50 trials (tuning.most)" in err
    assert not (file.parent / "out").exists()
    assert all(check_ledger(path).runs == 0 for path in (file.parent / "kept").glob("*.sqlite"))


@pytest.mark.parametrize("drawn", [(), (0,) * 31], ids=["none", "too many"])
def test_no_trial_is_an_outcome_that_is_charged(file, monkeypatch, capsys, drawn):
    monkeypatch.setattr("coterie.experiment.run_sweep.draw", lambda *_: drawn)
    call(
        monkeypatch,
        capsys,
        "ledger",
        "open",
        "c.toml",
        "--ledger",
        "kept",
        "--epsilon",
        "90",
        "--delta",
        "1e-3",
    )
    arguments = ["--ledger", "kept", "--out", "out", "--set", "tuning.most=30"]
    code, _, err = call(monkeypatch, capsys, "sweep", "c.toml", *arguments, "--set", "tuning.trials=poisson")
    assert code == 0
    assert "drawing again would break the guarantee" in err
    result = json.loads((file.parent / "out/result.json").read_text())
    assert (result["tuning"]["chosen"], result["kind"]) == (None, "metered")
    for path in (file.parent / "kept").glob("*.sqlite"):
        totals = check_ledger(path).totals["example"]
        assert totals["server"] == (0.0, 0.0)
        assert 3.5 < totals["personal"][0] <= 4.0


def test_every_setting_once_is_labelled(file, monkeypatch, capsys):
    code, _, err = call(monkeypatch, capsys, "sweep", "c.toml", "--out", "out", "--set", "tuning.trials=all")
    assert (code, "Tuning is not accounted for" in err) == (0, True)
    assert json.loads((file.parent / "out/result.json").read_text())["tuning"].startswith(
        "Tuning is not accounted for"
    )


def test_what_cannot_be_billed_is_refused(federation, file, monkeypatch, capsys):
    def check(message, tuning=Tuning(), metered=False, **settings):
        made = experiment(federation, FedAvg(), **{"lr": [0.1, 0.2], **settings})
        with refused(message):
            check_sweep(made, tuning, metered)

    check("give one seed", seeds=(0, 1))
    check("the budget cannot be tuned", epsilon=[1.0, 2.0])
    check("needs a list", lr=0.1)
    check("there are none; use 'noised'", Tuning(score="public"))
    check("tuning.most", metered=True)
    with refused("shape must be"):
        trials_of(Tuning(trials="negative-binomial"), 3)
    assert trials_of(Tuning(), 5).mean == 5.0
    code, _, err = call(monkeypatch, capsys, "run", "c.toml", "--out", "out")
    assert (code, "use sweep, or remove it" in err) == (2, True)
    (file.parent / "c.toml").write_text(CONFIG + '[[method]]\nname = "local"\n')
    code, _, err = call(monkeypatch, capsys, "sweep", "c.toml", "--out", "out")
    assert (code, "give one method" in err) == (2, True)
