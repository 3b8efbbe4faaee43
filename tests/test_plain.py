"""Training without clips: the same vectors as the slow engine, and no gradient of a single example."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie import _threads
from coterie._threads import at_once
from coterie.cohort import dp_sgd as descent
from coterie.cohort import sgd as plain
from coterie.cohort.compiled import kernels
from coterie.cohort.compiled import walk as steps
from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.examples import Examples
from coterie.cohort.gradients import choose as trial
from coterie.cohort.gradients.choose import stages, summer
from coterie.cohort.gradients.layers import Pooling, is_tiled
from coterie.cohort.sampling import Batches
from coterie.cohort.sgd import Chunking, bytes_of_sums, chunking_for
from coterie.methods import MRMTL, FedAvg
from coterie.planning.schedule import Participation
from coterie.protocol.doors import Work
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import Task, make_task
from tests.gradient_modules import MODULES, ZeroHead, one_at_a_time, setup
from tests.helpers import experiment, task_for, vectors
from tests.measured import reference_of
from tests.networks import threads
from tests.test_silo_unit import protected


@pytest.mark.parametrize("name", MODULES)
def test_weighted_sums_equal_autograd(name):
    task, starts, x, y = setup(name)
    weight = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.5, 2.0, -1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    expected = (one_at_a_time(task, starts, x, y) * weight.unsqueeze(-1)).sum(1)
    found = task.layout.flatten(summer(task)(task.layout.unflatten(starts), x, y, weight))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("kernel", [2, 3, (2, 3), (1, 4)])
def test_pooling_equals_that_of_torch(kernel, ceil, last):
    x = torch.randn(4, 3, 7, 8, generator=torch.Generator().manual_seed(0))
    x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
    module = nn.AvgPool2d(kernel, ceil_mode=ceil)
    assert is_tiled(module)
    expected, found = module(x), Pooling.apply(x, module)
    assert torch.equal(found, expected)
    error = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    slopes = (torch.autograd.grad(out, x, error)[0] for out in (expected, found))
    torch.testing.assert_close(*slopes)


def test_which_pooling_is_tiled():
    for module in (
        nn.MaxPool2d(2),
        nn.AvgPool1d(2),
        nn.AvgPool2d(3, stride=2),
        nn.AvgPool2d(2, padding=1),
        nn.AvgPool2d(2, divisor_override=3),
    ):
        assert not is_tiled(module)


def test_the_quick_sums_are_used_where_they_may_be():
    """Else the built-in models would be slow without anybody noticing."""
    for model in ("linear", "mlp", "cnn"):
        task = make_task(model, shape=(28, 28), classes=10)
        assert summer(task).__module__ == "coterie.cohort.gradients.sequential"
    assert (
        summer(Task(ZeroHead, "cross-entropy", (6,), 3)).__module__ != "coterie.cohort.gradients.sequential"
    )


@pytest.fixture
def counted(monkeypatch):
    """Count what is worked on: parts and their sizes; gradients of single examples are refused."""
    seen = []
    sums = plain._sums

    def watched(task, examples, own, silo, drawn, part, widest, keys):
        seen.append((tuple(part), int(drawn.length[part].sum())))
        return sums(task, examples, own, silo, drawn, part, widest, keys)

    def watched_kernels(*given):
        drawn, pairs = given[4], given[7]
        seen.append((tuple(pairs), int(drawn.length[pairs].sum())))
        kernels.advance(*given)

    def refuse(*_):
        raise AssertionError("gradients of single examples are made")

    monkeypatch.setattr(plain, "_sums", watched)
    monkeypatch.setattr(steps, "advance", watched_kernels)
    for module in (descent, trial):
        for name in ("clipped_sums", "rows_within", "_draw", "recorder"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, refuse)
    return seen


@pytest.mark.parametrize("method", [FedAvg(), MRMTL(lam=0.1)])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_whole_silos_train_without_gradients_of_examples(classes, counted, method, model):
    made = protected(classes, method, task=task_for(classes, model), rounds=2)
    stages(made.task)  # its trial is no training
    counted.clear()
    vectors(made)
    assert len(counted) == 2 * max(work.steps for work in made.work)


def test_clips_are_never_passed_over(classes, counted):
    """A finite clip goes to the path that clips, also without noise, also in one run of two."""
    with pytest.raises(AssertionError, match="single examples"):
        vectors(experiment(classes, FedAvg()))
    with pytest.raises(AssertionError, match="single examples"):
        vectors(experiment(classes, FedAvg(), epsilon=[4.0, math.inf]))
    assert not counted


def test_only_silos_of_a_round_are_worked_on(classes, counted):
    made = protected(classes, FedAvg(), rounds=4, participation=Participation(0.4))
    present = made.plan().present
    counted.clear()
    vectors(made)
    examples = sum(size for _, size in counted)
    work = torch.tensor([float(w.steps * w.expected) for w in made.work])
    assert 0.5 < examples / float((present[:, 0].float() @ work).sum()) < 1.5
    assert max(len(part) for part, _ in counted) <= int(present[0, 0].sum())


def tight(task, pairs, examples):
    """A chunking for so many pairs of so many examples each."""
    row, example = bytes_of_sums(task)
    return pairs * (row + examples * example)


@pytest.mark.parametrize("model", ["linear", "mlp", "cnn"])
@pytest.mark.parametrize("how", [None, Participation(0.5)], ids=["all", "half"])
def test_parts_and_threads_change_nothing(classes, monkeypatch, model, how):
    """Parts of one pair and of part of a pair, on two threads: the numbers of the slow engine."""
    task = task_for(classes, model)
    made = protected(classes, MRMTL(lam=0.3), task=task, rounds=2, participation=how)
    expected = reference_of(made, 0)
    torch.testing.assert_close(vectors(made)[0], expected, atol=1e-5, rtol=1e-4)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for pairs, examples in ((2, 8), (1, 3)):
            monkeypatch.setattr(plain, "NEAR", tight(task, pairs, examples))
            torch.testing.assert_close(vectors(made)[0], expected, atol=1e-5, rtol=1e-4)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["group norm", "residual", "tokens", "scalar and frozen"])
def test_modules_that_are_no_sequence(name):
    """Sums of a module that goes through vmap: Poisson batches, silos that differ, one step at a time."""
    task, starts, _, _ = setup(name)
    generator = torch.Generator().manual_seed(1)
    sizes = (9, 4, 6)
    x = torch.rand(3, 9, *task.shape, generator=generator)
    y = torch.randint(0, 3, (3, 9), generator=generator)
    examples = Examples(("a", "b", "c"), sizes, x, y, 1.0)
    work = tuple(Work(size, min(3, size), 3) for size in sizes)
    free = Settings(torch.full((1, 3), 0.1), torch.full((1, 3), math.inf), torch.zeros(1, 3))
    wide = Settings(torch.full((1, 3), 0.1), torch.full((1, 3), 1e30), torch.zeros(1, 3))
    streams = SeededStreams(((0, 0),))
    found = descend(Cohort(task, examples, work, free), starts[None], streams, 0, 0)
    expected = descend(Cohort(task, examples, work, wide), starts[None], streams, 0, 0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert not torch.equal(found, starts[None])


def test_an_example_that_breaks_gradients_breaks_only_batches_it_is_in():
    """What pads a batch is an example of its own, and an empty batch takes none."""
    task = Task(lambda: nn.Linear(2, 1), "squared", (2,))
    x, y = torch.ones(2, 6, 2), torch.zeros(2, 6)
    x[:, 0] = math.inf
    examples = Examples(("a", "b"), (6, 6), x, y, 1.0)
    lengths = np.array([4, 1])
    for taken, broken in (([1, 2, 3, 4, 5], [False, False]), ([0, 1, 2, 3, 5], [True, False])):
        drawn = Batches(np.array(taken), np.array([0, 4]), lengths)
        sums = plain._sums(task, examples, torch.ones(2, 3), np.arange(2), drawn, np.arange(2), 9)
        assert (~torch.isfinite(task.layout.flatten(sums)).all(1)).tolist() == broken
    nobody = Batches(np.array([], dtype=np.int64), np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64))
    sums = plain._sums(task, examples, torch.ones(2, 3), np.arange(2), nobody, np.arange(2), 9)
    assert not sums


def test_an_empty_batch_still_pulls():
    task = Task(lambda: nn.Linear(1, 1, bias=False), "squared", (1,))
    examples = Examples(("a",), (50,), torch.ones(1, 50, 1), torch.zeros(1, 50), 1.0)
    settings = Settings(torch.full((1, 1), 0.5), torch.full((1, 1), math.inf), torch.zeros(1, 1))
    cohort = Cohort(task, examples, (Work(50, 1, 1),), settings)
    start, toward = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    streams = SeededStreams(((0, 0),))
    for round_ in range(40):
        moved = descend(cohort, start, streams, round_, 0, toward, torch.full((1, 1, 1), 0.2))
        assert float(moved) == pytest.approx(0.1)
    assert not start.any()


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40),
    st.integers(1, 5000),
    st.integers(1, 300),
    st.integers(1, 50),
    st.integers(1, 4),
)
def test_parts_hold_every_pair_once_and_fit(lengths, part, row, example, cores):
    chunking = Chunking(part, row, example, cores)
    length = np.array(lengths)
    pairs = np.flatnonzero(np.arange(len(lengths)) % 3 != 1)
    parts = chunking.cut(length, pairs)
    assert sorted(np.concatenate([*parts, np.array([], dtype=int)]).tolist()) == pairs.tolist()
    for one in parts:
        longest = int(length[one].max())
        assert longest == length[one[0]]
        if longest:
            assert length[one].min() > 0
            assert len(one) == 1 or len(one) * (row + longest * example) <= part
    assert chunking.widest == 1 or row + chunking.widest * example <= part


def test_memory_bounds_what_threads_take_together():
    task = make_task("cnn", shape=(8, 8), classes=3, options={"channels": 2})
    row, example = bytes_of_sums(task)
    many = np.full(1000, 500.0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for memory in (row + example, 3 * (row + example), 2**24, 2**30):
            chunking = chunking_for(task, memory, many)
            assert chunking.cores * chunking.part_bytes <= memory
            assert chunking.pair_bytes + chunking.widest * chunking.example_bytes <= chunking.part_bytes
        assert chunking_for(task, 2**30, many).cores == 2
        assert chunking_for(task, 2**30, many[:3]).cores == 1
        assert chunking_for(task, 2**30, np.ones(10)).cores == 1
    finally:
        torch.set_num_threads(before)


def seen_elsewhere() -> int:
    """Torch's number of threads in a thread that starts now."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_threads_give_the_cores_back_also_after_an_error():
    """And other threads never see a change."""

    def fail():
        with at_once(2) as each:
            assert torch.get_num_threads() == 1
            assert set(each(lambda _: torch.get_num_threads(), range(4))) == {1}
            assert seen_elsewhere() == 2
            list(each(lambda n: 1 // n, [1, 0]))

    with threads(2):
        with pytest.raises(ZeroDivisionError):
            fail()
        assert (torch.get_num_threads(), seen_elsewhere()) == (2, 2)


def test_threads_that_cannot_be_limited_one_by_one_are_not_started(monkeypatch):
    monkeypatch.setattr(_threads, "_openmp", list)
    with at_once(2) as each:
        assert each is map
