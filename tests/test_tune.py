"""Fine-tuning at home: what holds a silo near the shared model, what it costs, and where it is refused."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.cohort.fisher import fisher
from coterie.cohort.imitation import divergence
from coterie.errors import Refused
from coterie.experiment.experiment import Experiment
from coterie.methods import MRMTL, FedAvg, FineTune, Local, Then, Tune
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.protocol.doors import DESCEND
from coterie.protocol.units import SILO
from coterie.testing import check_method
from tests.helpers import experiment, reference_vectors, refused, task_for, vectors
from tests.measured import reference_of

WAYS = ("vanilla", "mean", "kl", "ewc")


def after(first, how, strength=0.5, share=0.5):
    return Then(first=first, second=Tune(how=how, strength=strength), share=share)


def made_of(federation, method, epsilon=6.0, model="mlp", **more):
    options = {"hidden": 5} if model == "mlp" else {}
    privacy = Privacy(epsilon=epsilon, delta=1e-2, clip=0.5, unit="silo")
    training = Training(**{"rounds": 4, "batch": 8, "lr": 0.3} | more)
    made = Experiment(federation, task_for(federation, model, **options), method, privacy, training)
    made.check()
    return made


@pytest.mark.parametrize("how", ["vanilla", "mean"])
@pytest.mark.parametrize("unit", ["example", "silo"])
def test_it_is_sound_in_both_units(unit, how):
    check_method(Tune(how=how), unit)
    check_method(after(FedAvg(), how), unit)


@pytest.mark.parametrize("first", [FedAvg(), MRMTL(lam=0.5)])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("present", [None, Participation(0.5, "poisson")])
def test_engines_agree(classes, first, how, present):
    made = made_of(classes, after(first, how), participation=present)
    torch.testing.assert_close(vectors(made)[0], reference_of(made, 0), atol=1e-5, rtol=1e-4)


def test_engines_agree_on_imitation_inside_the_clip(classes):
    """Under the unit 'example' the divergence is part of an example's loss, so its gradient is clipped."""
    made = experiment(classes, after(FedAvg(), "kl", 3.0), clip=0.05, rounds=4)
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_imitation_costs_what_a_training_does(classes):
    plain, held = (
        experiment(classes, method).plan().silos[0] for method in (FineTune(), after(FedAvg(), "kl"))
    )
    assert [silo.noise for silo in plain] == [silo.noise for silo in held]


def test_weights_from_examples_are_refused_where_examples_are_protected(classes):
    with pytest.raises(Refused, match="'fisher' returns raw values"):
        experiment(classes, after(FedAvg(), "ewc")).plan()


@pytest.mark.parametrize("how", WAYS)
def test_without_strength_it_is_plain_fine_tuning(classes, how):
    made, plain = (
        vectors(made_of(classes, method, batch=10_000))  # whole silos: no coins
        for method in (after(FedAvg(), how, strength=0.0), FineTune())
    )
    torch.testing.assert_close(made, plain, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("how", "strength"), [("mean", 3.0), ("kl", 3.0), ("ewc", 30.0)])
def test_strength_holds_silos_near_what_they_shared(classes, how, strength):
    """Near in what they predict: of the numbers some may move freely."""

    def apart(strength):
        method = after(FedAvg(), how, strength, share=0.75)
        made = made_of(classes, method, epsilon=math.inf, rounds=8, lr=0.1, batch=10_000)
        x = torch.cat([silo.x.float() * classes.scale for silo in classes.silos])
        found = [made.task.predict(made.task.layout.unflatten(v), x).softmax(-1) for v in vectors(made)[0]]
        return float((torch.stack(found) - torch.stack(found).mean(0)).norm())

    assert apart(strength) < 0.9 * apart(0.0)


def test_it_goes_on_from_personal_models(classes):
    """After MR-MTL a silo tunes its own model, not the mean."""
    held = made_of(classes, after(MRMTL(lam=0.0), "vanilla"))
    alone = made_of(classes, Local())
    torch.testing.assert_close(vectors(held), vectors(alone), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("how", WAYS)
def test_tuning_is_free_where_whole_silos_are_protected(classes, how):
    """Only merges are charged: half of the rounds, so less noise than with all of them."""
    tuned, whole = (
        made_of(classes, method).plan().silos[0][0] for method in (after(FedAvg(), how), FedAvg())
    )
    assert (tuned.steps, whole.steps) == (2, 4)
    assert tuned.noise < whole.noise
    assert tuned.bytes_up == whole.bytes_up / 2


def test_imitation_needs_classes(federation):
    with refused("does not work with a numeric target"):
        vectors(made_of(federation, after(FedAvg(), "kl")))


def test_the_divergence_is_that_of_both_directions():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(2, 7, 4, generator=generator)
    p, q = ours.softmax(-1), theirs.softmax(-1)
    expected = ((p * (p / q).log()).sum(-1) + (q * (q / p).log()).sum(-1)) / 2
    torch.testing.assert_close(divergence(ours, theirs), expected)
    single = divergence(ours[:, :1], theirs[:, :1])
    p, q = (torch.stack([1 - s, s], -1) for s in (ours[:, 0].sigmoid(), theirs[:, 0].sigmoid()))
    expected = ((p * (p / q).log()).sum(-1) + (q * (q / p).log()).sum(-1)) / 2
    torch.testing.assert_close(single, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_squared_gradients_one_example_at_a_time(classes, model):
    made = made_of(classes, Local(), model=model)
    cohort = made.cohort(made.plan())
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(1, len(classes), made.task.layout.size, generator=generator)
    found = fisher(cohort, points)
    for k, silo in enumerate(classes.silos):
        leaf = points[0, k].clone().requires_grad_(True)
        squares = torch.zeros_like(leaf)
        for row in range(len(silo.y)):
            x, y = silo.x[row : row + 1].float() * classes.scale, silo.y[row : row + 1]
            loss = made.task.losses(made.task.layout.unflatten(leaf), x, y).sum()
            squares = squares + torch.autograd.grad(loss, leaf)[0].square()
        torch.testing.assert_close(found[0, k], squares.detach() / len(silo.y), atol=1e-6, rtol=1e-4)


def test_squared_gradients_of_a_cnn():
    from tests.measured import federation_of

    x = torch.randn(2, 6, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    federation = federation_of(x, torch.randn(2, 6, generator=torch.Generator().manual_seed(4)))
    made = made_of(federation, Local(), model="cnn")
    cohort = made.cohort(made.plan())
    start = made.task.initial(3).reshape(1, 1, -1).expand(1, 2, -1)
    leaf, squares = start[0, 0].clone().requires_grad_(True), 0
    for row in range(6):
        loss = made.task.losses(
            made.task.layout.unflatten(leaf), x[0, row : row + 1], federation.silos[0].y[row]
        )
        squares = squares + torch.autograd.grad(loss.sum(), leaf)[0].square()
    torch.testing.assert_close(fisher(cohort, start)[0, 0], squares / 6, atol=1e-6, rtol=1e-3)


def test_two_targets_are_refused(classes):
    from coterie.cohort.oracle import CohortOracle
    from coterie.protocol.streams import SeededStreams

    made = made_of(classes, Local())
    oracle = CohortOracle(made.cohort(made.plan()), SeededStreams(((0, 0),)), 0, (DESCEND,), unit=SILO)
    start = made.task.initial(0).reshape(1, 1, -1)
    with pytest.raises(Refused, match="not both"):
        oracle.descend(start, toward=start, imitate=start)
