"""Features before the first trained layer are computed once, and change nothing but the time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.cohort.examples import stack
from coterie.cohort.features import encoded, with_features
from coterie.experiment.experiment import Experiment
from coterie.planning.training import Training
from coterie.tasks.adaptation import Adaptation
from coterie.tasks.task import Task
from tests.helpers import experiment, reference_vectors, vectors
from tests.practical_modules import CLASSES, SENTENCE, Transformer, examples
from tests.test_practical_modules import federation_of

LARGE = 2**30


class Encoder(Transformer):
    """What a transformer knows of a sentence."""

    def __init__(self, **options):
        super().__init__(**options)
        self.head = nn.Tanh()


def module(dropout=0.0, after=0.0):
    head = nn.Sequential(nn.Linear(8, 5), nn.Dropout(after), nn.ReLU(), nn.Linear(5, CLASSES))
    return nn.Sequential(Encoder(dropout=dropout), nn.LayerNorm(8), head)


def task_of(build=module, only=("2",), **options) -> Task:
    adaptation = Adaptation(only=only)
    return Task(lambda: build(**options), "cross-entropy", SENTENCE, CLASSES, ids=True, adaptation=adaptation)


@pytest.mark.parametrize(
    "method", [ct.methods.MRMTL(lam=0.5), ct.methods.IFCA(clusters=2, choosing=0.5)], ids=["mr-mtl", "ifca"]
)
@pytest.mark.parametrize("epsilon", [4.0, float("inf")])
def test_training_on_features_is_training(method, epsilon):
    """The reference engine runs the whole module on every example of every step."""
    task = task_of(after=0.3)
    made = experiment(federation_of(task), method, task=task, epsilon=epsilon, rounds=2, batch=4)
    assert encoded(task).rest.shape == (8,)
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_persons_have_features_too():
    task, person = task_of(), torch.tensor([0, 1, 1, 2, 3, 3, 3, 4])
    silos = tuple(
        replace(silo, person=person, test_person=torch.arange(4)) for silo in federation_of(task).silos
    )
    data = replace(federation_of(task), silos=silos, rows_per_person=2)
    privacy = ct.Privacy(4.0, delta=1e-3, unit="person")
    made = Experiment(data, task, ct.methods.FedAvg(), privacy, Training(rounds=2, batch=2, lr=0.2))
    made.check()
    torch.testing.assert_close(vectors(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_the_encoder_runs_once_per_example():
    task = task_of()
    seen = []
    made = experiment(federation_of(task), ct.methods.FedAvg(), task=task, rounds=3, batch=4)
    cohort = made.cohort(made.plan())
    task.module[0].register_forward_pre_hook(lambda part, given: seen.append(1))
    assert cohort.examples.x.shape == (3, 8, 8)
    assert cohort.task.layout.names == task.layout.names
    from coterie.cohort.dp_sgd import descend

    descend(cohort, task.initial(0).expand(1, 3, -1), made.streams(), 0, 0)
    assert not seen


def test_features_equal_those_of_the_module():
    task, data = task_of(), federation_of(task_of())
    raw = stack(data, "train")
    rest, made = with_features(task, raw, LARGE)
    with torch.no_grad():
        whole = task.module[1](task.module[0](raw.x[1]))
        torch.testing.assert_close(made.x[1], whole)
        x, _ = made.gather(torch.tensor([[1]]), torch.tensor([[2, 3]]))
        torch.testing.assert_close(rest.module(x[0]), task.module(raw.x[1, 2:4]))


class Mixes(nn.Module):
    """A frozen layer that subtracts the mean of its batch, which zeros behind it hide from every trial."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x):
        return x * self.scale - x.mean(0)


def test_no_example_reaches_the_features_of_another(monkeypatch):
    monkeypatch.setattr("coterie.tasks.task.check_module", lambda *given: None)
    task = Task(lambda: nn.Sequential(Mixes(), nn.Linear(4, CLASSES)), "cross-entropy", (4,), CLASSES)
    data = federation_of(task)
    _, before = with_features(task, stack(data, "train"), LARGE)
    changed = data.silos[0].x.clone()
    changed[0] += 100
    other = replace(data, silos=(replace(data.silos[0], x=changed), *data.silos[1:]))
    _, after = with_features(task, stack(other, "train"), LARGE)
    assert torch.equal(before.x[0, 1:], after.x[0, 1:])


def test_when_features_are_not_kept():
    raw = stack(federation_of(task_of()), "train")
    assert with_features(task_of(), raw, memory=3 * 8 * 8 * 4)[0].shape == (8,)
    assert with_features(task_of(), raw, memory=3 * 8 * 8 * 4 - 1)[0].shape == SENTENCE
    assert encoded(task_of(dropout=0.2)) is None  # other features in every step
    assert encoded(task_of(only=("0", "2"))) is None
    assert encoded(task_of(only=())) is None
    first_trained = Task(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 3)), "cross-entropy", (6, 4), CLASSES
    )
    assert encoded(first_trained) is None  # nothing is saved by keeping what has no parameters
    x = examples(task_of(), 2)
    assert task_of(dropout=0.2).to_module(task_of().initial(0))(x).shape == (2, CLASSES)
