"""The compiled kernels against plain autograd, and the two ways of training against each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.cohort import sgd as plain
from coterie.cohort.compiled import kernels
from coterie.cohort.compiled import walk as steps
from coterie.cohort.compiled.program import stages_of
from coterie.cohort.compiled.walk import sum_compiled
from coterie.cohort.derived import forget
from coterie.cohort.dp_sgd import Cohort, descend
from coterie.cohort.examples import Examples
from coterie.cohort.gradients.choose import stages, summer
from coterie.cohort.sampling import Batches
from coterie.cohort.sgd import walk
from coterie.cohort.step import StepRule
from coterie.tasks.models import ChannelsFirst
from coterie.tasks.task import Task, make_task
from tests.gradient_modules import one_at_a_time
from tests.networks import END, STREAMS, image, random_case, silos_of

PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


ORDERS = {"channels first": (2, 9, 8), "channels last": (9, 8, 2), "no channels": (9, 8)}


def sequence(order, convolution, depth, between, pool, pooling, bias):
    """A network for 9 x 8 images with layers of every kind that the kernels know."""
    front = {"channels last": ChannelsFirst(), "no channels": nn.Unflatten(1, (1, 9))}.get(
        order, nn.Identity()
    )
    first = nn.Conv2d(1 if order == "no channels" else 2, depth, **convolution, bias=bias)
    parts = [front, first, nn.ReLU(), *between, pool(**pooling), nn.Flatten()]
    with torch.no_grad():
        width = nn.Sequential(*parts)(torch.zeros(1, *ORDERS[order])).shape[1]
    return nn.Sequential(*parts, nn.Sequential(nn.Linear(width, 5, bias=bias), nn.ReLU()), nn.Linear(5, 4))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    order=st.sampled_from(sorted(ORDERS)),
    kernel=PAIR,
    stride=PAIR,
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    depth=st.sampled_from([1, 3]),
    second=st.sampled_from(["nothing", "relu", "convolution", "pooling and relu", "peaks and relu"]),
    tile=st.sampled_from([1, 2, 3, (1, 2), (3, 2)]),
    pool=st.sampled_from([nn.AvgPool2d, nn.MaxPool2d]),
    ceil=st.booleans(),
    bias=st.booleans(),
)
def test_sums_equal_autograd(order, kernel, stride, dilation, padding, depth, second, pool, tile, ceil, bias):
    convolution = {"kernel_size": kernel, "stride": stride, "dilation": dilation, "padding": padding}
    between = {
        "nothing": [],
        "relu": [nn.ReLU()],
        "convolution": [nn.Conv2d(depth, 2, 2, padding=1)],
        "pooling and relu": [nn.AvgPool2d(1), nn.ReLU(inplace=True), nn.Conv2d(depth, 1, 1)],
        "peaks and relu": [nn.MaxPool2d(2, ceil_mode=True), nn.ReLU(), nn.Conv2d(depth, 3, 2, padding=1)],
    }[second]
    pooling = {"kernel_size": tile, "ceil_mode": ceil}
    try:
        sequence(order, convolution, depth, between, pool, pooling, bias)
    except RuntimeError:  # nothing is left of the image
        return
    task = Task(
        lambda: sequence(order, convolution, depth, between, pool, pooling, bias),
        "cross-entropy",
        ORDERS[order],
        4,
    )
    found = stages_of(task)
    assert found is not None
    case = random_case(task)
    expected = one_at_a_time(task, *case).sum(1)
    for memory in (2**22, 2 * found.bytes_of_an_example):
        torch.testing.assert_close(sum_compiled(found, *case, memory), expected, atol=1e-4, rtol=1e-4)


SEAMS = {
    "one channel, flattened": (
        lambda: nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)),
        (1, 8, 8),
    ),
    "one channel, unflattened": (
        lambda: nn.Sequential(
            nn.Linear(4, 36), nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 2, 3, padding=2), nn.Flatten(), nn.Linear(128, 3)
        ),
        (4,),
    ),
    "one channel of peaks": (
        lambda: nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)),
        (1, 8, 8),
    ),
    "another image": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Unflatten(1, (1, 4, 9)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(28, 3)
        ),
        (1, 8, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEAMS)
def test_numbers_that_stay_in_order_but_change_their_shape(name):
    """One silo's examples move its own vector, and no other's through memory that both use."""
    build, shape = SEAMS[name]
    task = Task(build, "cross-entropy", shape, 3)
    assert stages(task) is not None
    vectors, x, y = random_case(task, pairs=3, examples=5)
    found = sum_compiled(stages(task), vectors, x, y)
    torch.testing.assert_close(found, one_at_a_time(task, vectors, x, y).sum(1), atol=1e-4, rtol=1e-4)
    x[0] = -x[0]
    again = sum_compiled(stages(task), vectors, x, y)
    assert torch.equal(again[1:], found[1:])
    assert not torch.equal(again[0], found[0])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_of_equal_peaks_the_first_one_counts(value):
    """As in torch: an even image has nothing but ties."""
    layers = nn.MaxPool2d(2), nn.Conv2d(2, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3)
    task = Task(lambda: image(*layers), "cross-entropy", (6, 6), 3)
    vectors, x, y = random_case(task)
    x.fill_(value)
    expected = one_at_a_time(task, vectors, x, y).sum(1)
    torch.testing.assert_close(sum_compiled(stages_of(task), vectors, x, y), expected, atol=1e-5, rtol=1e-4)


UNKNOWN = {
    "another function": (lambda: image(nn.Tanh(), *END), "cross-entropy", 3),
    "overlapping peaks": (
        lambda: image(nn.MaxPool2d(2, stride=1, padding=1), nn.Flatten(), nn.Linear(50, 3)),
        "cross-entropy",
        3,
    ),
    "overlapping tiles": (
        lambda: image(nn.AvgPool2d(1, stride=2), *END[:1], nn.Linear(8, 3)),
        "cross-entropy",
        3,
    ),
    "padded peaks": (
        lambda: image(nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(18, 3)),
        "cross-entropy",
        3,
    ),
    "dilated peaks": (
        lambda: image(nn.MaxPool2d(2, dilation=3), nn.Flatten(), nn.Linear(2, 3)),
        "cross-entropy",
        3,
    ),
    "another loss": (lambda: image(*END), "one-against-rest", 3),
    "a small model": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), "cross-entropy", 3),
    "rectified examples": (lambda: nn.Sequential(nn.ReLU(), *image(*END)), "cross-entropy", 3),
    "rows of vectors": (lambda: image(nn.Linear(4, 4), *END), "cross-entropy", 3),
    "groups": (lambda: image(nn.Conv2d(2, 2, 1, groups=2), *END), "cross-entropy", 3),
    "reflection": (
        lambda: image(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), *END),
        "cross-entropy",
        3,
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_kernels_do_not_know_goes_the_other_way(name):
    build, loss, classes = UNKNOWN[name]
    task = Task(build, loss, (6, 6), classes)
    assert name == "a small model" or stages_of(task) is None
    assert stages(task) is None
    cohort, starts = silos_of(task)
    moved = descend(cohort, starts, STREAMS, 0, 0)
    assert torch.isfinite(moved).all()
    assert not torch.equal(moved, starts)


def test_stages_that_disagree_with_autograd_are_not_used(monkeypatch):
    task = make_task("cnn", shape=(8, 8), classes=3, options={"channels": 2})
    assert stages(task) is not None
    monkeypatch.setattr(steps, "sum_compiled", lambda *given: 1.01 * sum_compiled(*given))
    forget(task)
    assert stages(task) is None


def test_kernels_without_a_gradient_to_compare_are_not_used():
    """With one class there is nothing to learn: whatever the kernels gave would agree."""
    task = Task(lambda: image(nn.Flatten(), nn.Linear(32, 1)), "cross-entropy", (6, 6), 1)
    assert stages_of(task) is not None
    assert stages(task) is None


@pytest.fixture
def task():
    return make_task("cnn", shape=(8, 8), classes=3, options={"channels": 2})


PULLS = {
    "no pull": lambda starts: {},
    "one strength": lambda starts: {"toward": starts / 2, "strength": torch.full((2, 1, 1), 0.4)},
    "a strength for each run": lambda starts: {
        "toward": starts / 2,
        "strength": torch.tensor([0.1, 2.0]).reshape(2, 1, 1),
    },
    "a strength for each coordinate": lambda starts: {
        "toward": starts / 2,
        "strength": torch.rand(starts.shape, generator=torch.Generator().manual_seed(3)),
    },
}


@pytest.mark.parametrize("pull", PULLS)
@pytest.mark.parametrize("whole", [True, False], ids=["bytes", "numbers"])
def test_both_ways_train_alike(task, monkeypatch, pull, whole):
    """Poisson batches, some of them empty; silos of different sizes, absent, or with fewer steps."""
    cohort, starts = silos_of(task, whole=whole)
    present = torch.tensor([[True, True, False, True], [True, True, True, True]])
    fewer = torch.tensor([[9, 1, 9, 9], [2, 9, 0, 9]])
    given = {"present": present, "steps": fewer, **PULLS[pull](starts)}
    before = starts.clone()
    found = descend(cohort, starts, STREAMS, 0, 0, **given)
    assert torch.equal(starts, before)
    assert torch.equal(found[0, 2], starts[0, 2])
    monkeypatch.setattr(plain, "stages", lambda _: None)
    expected = descend(cohort, starts, STREAMS, 0, 0, **given)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert float((found - starts).abs().max()) > 1e-2


def test_walk_goes_by_the_kernels_or_not_with_the_same_result(task, monkeypatch):
    cohort, starts = silos_of(task)
    vectors = starts.flatten(0, 1)
    rule = StepRule(torch.full((8, 1), 0.1), torch.full((8, 1), 3.0))
    drawn = Batches(np.tile([0, 0], 8), 2 * np.arange(8), np.full(8, 2))
    rest = np.tile(np.arange(4), 2), np.ones(8), rule, [drawn], plain.Chunking(2**20, 1, 1, 2)
    found = walk(task, cohort.examples, vectors.clone(), *rest)
    monkeypatch.setattr(plain, "stages", lambda _: None)
    expected = walk(task, cohort.examples, vectors.clone(), *rest)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_built_in_models_are_trained_by_the_kernels(monkeypatch):
    """Else they would be slow without anybody noticing."""
    called = []
    monkeypatch.setattr(steps, "advance", lambda *given: called.append(1) or kernels.advance(*given))
    for model, shape in (("cnn", (28, 28)), ("cnn", (3, 8, 8)), ("cnn", (8, 8, 3)), ("mlp", (28, 28))):
        cohort, starts = silos_of(make_task(model, shape=shape, classes=3))
        called.clear()
        descend(cohort, starts, STREAMS, 0, 0)
        assert called


def test_numbers_are_scaled_too(task):
    cohort, starts = silos_of(task)
    given = cohort.examples
    scaled = Examples(given.names, given.sizes, given.x * 4, given.y, 0.25)
    found = descend(Cohort(task, scaled, cohort.work, cohort.settings), starts, STREAMS, 0, 0)
    torch.testing.assert_close(found, descend(cohort, starts, STREAMS, 0, 0), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", [nn.AvgPool2d, nn.MaxPool2d])
def test_settings_of_one_number_in_a_tuple(kind):
    task = Task(lambda: image(kind((2,)), nn.Flatten(), nn.Linear(8, 3)), "cross-entropy", (6, 6), 3)
    case = random_case(task)
    expected = one_at_a_time(task, *case).sum(1)
    torch.testing.assert_close(sum_compiled(stages(task), *case), expected, atol=1e-4, rtol=1e-4)
    sums = summer(task)(task.layout.unflatten(case[0]), *case[1:], torch.ones(2, 3))
    torch.testing.assert_close(task.layout.flatten(sums), expected, atol=1e-4, rtol=1e-4)


def test_vectors_are_packed_and_unpacked(task):
    known = stages(task)
    vectors = torch.arange(2.0 * task.layout.size).reshape(2, -1)
    packed = known.packed(vectors)
    assert not torch.equal(packed, vectors)
    assert torch.equal(known.unpacked(packed), vectors)
    weight = task.layout.unflatten(vectors)["3.weight"]
    first = sum(task.layout.lengths[:2])
    assert torch.equal(packed[:, first : first + weight[0].numel()], weight.movedim(2, -1).flatten(1))
