"""Automatic learning rates follow from public facts; a pull never overshoots."""

from __future__ import annotations

import math

import pytest
import torch

import coterie
from coterie.cohort.step import damped
from coterie.experiment.learning_rate import ADAM, DISTANCE, LARGEST, UNCLIPPED, numbers_of
from coterie.methods import MRMTL, Ditto, FedAvg, Local, Mocha, MRMTLAuto
from coterie.protocol.optimizer import Optimizer
from tests.helpers import experiment, reference_vectors, refused, vectors


def rates(made):
    plan = made.plan()
    return plan, made.settings(plan).lr


@pytest.mark.parametrize("clip", [0.3, 1.0, 4.0])
def test_it_is_the_rate_of_projected_sgd(classes, clip):
    made = experiment(classes, Local(), lr="auto", clip=clip, epsilon=1.0, rounds=7)
    plan, found = rates(made)
    for k, silo in enumerate(plan.silos[0]):
        noisy = [clip**2, made.task.layout.size * (silo.noise * clip / silo.work.expected) ** 2]
        length, steps = math.sqrt(sum(noisy)), 7 * silo.work.steps
        expected = min(DISTANCE["classes"] / (length * math.sqrt(steps)), LARGEST / clip)
        assert float(found[0, k]) == pytest.approx(expected, rel=1e-5)
        assert float(found[0, k]) < LARGEST / clip


def test_it_is_bounded_where_there_is_hardly_any_noise(classes):
    made = experiment(classes, Local(), lr="auto", epsilon=1000.0, rounds=1, steps=1, clip=2.0)
    assert rates(made)[1].tolist() == [[LARGEST / 2.0] * 4]


def test_numbers_and_training_without_clips_have_their_own(classes, federation):
    private = experiment(federation, Local(), lr="auto")
    same = experiment(classes, Local(), lr="auto")
    assert float(rates(private)[1].max()) < float(rates(same)[1].min()) / 10
    for data, kind in ((classes, "classes"), (federation, "numbers")):
        for epsilon in (math.inf, {"each": [math.inf, 2.0]}):
            found = rates(experiment(data, Local(), lr="auto", epsilon=epsilon))[1]
            assert float(found[0, 0]) == pytest.approx(UNCLIPPED[kind])
        adam = experiment(data, Local(), lr="auto", optimizer=Optimizer("adam"))
        assert rates(adam)[1].unique().tolist() == pytest.approx([ADAM[kind]])


def test_momentum_makes_steps_longer_so_the_rate_is_smaller(classes):
    plain, heavy = (
        rates(experiment(classes, Local(), lr="auto", optimizer=Optimizer(momentum=decay)))[1]
        for decay in (0.0, 0.9)
    )
    torch.testing.assert_close(heavy, 0.1 * plain)


def test_it_depends_on_public_facts_only(classes):
    """Other examples of the same sizes have the same rates."""
    blank = classes.without_examples()
    found = [rates(experiment(data, Local(), lr="auto"))[1] for data in (classes, blank)]
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "method", [FedAvg(), MRMTL(lam=20.0), Ditto(lam=1.0), Mocha(lam=1.0), MRMTLAuto()], ids=lambda m: m.name
)
@pytest.mark.parametrize("lr", ["auto", 0.4])
def test_both_engines_agree(federation, method, lr):
    """With lam 20, lr x lam is far above 1: both engines then take the proximal step."""
    made = experiment(federation, method, lr=lr, epsilon={"each": [2.0, 5.0]})
    found = vectors(made)
    torch.testing.assert_close(found[0], reference_vectors(made, 0), atol=1e-4, rtol=1e-3)
    assert float(found.abs().max()) < 100


def test_a_pull_balances_the_gradient_and_never_overshoots():
    lr, weak, strong = torch.tensor([[0.5]]), torch.tensor([[1.9]]), torch.tensor([[40.0]])
    assert torch.equal(damped(lr, weak), lr)  # learning rates that were given keep their steps
    assert float(damped(lr, strong)) == pytest.approx(0.5 / 21)
    assert float(damped(lr, strong) * strong) < 1
    assert float(damped(lr, weak, torch.tensor([[True]]))) == pytest.approx(0.5 / 1.95)
    # w minimises gradient (w - v) + |w - v|^2 / (2 lr) + strength |w - t|^2 / 2
    v, t, gradient = 3.0, -1.0, 0.7
    rate = float(damped(lr, strong))
    step = v - rate * (gradient + 40 * (v - t))
    assert gradient + (step - v) / 0.5 + 40 * (step - t) == pytest.approx(0, abs=1e-4)


def test_a_strong_pull_used_to_diverge(federation):
    for epsilon in (4.0, math.inf):
        found = vectors(experiment(federation, MRMTL(lam=50.0), lr=0.2, rounds=30, epsilon=epsilon))
        assert float(found.abs().max()) < 5


def test_the_default_and_lists_of_rates(tmp_path):
    silos = coterie.load("digits", silos=3, rows=300)
    privacy = coterie.Privacy(epsilon=4, delta=1e-3)
    listed = coterie.run(silos, "local", privacy, rounds=2, lr=[0.1, "auto"])
    assert list(dict.fromkeys(listed.to_frame()["lr"])) == [0.1, "auto"]
    listed.save(tmp_path / "saved")
    plain = coterie.plan(silos, "local", privacy, rounds=2)
    assert plain.study.config.train.lr == "auto"
    (note,) = [note for note in plain.notes if "train.lr" in note]
    assert note.startswith("train.lr = 'auto' is ")
    assert note.endswith(", from clip, noise, batch, steps and the model's size")
    assert not [
        note for note in coterie.plan(silos, "local", privacy, rounds=2, lr=0.1).notes if "train.lr" in note
    ]


def test_a_number_without_public_bounds_is_noted(federation):
    (note,) = [note for note in experiment(federation, Local(), lr="auto").notes if "train.lr" in note]
    assert note.startswith("train.lr: 'auto' takes a number to predict to lie between 0 and 1")
    assert not [note for note in experiment(federation, Local(), lr=0.1).notes if "train.lr" in note]


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "fast", {"a": "auto", "default": 1}])
def test_rates_that_are_none(value):
    with refused("train.lr: "):
        numbers_of(value, ("a", "b"))
