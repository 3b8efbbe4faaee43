"""Models are saved whole: what is not trained, too; and used on new rows."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from coterie.cohort.imitation import imitating
from coterie.errors import Problem
from coterie.tasks.layout import tensors_of, tied_names
from coterie.tasks.task import Task, make_task
from tests.frozen_modules import MODULES, FrozenProjection, NumpyFrozen, SharedMemory, Tied


def task_of(name: str) -> Task:
    return make_task(MODULES[name], shape=(8, 8), classes=10)


def vector_of(task: Task) -> torch.Tensor:
    return torch.randn(task.layout.size, generator=torch.Generator().manual_seed(3)) / 4


X = torch.rand(50, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_the_frozen_parts_it_was_trained_with(name):
    task, vector = task_of(name), vector_of(task_of(name))
    trained = task.predict(task.layout.unflatten(vector), X)
    module = task.to_module(vector)
    torch.testing.assert_close(module(X), trained, rtol=0, atol=0)
    torch.manual_seed(99)
    torch.testing.assert_close(task.to_module(vector)(X), trained, rtol=0, atol=0)
    assert {k: v.requires_grad for k, v in tensors_of(module).items()} == {
        k: v.requires_grad for k, v in tensors_of(task.module).items()
    }
    with torch.no_grad():
        for tensor in tensors_of(module).values():
            tensor.zero_()
    torch.testing.assert_close(task.to_module(vector)(X), trained, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODULES)
def test_frozen_parts_are_the_same_in_every_process(name):
    """A resumed or repeated training goes on with the frozen numbers that it began with."""
    code = f"""
import torch, hashlib
from tests.test_saved_models import task_of, tensors_of
torch.rand(7)
for name, tensor in sorted(tensors_of(task_of({name!r}).module).items()):
    print(name, hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest())
"""
    seen = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(2)]
    assert seen[0].stdout, seen[0].stderr
    assert seen[0].stdout == seen[1].stdout


def test_the_frozen_parts_of_all_tasks_of_a_module_agree():
    first, second = (make_task(FrozenProjection, shape=(8, 8), classes=10) for _ in range(2))
    assert torch.equal(first.module.project.weight, second.module.project.weight)
    assert imitating(first).module is first.module


def test_seeds_reach_what_is_trained_and_nothing_else():
    task = task_of("frozen")
    before = task.module.project.weight.clone()
    assert not torch.equal(task.initial(1), task.initial(2))
    assert torch.equal(task.module.project.weight, before)


def test_frozen_parts_that_no_seed_reaches_are_refused():
    with pytest.raises(Problem, match=r"'project\.weight' is not trained and differs each time the module"):
        _ = make_task(NumpyFrozen, shape=(8, 8), classes=10).module


class Sparse(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.last = nn.Linear(4, outputs)
        self.register_buffer("links", torch.eye(4).to_sparse())

    def forward(self, x):
        return self.last(x)


def test_what_cannot_be_saved_is_refused_before_training():
    with pytest.raises(Problem, match="'links' cannot be saved: use a plain dense tensor"):
        _ = make_task(Sparse, shape=(4,), classes=3).module


def test_tied_tensors_are_found_under_all_their_names():
    assert tied_names(Tied()) == {"decode.weight": "encode.weight", "far.weight": "near.weight"}
    assert tied_names(SharedMemory()) == {}
    module = task_of("tied").to_module(vector_of(task_of("tied")))
    assert module.decode.weight is module.encode.weight
    assert module.far.weight is module.near.weight
    assert not module.near.weight.requires_grad


def network(outputs, width=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, outputs))


def test_a_model_is_a_name_a_function_a_class_or_a_module():
    def size(model, **options):
        return make_task(model, shape=(8, 8), classes=10, options=options).layout.size

    assert size("linear") == 650
    assert size(network, width=3) == size("tests.test_saved_models:network", width=3) == 3 * 65 + 40
    assert size(FrozenProjection, width=3) == 40
    assert size(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))) == 650
    with pytest.raises(
        Problem, match=r"model must be a name, a function, a class or a torch\.nn\.Module, got 3"
    ):
        size(3)
    with pytest.raises(Problem, match=r"model\.width: 'tests\.frozen_modules:Tied' has no such setting"):
        size(Tied, width=3)
    with pytest.raises(
        Problem, match=r"model\.width: 'torch\.nn\.modules\.linear:Linear' has no such setting"
    ):
        size(nn.Linear(64, 10), width=3)


def test_a_module_that_is_given_is_where_training_starts():
    given = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    start = given[1].weight.detach().clone()
    task = make_task(given, shape=(8, 8), classes=10)
    with torch.no_grad():
        given[1].weight.zero_()
    for seed in range(2):
        assert torch.equal(task.layout.unflatten(task.initial(seed))["1.weight"], start)
