"""Momentum, Adam, weight decay and schedules: functions of the noisy gradients, in both engines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import coterie
from coterie.cohort.compiled.walk import can_step
from coterie.cohort.dp_sgd import descend
from coterie.cohort.gradients.choose import stages
from coterie.cohort.step import StepRule
from coterie.methods import MRMTL, Ditto, Dual, FedAvg, Local, MRMTLAuto, Then
from coterie.planning.schedule import Dropping
from coterie.privacy.budget import Privacy
from coterie.protocol.optimizer import Optimizer
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import make_task
from tests.helpers import experiment, reference_vectors, refused, task_for, vectors
from tests.measured import LR, reference_of, silent

WAYS = {
    "momentum": Optimizer(momentum=0.8),
    "adam": Optimizer("adam"),
    "adam, short memory": Optimizer("adam", momentum=0.3),
    "weight decay": Optimizer(weight_decay=0.3),
    "cosine": Optimizer(schedule="cosine", warmup=1),
    "all": Optimizer("adam", weight_decay=0.1, schedule="linear", warmup=1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", [FedAvg(), MRMTL(lam=0.5), Ditto(lam=0.5)], ids=lambda m: m.name)
@pytest.mark.parametrize("epsilon", [3.0, math.inf])
def test_both_engines_agree(federation, way, method, epsilon):
    made = experiment(federation, method, epsilon=epsilon, optimizer=WAYS[way], seeds=(0, 3))
    fast = vectors(made)
    for run in range(2):
        torch.testing.assert_close(fast[run], reference_vectors(made, run), atol=1e-4, rtol=1e-3)
    assert not torch.allclose(fast, vectors(experiment(federation, method, epsilon=epsilon, seeds=(0, 3))))


@pytest.mark.parametrize("way", WAYS)
def test_both_engines_agree_where_whole_silos_are_protected(classes, way):
    made = experiment(classes, MRMTL(lam=0.5), optimizer=WAYS[way])
    made = replace(made, privacy=Privacy(epsilon=4.0, delta=1e-2, unit="silo"))
    torch.testing.assert_close(vectors(made)[0], reference_of(made, 0), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("way", ["momentum", "adam"])
def test_both_engines_agree_on_networks_and_uneven_steps(classes, way):
    """Silos that stop early keep their models; without clips, several parts of a step run apart."""
    for epsilon in (3.0, math.inf):
        made = experiment(
            classes,
            Local(),
            task=task_for(classes, "cnn", channels=2),
            epsilon=epsilon,
            rounds=2,
            lr=0.02,
            dropping=Dropping(0.0, None, 0.8),
            optimizer=WAYS[way],
        )
        torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("way", ["momentum", "adam", "adam, short memory", "weight decay", "all"])
def test_steps_are_those_of_torch(federation, way):
    """Full batches of one silo without privacy, in one call; torch decays weights apart from Adam, too."""
    optimizer = replace(WAYS[way], schedule="constant", warmup=0)
    task = make_task("linear", shape=federation.shape, classes=0)
    settings = {"epsilon": math.inf, "rounds": 1, "steps": 6, "batch": 1000, "lr": 0.05}
    found = vectors(experiment(federation, Local(), task=task, optimizer=optimizer, **settings))[0]
    for k, silo in enumerate(federation.silos):
        module = task.to_module(task.initial(0))
        named = {"lr": 0.05, "weight_decay": optimizer.weight_decay}
        if optimizer.optimizer == "adam":
            theirs = torch.optim.AdamW(module.parameters(), betas=(optimizer.decay, 0.999), **named)
        else:
            theirs = torch.optim.SGD(module.parameters(), momentum=optimizer.decay, **named)
        for _ in range(6):
            theirs.zero_grad()
            (module(silo.x).squeeze(-1) - silo.y).square().mean().backward()
            theirs.step()
        expected = torch.cat([p.detach().flatten() for p in module.parameters()])
        torch.testing.assert_close(found[k], expected, atol=1e-5, rtol=1e-4)


def test_settings_that_change_nothing_change_no_bit(federation):
    plain = vectors(experiment(federation, MRMTL()))
    for same in (Optimizer(momentum=0.0), Optimizer(weight_decay=0.0, schedule="constant", warmup=0)):
        assert torch.equal(vectors(experiment(federation, MRMTL(), optimizer=same)), plain)


@pytest.mark.parametrize("way", WAYS)
def test_plans_and_charges_do_not_depend_on_the_optimizer(federation, way):
    plain, other = (experiment(federation, Ditto(), **more).plan() for more in ({}, {"optimizer": WAYS[way]}))
    assert torch.equal(plain.noise(), other.noise())
    assert [s.epsilon for s in plain.silos[0]] == [s.epsilon for s in other.silos[0]]
    assert plain.counts == other.counts


def test_momentum_adds_up_the_noise_that_was_charged_for():
    """Null examples: what moves a model is noise, and after n steps it is that of momentum, not less."""
    steps, decay = 5, 0.9
    more = {"steps": steps, "optimizer": Optimizer(momentum=decay)}
    made = silent(**more)
    plan = made.plan()
    weights = [(1 - decay ** (steps - k)) / (1 - decay) for k in range(steps)]
    for k, vector in enumerate(vectors(made)[0]):
        silo = plan.silos[0][k]
        expected = LR * silo.noise / silo.work.expected * math.sqrt(sum(w * w for w in weights))
        assert float(vector.std()) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("way", ["momentum", "adam"])
def test_nothing_is_remembered_from_one_call_to_the_next(federation, way):
    """Two rounds of one method are one round, and one more from where it ended."""
    made = experiment(federation, Local(), rounds=2, optimizer=WAYS[way])
    cohort, streams = made.cohort(made.plan()), SeededStreams(made.keys)
    start = torch.zeros(1, 3, made.task.layout.size)
    once = descend(cohort, start, streams, 0, 0, rounds=2)
    twice = descend(cohort, once, streams, 1, 0, rounds=2)
    assert torch.equal(vectors(made), twice)


def test_a_schedule_multiplies_the_learning_rate_of_a_round(federation):
    made = experiment(federation, Local(), rounds=4, optimizer=Optimizer(schedule="cosine"))
    cohort, streams = made.cohort(made.plan()), SeededStreams(made.keys)
    settings = cohort.settings
    half = replace(cohort, settings=replace(settings, lr=settings.lr / 2, optimizer=Optimizer()))
    start = torch.zeros(1, 3, made.task.layout.size)
    found = descend(cohort, start, streams, 2, 0, rounds=4)
    torch.testing.assert_close(found, descend(half, start, streams, 2, 0))


def factors(rounds, **settings):
    return [round(Optimizer(**settings).factor(number, rounds), 4) for number in range(rounds)]


def test_schedules():
    assert factors(3) == [1, 1, 1]
    assert factors(4, schedule="linear") == [1, 0.75, 0.5, 0.25]
    assert factors(8, schedule="step") == [1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01]
    assert factors(6, schedule="cosine", warmup=2) == [0.5, 1.0, 1.0, 0.8536, 0.5, 0.1464]
    for schedule in ("constant", "linear", "cosine", "step"):
        assert all(factor > 0 for factor in factors(50, schedule=schedule, warmup=7))


def test_the_kernels_take_plain_steps_only(classes):
    task = task_for(classes, "cnn", channels=2)
    examples = experiment(classes, Local(), task=task).cohort(experiment(classes, Local()).plan()).examples
    examples = replace(examples, y=examples.y.long())
    for optimizer, plain in ((Optimizer(schedule="cosine"), True), (WAYS["adam"], False)):
        rule = StepRule(torch.ones(4, 1), torch.ones(4, 1), optimizer=optimizer)
        start = torch.zeros(4, task.layout.size)
        assert can_step(stages(task), examples, start, rule) is plain


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "adamw"}, "train.optimizer: unknown optimizer 'adamw'; did you mean 'adam'?"),
        ({"momentum": 1.0}, "train.momentum: expected a number from 0 to below 1, got 1.0"),
        ({"weight_decay": -1}, "train.weight_decay: expected a finite number >= 0, got -1"),
        ({"schedule": "cos"}, "train.schedule: unknown schedule 'cos'; did you mean 'cosine'?"),
        ({"warmup": 0.5}, "train.warmup: expected a whole number of rounds >= 0, got 0.5"),
    ],
)
def test_settings_that_are_refused(settings, said):
    with refused(said):
        Optimizer(**settings)


def test_more_warm_up_than_rounds_is_refused(federation):
    with refused("train.warmup: 3 rounds of warm-up leave none of 3; use fewer"):
        experiment(federation, Local(), optimizer=Optimizer(warmup=3))


@pytest.mark.parametrize(
    "method",
    [MRMTLAuto(), Dual(), Then(first=FedAvg(), second=MRMTLAuto(), share=0.5)],
    ids=lambda m: m.title,
)
def test_methods_whose_theory_needs_plain_steps_refuse_others(federation, method):
    for optimizer, keys in (
        (Optimizer("adam"), "train.optimizer"),
        (Optimizer(momentum=0.5, schedule="cosine"), "train.momentum, train.schedule"),
    ):
        with refused(f"relies on plain gradient steps of one size: leave out {keys}, or use"):
            experiment(federation, method, optimizer=optimizer)
    experiment(federation, method, optimizer=Optimizer(momentum=0.0))


def test_keys_of_a_configuration_and_of_python(tmp_path):
    text = """
[data]
silos = 2
rows = 60
[train]
rounds = 2
lr = 0.05
optimizer = "adam"
schedule = "cosine"
warmup = 1
weight_decay = 0.01
[privacy]
epsilon = 4
delta = 1e-3
[[method]]
name = "fedavg"
"""
    config = tmp_path / "adam.toml"
    config.write_text(text)
    silos = coterie.load("digits", silos=2, rows=60)
    given = {"lr": 0.05, "optimizer": "adam", "schedule": "cosine", "warmup": 1, "weight_decay": 0.01}
    result = coterie.run(silos, "fedavg", coterie.Privacy(epsilon=4, delta=1e-3), rounds=2, **given)
    assert torch.equal(result.vectors[0], coterie.run(config).vectors[0])
    config.write_text(text.replace('"adam"', '"adamw"').replace("warmup = 1", "warmup = -1"))
    with pytest.raises(coterie.Problem) as caught:
        coterie.plan(config)
    assert "train.optimizer: expected 'sgd' or 'adam', got 'adamw'" in str(caught.value)
    assert "train.warmup: expected a number >= 0, got -1" in str(caught.value)
