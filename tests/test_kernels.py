"""The compiled kernels against plain autograd, and the two ways of training against each other."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info
from torch import nn

from coterie.cohort import kernels, plain, steps
from coterie.cohort.descend import Cohort, Settings, descend
from coterie.cohort.examples import Examples
from coterie.cohort.kernels import multiply
from coterie.cohort.plain import Pace, walk
from coterie.cohort.products import of_scipy, of_torch
from coterie.cohort.sampling import Batches, Work
from coterie.cohort.stages import stages_of
from coterie.cohort.steps import can_step, shares, sum_compiled, walk_compiled
from coterie.cohort.trial import stages, summer
from coterie.models import ChannelsFirst
from coterie.streams import SeededStreams
from coterie.task import Task, make_task
from tests.gradient_modules import one_at_a_time


def image(*layers):
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv2d(1, 2, 3), *layers)


END = nn.Flatten(), nn.Linear(32, 3)
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


def random_case(task, pairs=2, examples=3):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(pairs, task.layout.size, generator=generator) / 2
    x = torch.randn(pairs, examples, *task.shape, generator=generator)
    return vectors, x, torch.randint(0, task.classes, (pairs, examples), generator=generator)


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


def test_kernels_without_a_gradient_to_compare_are_not_used():
    """With one class there is nothing to learn: whatever the kernels gave would agree."""
    task = Task(lambda: image(nn.Flatten(), nn.Linear(32, 1)), "cross-entropy", (6, 6), 1)
    assert stages_of(task) is not None
    assert stages(task) is None


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
    stages.cache_clear()
    assert stages(task) is None
    stages.cache_clear()


def silos_of(task, sizes=(9, 4, 6, 1), whole=False, **changes):
    """Silos of images, as bytes or as numbers; the runs differ in their rates."""
    generator = torch.Generator().manual_seed(1)
    shape = (len(sizes), max(sizes), *task.shape)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    y = torch.randint(0, task.classes, shape[:2], generator=generator)
    examples = Examples(
        tuple("abcd"[: len(sizes)]), sizes, x if whole else x / 255, y, 1 / 255 if whole else 1.0
    )
    work = tuple(Work(size, min(3, size), 1 + size // 2) for size in sizes)
    lr = torch.tensor([[0.1], [0.3]]).expand(2, len(sizes)).contiguous()
    free = Settings(lr, torch.full(lr.shape, math.inf), torch.zeros(lr.shape))
    starts = torch.stack([task.initial(seed) for seed in range(2)])[:, None].expand(-1, len(sizes), -1)
    return Cohort(task, examples, work, free, **changes), starts.contiguous()


@pytest.fixture
def task():
    return make_task("cnn", shape=(8, 8), classes=3, options={"channels": 2})


STREAMS = SeededStreams(((0, 0), (1, 0)))
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


def test_cores_change_nothing_and_memory_next_to_nothing(task):
    """Each pair is worked on by itself: the same bits, whoever does it; blocks only change the rounding."""
    cohort, starts = silos_of(task)
    vectors, silo = starts.flatten(0, 1), np.tile(np.arange(4), 2)
    pace = Pace(cohort.settings.lr.reshape(-1, 1), torch.full((8, 1), 3.0))
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(3):
        length = np.array([5, 2, 3, 0, 9, 1, 1, 1])
        places = [generator.integers(0, cohort.examples.sizes[k % 4], n) for k, n in enumerate(length)]
        drawn.append(Batches(np.concatenate(places), np.cumsum(length) - length, length))

    def run(cores, memory=2**24):
        before = torch.get_num_threads()
        torch.set_num_threads(cores)
        try:
            rest = cohort.examples, vectors, silo, np.full(8, 3), pace, drawn
            return walk_compiled(stages(task), *rest, memory)
        finally:
            torch.set_num_threads(before)

    once = run(1)
    each = stages(task).bytes_of_an_example
    for memory in (1, 2 * each, 4 * each, 2**24):
        alone = run(1, memory)
        torch.testing.assert_close(alone, once, atol=1e-6, rtol=1e-5)
        for cores in (2, 3):
            assert torch.equal(run(cores, memory), alone)
    assert not torch.equal(once, vectors)


def test_blocks_stay_within_the_memory(task, monkeypatch):
    """And within what is laid out for them: a block takes as many examples as it has places."""
    known, seen = stages(task), []

    def watched(*given):
        scratch, block = given[8], given[10]
        seen.append((block, 4 * len(scratch)))
        return kernels.advance(*given)

    monkeypatch.setattr(steps, "advance", watched)
    vectors, x, y = random_case(task, pairs=3, examples=20)
    expected = one_at_a_time(task, vectors, x, y).sum(1)
    for block in (1, 3, 20, 50):
        table, size = known.laid_out(block)
        assert 4 * size <= block * known.bytes_of_an_example
        ends = [
            int(row["value"]) + block * int(row["high"] * row["broad"] * row["channels"]) for row in table
        ]
        assert max(ends) <= size
        seen.clear()
        memory = block * known.bytes_of_an_example
        torch.testing.assert_close(sum_compiled(known, vectors, x, y, memory), expected, atol=1e-4, rtol=1e-4)
        assert {found for found, _ in seen} == {block}
        assert max(bytes_each for _, bytes_each in seen) <= memory
    seen.clear()
    sum_compiled(known, vectors, x, y, 2**40)
    assert max(bytes_each for _, bytes_each in seen) <= steps.NEAR


def test_products_keep_to_one_core(task, monkeypatch):
    """Also those of scipy's library, and also for a single pair, whose bits would depend on it."""
    seen = []

    def watched(*given):
        pools = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
        seen.append((torch.get_num_threads(), *pools))
        return kernels.advance(*given)

    monkeypatch.setattr(steps, "advance", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for pairs in (1, 4):
            sum_compiled(stages(task), *random_case(task, pairs))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert len(seen) > 2
    assert {count for one in seen for count in one} == {1}


def test_built_in_models_are_trained_by_the_kernels(monkeypatch):
    """Else they would be slow without anybody noticing."""
    called = []
    monkeypatch.setattr(steps, "advance", lambda *given: called.append(1) or kernels.advance(*given))
    for model, shape in (("cnn", (28, 28)), ("cnn", (3, 8, 8)), ("cnn", (8, 8, 3)), ("mlp", (28, 28))):
        cohort, starts = silos_of(make_task(model, shape=shape, classes=3))
        called.clear()
        descend(cohort, starts, STREAMS, 0, 0)
        assert called


def allowed(task, examples, vectors=None, pull=None):
    vectors = torch.zeros(4, task.layout.size) if vectors is None else vectors
    return can_step(stages(task), examples, vectors, Pace(torch.ones(4, 1), torch.ones(4, 1), pull))


@pytest.mark.parametrize("label", [-1, 3, 10**12])
def test_a_class_that_is_not_there_is_never_written_to(task, label):
    cohort, starts = silos_of(task)
    assert allowed(task, cohort.examples)
    cohort.examples.y[1, 2] = label
    assert not allowed(task, cohort.examples)
    with pytest.raises((IndexError, RuntimeError), match=r"[Tt]arget"):
        descend(cohort, starts, STREAMS, 0, 0)


def test_examples_of_other_kinds_go_the_other_way(task):
    cohort, starts = silos_of(task)
    given = cohort.examples
    double = Examples(given.names, given.sizes, given.x.double(), given.y, 1.0)
    assert not allowed(task, double)
    moved = descend(Cohort(task, double, cohort.work, cohort.settings), starts, STREAMS, 0, 0)
    torch.testing.assert_close(moved, descend(cohort, starts, STREAMS, 0, 0), atol=1e-5, rtol=1e-4)


def test_what_does_not_fit_is_never_read(task):
    """The other way refuses it, as it always did."""
    cohort, starts = silos_of(task)
    given, size = cohort.examples, task.layout.size
    for shape in ((7, 8), (9, 8), (1,)):
        other = Examples(given.names, given.sizes, torch.zeros(4, 9, *shape), given.y, 1.0)
        assert not allowed(task, other)
        with pytest.raises(RuntimeError):
            descend(Cohort(task, other, cohort.work, cohort.settings), starts, STREAMS, 0, 0)
    short = Examples(given.names, given.sizes, given.x[:, :5], given.y, 1.0)
    assert not allowed(task, short)
    for vectors in (torch.zeros(4, size).double(), torch.zeros(4, 2 * size), torch.zeros(4, size - 1)):
        assert not allowed(task, given, vectors)
        assert not allowed(task, given, pull=(vectors, torch.ones(4, 1)))
    for width, good in ((1, True), (size, True), (7, False), (0, False)):
        assert allowed(task, given, pull=(torch.zeros(4, size), torch.ones(4, width))) == good
    with pytest.raises(RuntimeError):
        descend(cohort, starts, STREAMS, 0, 0, toward=starts, strength=torch.ones(1, 1, 7))


def test_numbers_are_scaled_too(task):
    cohort, starts = silos_of(task)
    given = cohort.examples
    scaled = Examples(given.names, given.sizes, given.x * 4, given.y, 0.25)
    found = descend(Cohort(task, scaled, cohort.work, cohort.settings), starts, STREAMS, 0, 0)
    torch.testing.assert_close(found, descend(cohort, starts, STREAMS, 0, 0), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("first", [True, False], ids=["peaks of examples", "peaks of values"])
def test_a_peak_that_is_no_number(place, first):
    layers = [nn.MaxPool2d(2), nn.Conv2d(1, 2, 1)] if first else [nn.Conv2d(1, 2, 1), nn.MaxPool2d(2)]
    task = Task(lambda: nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3)), "cross-entropy", (1, 4, 4), 3)
    vectors, x, y = random_case(task)
    x[0, 0, 0][place] = math.nan
    expected = one_at_a_time(task, vectors, x, y).sum(1)
    found = sum_compiled(stages(task), vectors, x, y)
    assert torch.equal(torch.isnan(found), torch.isnan(expected))
    assert torch.isnan(found[0]).any()


@pytest.mark.parametrize("kind", [nn.AvgPool2d, nn.MaxPool2d])
def test_settings_of_one_number_in_a_tuple(kind):
    task = Task(lambda: image(kind((2,)), nn.Flatten(), nn.Linear(8, 3)), "cross-entropy", (6, 6), 3)
    case = random_case(task)
    expected = one_at_a_time(task, *case).sum(1)
    torch.testing.assert_close(sum_compiled(stages(task), *case), expected, atol=1e-4, rtol=1e-4)
    sums = summer(task)(task.layout.unflatten(case[0]), *case[1:], torch.ones(2, 3))
    torch.testing.assert_close(task.layout.flatten(sums), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "error", [OSError(27, "File too large"), EOFError("Ran out of input"), AttributeError("x")]
)
def test_a_compiler_that_does_not_work_is_told_and_done_without(monkeypatch, error):
    """A full disk, a broken file of what was compiled before, numba switched off."""

    def fail(*_):
        raise error

    task = make_task("cnn", shape=(8, 8), classes=3, options={"channels": 2})
    monkeypatch.setattr(steps, "advance", fail)
    cohort, starts = silos_of(task)
    with pytest.warns(RuntimeWarning, match="training takes the slow way"):
        moved = descend(cohort, starts, STREAMS, 0, 0)
    assert not torch.equal(moved, starts)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_none_and_with_its_silo(task, value):
    """A diverged model must not look like a good one, nor spoil the next silo that uses the same memory."""
    cohort, starts = silos_of(task)
    cohort.examples.x[1] = value
    moved = descend(cohort, starts, STREAMS, 0, 0)
    broken = ~torch.isfinite(moved).all(-1)
    assert broken.tolist() == [[False, True, False, False]] * 2


def test_huge_outputs_have_gradients(task):
    vectors, x, y = random_case(task)
    sums = sum_compiled(stages(task), 30 * vectors, 30 * x, y)
    assert torch.isfinite(sums).all()
    expected = one_at_a_time(task, 30 * vectors, 30 * x, y).sum(1)
    torch.testing.assert_close(sums, expected, atol=1e-3 * float(expected.abs().max()), rtol=1e-3)


@pytest.mark.parametrize("library", [of_torch, of_scipy])
@pytest.mark.parametrize(("turn_a", "turn_b"), [(False, False), (False, True), (True, False), (True, True)])
def test_products_of_both_libraries(library, turn_a, turn_b):
    if library() is None:
        pytest.skip("this build of torch does not show its products")
    generator = np.random.default_rng(0)
    a = generator.random((7, 5) if turn_a else (5, 7), np.float32)
    b = generator.random((4, 7) if turn_b else (7, 4), np.float32)
    expected = (a.T if turn_a else a) @ (b.T if turn_b else b)
    out = np.full((5, 4), np.nan, np.float32)
    multiply(library(), a, turn_a, b, turn_b, out, 0)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    multiply(library(), a, turn_a, b, turn_b, out, 1)
    np.testing.assert_allclose(out, 2 * expected, rtol=1e-5)


def test_training_with_the_library_of_scipy(task, monkeypatch):
    cohort, starts = silos_of(task)
    expected = descend(cohort, starts, STREAMS, 0, 0)
    monkeypatch.setattr(steps, "of_torch", lambda: None)
    torch.testing.assert_close(descend(cohort, starts, STREAMS, 0, 0), expected, atol=1e-6, rtol=1e-5)


@given(st.integers(0, 300), st.integers(1, 8))
def test_shares_hold_every_pair_once_and_get_smaller(count, cores):
    parts = shares(np.arange(count), cores)
    assert np.concatenate([*parts, np.array([], dtype=int)]).tolist() == list(range(count))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    if cores > 1 and count:
        assert sizes[0] == -(-count // (2 * cores))
        assert sizes[-1] == 1


def test_vectors_are_packed_and_unpacked(task):
    known = stages(task)
    vectors = torch.arange(2.0 * task.layout.size).reshape(2, -1)
    packed = known.packed(vectors)
    assert not torch.equal(packed, vectors)
    assert torch.equal(known.unpacked(packed), vectors)
    weight = task.layout.unflatten(vectors)["3.weight"]
    first = sum(task.layout.lengths[:2])
    assert torch.equal(packed[:, first : first + weight[0].numel()], weight.movedim(2, -1).flatten(1))


def test_kernels_compile_also_where_nothing_can_be_kept(monkeypatch):
    """Read-only installations have no place for what was compiled."""
    real = numba.njit

    def strict(**settings):
        if settings.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**settings)

    monkeypatch.setattr(numba, "njit", strict)
    assert kernels.compiled(lambda a: a + 1)(1) == 2


def test_walk_goes_by_the_kernels_or_not_with_the_same_result(task, monkeypatch):
    cohort, starts = silos_of(task)
    vectors = starts.flatten(0, 1)
    pace = Pace(torch.full((8, 1), 0.1), torch.full((8, 1), 3.0))
    drawn = Batches(np.tile([0, 0], 8), 2 * np.arange(8), np.full(8, 2))
    rest = np.tile(np.arange(4), 2), np.ones(8), pace, [drawn], plain.Room(2**20, 1, 1, 2)
    found = walk(task, cohort.examples, vectors.clone(), *rest)
    monkeypatch.setattr(plain, "stages", lambda _: None)
    expected = walk(task, cohort.examples, vectors.clone(), *rest)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("place", [0, -1], ids=["first weight", "last bias"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_a_broken_weight_spoils(task, monkeypatch, place, value):
    """All that torch says it does: a rectified NaN is a NaN, not a zero."""
    cohort, starts = silos_of(task)
    starts[:, 1, place] = value
    found = descend(cohort, starts, STREAMS, 0, 0)
    monkeypatch.setattr(plain, "stages", lambda _: None)
    expected = descend(cohort, starts, STREAMS, 0, 0)
    assert torch.equal(torch.isnan(found), torch.isnan(expected))
    assert torch.isnan(found[:, 1]).any(-1).all()
    assert torch.isfinite(found[:, [0, 2, 3]]).all()
