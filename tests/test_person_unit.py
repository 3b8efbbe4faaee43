"""The unit 'person': all rows of one person are sampled, clipped, counted and charged together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.cohort.dual.sampled import DualRequest, clipped_together, solve_apart
from coterie.cohort.examples import stack
from coterie.cohort.gradients.clipping import clipped_sums, rows_within
from coterie.cohort.sampling import Rows
from coterie.cohort.score import bounded_total
from coterie.cohort.sgd import bytes_of_sums
from coterie.data.federation import Federation, Silo
from coterie.engines.start import SeededStart
from coterie.experiment.experiment import Experiment
from coterie.methods import IFCA, Ditto, FedAvg, Mocha
from coterie.planning.training import Training
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import make_task
from coterie.testing import check_method
from tests.helpers import every_method, reference_vectors, refused, task_for, title, vectors

PRIVACY = Privacy(epsilon=4.0, delta=1e-3, unit="person")
CNN = {"channels": 3}


def federation(rows=(1, 3, 5, 2, 1, 4), silos=2, shape=(3,), classes=2, most=3, seed=0) -> Federation:
    """Return silos in which person i has `rows[i]` rows, in mixed order."""
    generator, made = np.random.default_rng(seed), []
    for k in range(silos):
        person = torch.from_numpy(generator.permutation(np.repeat(np.arange(len(rows)), rows)))
        x = torch.from_numpy(generator.normal(size=(len(person), *shape)).astype(np.float32))
        y = torch.from_numpy(generator.integers(0, classes, len(person)))
        made.append(Silo(f"silo-{k}", x, y, x[:3], y[:3], person, torch.tensor([0, 1, 1])))
    return Federation("made up", tuple(made), tuple(map(str, range(classes))), rows_per_person=most)


def experiment(data: Federation, method=None, privacy=PRIVACY, task=None, **training) -> Experiment:
    training = {"rounds": 3, "batch": 2, "lr": 0.3} | training
    made = Experiment(data, task or task_for(data), method or FedAvg(), privacy, Training(**training))
    made.check()
    return made


@pytest.mark.parametrize("method", every_method(), ids=title)
def test_every_method_conforms(method):
    check_method(method, "person")


# One row per person: nothing but the words may change.


@pytest.mark.parametrize("epsilon", [4.0, float("inf")])
@pytest.mark.parametrize("method", [FedAvg(), IFCA(clusters=2), Ditto()], ids=title)
def test_with_one_row_per_person_it_is_the_unit_example_to_the_bit(method, epsilon):
    data = federation(rows=(1,) * 20)
    person, example = (
        experiment(data, method, Privacy(epsilon=epsilon, delta=1e-3, unit=unit))
        for unit in ("person", "example")
    )
    assert torch.equal(vectors(person), vectors(example))
    assert person.plan().silos == example.plan().silos


def test_rates_and_epsilon_are_those_of_persons():
    data = federation(rows=(4,) * 12)
    made = experiment(data)
    silo = made.plan().silos[0][0]
    assert (silo.work.size, silo.rate, silo.steps) == (12, 2 / 12, 3 * 6)
    assert silo.epsilon == pytest.approx(epsilon_of((Event("gaussian", silo.noise, 2 / 12, 18),), 1e-3))
    assert silo.epsilon <= 4.0
    assert data.sizes == (48, 48)


# The clip holds for a person, whoever they are and however many rows they have.


def batch(examples, who) -> Rows:
    """Return one row of a batch with some members of silo 0."""
    members = torch.tensor([who])
    return Rows(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), members, members >= 0)


def sums(data, task, vector, who, clip=1.0, unit="person") -> torch.Tensor:
    examples = stack(data, "train", each=data.rows_each(unit))
    return clipped_sums(task, examples, vector[None], batch(examples, who), torch.tensor([clip]), 4)[0]


TASKS = {
    "linear": ((3,), "linear", {}),
    "mlp": ((3,), "mlp", {"hidden": 5}),
    "cnn": ((6, 6), "cnn", CNN),
}


def with_rows_of(data: Federation, person: int, change) -> Federation:
    """Return the federation with all rows of one person of silo 0 changed."""
    silo = data.silos[0]
    mine = silo.person == person
    x, y = silo.x.clone(), silo.y.clone()
    x[mine], y[mine] = change(x[mine], y[mine])
    return replace(data, silos=(replace(silo, x=x, y=y), *data.silos[1:]))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("person", [0, 1])
def test_replacing_all_rows_of_a_person_moves_a_sum_by_two_clips_at_most(name, person):
    """Person 0 has one row and person 1 has 500, of which 50 are used; nulling them moves it by one clip."""
    shape, model, options = TASKS[name]
    data = federation(rows=(1, 500, 3, 2), silos=1, shape=shape, most=50)
    task = make_task(model, shape=shape, classes=2, options=options)
    vector = task.initial(3)
    attacks = [
        lambda x, y: (1e4 * x, y),  # with either label, because the model is right about one of them
        lambda x, y: (1e4 * x, 1 - y),
        lambda x, y: (1e19 * torch.sign(x), y),
        lambda x, y: (torch.full_like(x, torch.inf), y),
        lambda x, y: (torch.zeros_like(x), torch.zeros_like(y)),
    ]
    whole, without = (
        sums(data, task, vector, [0, 1, 2, 3]),
        sums(data, task, vector, [k for k in range(4) if k != person]),
    )
    assert float((whole - without).norm()) <= 1
    moved = [
        float((sums(with_rows_of(data, person, a), task, vector, [0, 1, 2, 3]) - without).norm())
        for a in attacks
    ]
    assert max(moved) <= 1
    assert max(moved) > 0.99  # the attack reaches the clip, so the test would notice a clip of single rows
    alone = sum(
        sums(data, task, vector, [k], unit="example") for k in torch.nonzero(data.silos[0].person == 1)[:50]
    )
    assert float(alone.norm()) > 2 or person == 0


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_a_person_contributes_the_clipped_mean_of_their_rows(name, most):
    """The fast sums agree with autograd, one row at a time."""
    shape, model, options = TASKS[name]
    data = federation(shape=shape, most=most)
    task = make_task(model, shape=shape, classes=2, options=options)
    vector = task.initial(1) + 0.1
    examples, clip = stack(data, "train", each=data.rows_each("person")), 0.7
    expected = torch.zeros(task.layout.size)
    for i in range(6):
        rows = examples.persons.rows[0, i][examples.persons.weight[0, i] > 0]
        assert len(rows) == min(most, (1, 3, 5, 2, 1, 4)[i])
        leaf = vector.clone().requires_grad_()
        losses = task.losses(task.layout.unflatten(leaf), data.silos[0].x[rows], data.silos[0].y[rows])
        gradient = torch.autograd.grad(losses.mean(), leaf)[0]
        expected += gradient * min(1.0, clip / float(gradient.norm()))
    found = sums(data, task, vector, list(range(6)), clip).float()
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_module_of_unknown_layers_is_grouped_too():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.scale = torch.nn.Linear(3, 4), torch.nn.Parameter(torch.ones(4))
            self.last = torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)) * self.scale)

    data = federation()
    task = make_task(Odd, shape=(3,), classes=2)
    vector = torch.randn(task.layout.size, generator=torch.Generator().manual_seed(1))
    alone = sum(sums(data, task, vector, [i], 100.0) for i in range(6))
    assert torch.allclose(sums(data, task, vector, list(range(6)), 100.0), alone, atol=1e-6)


def test_gradients_that_cancel_do_not_hide_their_rounding():
    """Two enormous rows that nearly cancel: what is added up is what was clipped."""
    data = federation(rows=(2, 1), silos=1, most=2)
    big = torch.tensor([[3e7, 1e7, 2e7], [-3e7, -1e7, -2e7]])
    attacked = with_rows_of(data, 0, lambda x, y: (big, torch.zeros_like(y)))
    task = make_task("linear", shape=(3,), classes=2)
    vector = torch.zeros(task.layout.size)
    others = sums(data, task, vector, [1])
    assert float((sums(attacked, task, vector, [0, 1]) - others).norm()) <= 1
    moves, x = np.array([[[1e30], [-1e30]]]), np.array([[[1.0, 0.3], [1.0, 0.3 + 1e-17]]])
    for scale in (1.0, 1 + 1e-15, 1 - 3e-16):
        _, total = clipped_together(moves * [[[scale], [1.0]]], x, 2, np.array([[0.5]]))
        assert np.linalg.norm(total) <= 0.5


def test_a_score_of_a_person_is_at_most_one():
    data = federation(rows=(1, 500, 3, 2), silos=1, most=50)
    task = make_task("linear", shape=(3,), classes=2)
    vector = torch.zeros(1, 1, task.layout.size)
    vector[..., -2] = 10.0  # it always says class 0
    totals = {}
    for unit in ("person", "example"):
        changed = [with_rows_of(data, 1, lambda x, y, to=to: (x, torch.full_like(y, to))) for to in (0, 1)]
        right, wrong = (
            float(bounded_total(task, stack(each, "train", each=each.rows_each(unit)), vector))
            for each in changed
        )
        totals[unit] = right - wrong
        assert right <= (4 if unit == "person" else 506)
    assert totals == {"person": 1.0, "example": 500.0}


def test_a_score_of_a_person_is_the_mean_over_their_rows():
    data = federation(rows=(4, 1), silos=1, most=4)
    silo = data.silos[0]
    y = (torch.cumsum(silo.person == 0, 0) == 1).long() * (silo.person == 0)  # one row of person 0 is wrong
    data = replace(data, silos=(replace(silo, y=y),))
    task = make_task("linear", shape=(3,), classes=2)
    vector = torch.zeros(1, 1, task.layout.size)
    vector[..., -2] = 10.0
    assert float(bounded_total(task, stack(data, "train", each=data.rows_each("person")), vector)) == 1.75


def test_persons_are_sampled_not_rows():
    """Every batch holds all rows of a person or none: with a huge learning rate, models say who was in it."""
    data = federation(rows=(3,) * 8, silos=1, shape=(8,), most=3)
    silo = data.silos[0]
    x = torch.nn.functional.one_hot(silo.person, 8).float() * (1 + torch.arange(24)[:, None] / 100)
    data = replace(data, silos=(replace(silo, x=x, y=torch.zeros(24, dtype=torch.int64)),))
    task = make_task("linear", shape=(8,), classes=2, options={})
    made = experiment(
        data, privacy=Privacy(epsilon=float("inf"), unit="person"), task=task, rounds=1, steps=1
    )
    weights = vectors(made)[0, 0][:16].reshape(2, 8)[0]
    seen = set(torch.nonzero(weights.abs() > 1e-9).flatten().tolist())
    means = torch.stack([x[silo.person == i].mean(0)[i] for i in range(8)])
    for i in seen:  # one step of size lr / expected, along the mean over all rows of the person
        assert float(weights[i]) == pytest.approx(0.3 / 2 * 0.5 * float(means[i]), rel=1e-5)


def test_memory_counts_all_rows_of_a_person():
    data = federation(most=3)
    task = make_task("cnn", shape=(6, 6), classes=2, options=CNN)
    assert rows_within(task, 2**20, 3) < rows_within(task, 2**20)
    with refused("train.memory: 8 persons with 3 rows each take"):
        rows_within(task, 1000, 3)
    assert bytes_of_sums(task)[1] > 0
    assert data.rows_each("person") == 3
    assert data.rows_each("example") is None


# Duals.


def test_duals_of_a_person_move_together_within_the_clip():
    generator = np.random.default_rng(0)
    moves, x = generator.normal(size=(2, 6, 3)), generator.normal(size=(2, 6, 4))
    clip = np.array([[0.4], [50.0]])
    shrunk, total = clipped_together(moves, x, 2, clip)
    for pair in range(2):
        expected = np.zeros((3, 4))
        for i in range(3):
            own = slice(2 * i, 2 * i + 2)
            product = moves[pair, own].T @ x[pair, own]
            factor = min(1.0, clip[pair, 0] / np.linalg.norm(product))
            expected += factor * product
            np.testing.assert_allclose(shrunk[pair, own], factor * moves[pair, own], rtol=2e-5)
        np.testing.assert_allclose(total[pair], expected, rtol=2e-5, atol=1e-12)
    moves[0, 1] = np.nan
    shrunk, _ = clipped_together(moves, x, 2, clip)
    assert not shrunk[0, :2].any()
    assert shrunk[0, 2:].all()


def test_a_person_whose_rows_change_moves_a_dual_sum_by_two_clips_at_most():
    data = replace(federation(rows=(30, 2, 1, 1), silos=1, most=30), scale=0.2)
    task = make_task("linear", shape=(3,), classes=2, loss="one-against-rest")
    privacy = Privacy(epsilon=100.0, delta=1e-3, clip=1e-2, unit="person")
    results = []
    for change in (lambda x, y: (x, y), lambda x, y: (x, 1 - y), lambda x, y: (x * torch.nan, y)):
        made = experiment(with_rows_of(data, 0, change), Mocha(), privacy, task, rounds=1, batch=4, steps=1)
        cohort = made.cohort(made.plan())
        duals, ones = SeededStart(task, [0], made.roster, 1).duals(1), torch.ones(1, 1)
        asked = DualRequest(torch.zeros(1, 1, task.layout.size), duals, ones, ones)
        sums, moved = solve_apart(cohort, asked, SeededStreams(made.keys), 0, 0)
        results.append(sums[0, 0])
        assert moved.shape[2] == 4 * 30
    assert made.work[0].rate == 1
    flipped, nulled = (float((results[0] - other).norm()) for other in results[1:])
    assert 0.99e-2 < nulled <= 1e-2
    assert 1.9e-2 < flipped <= 2e-2


def test_what_a_module_drops_differs_between_the_rows_of_a_person():
    """Both engines draw the same masks, one for each row."""

    class Dropping(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))

    data = federation()
    made = experiment(data, task=make_task(Dropping, shape=(3,), classes=2))
    assert torch.allclose(vectors(made)[0], reference_vectors(made, 0), atol=1e-5)
