"""The compiled kernels at their limits: memory, threads, what does not fit and what is no number."""

from __future__ import annotations

import math
import time

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

from coterie._threads import torch_symbol
from coterie.cohort import process
from coterie.cohort import sgd as plain
from coterie.cohort.compiled import blas, kernels
from coterie.cohort.compiled import walk as steps
from coterie.cohort.compiled.blas import of_scipy, of_torch
from coterie.cohort.compiled.kernels import multiply
from coterie.cohort.compiled.walk import can_step, shares, sum_compiled, walk_compiled
from coterie.cohort.derived import forget
from coterie.cohort.dp_sgd import Cohort, descend
from coterie.cohort.examples import Examples
from coterie.cohort.gradients.choose import stages
from coterie.cohort.process import tune_process
from coterie.cohort.sampling import Batches
from coterie.cohort.step import StepRule
from coterie.tasks.task import Task, make_task
from tests.gradient_modules import one_at_a_time
from tests.networks import STREAMS, random_case, silos_of, threads


@pytest.fixture
def task():
    return make_task("cnn", shape=(8, 8), classes=3, options={"channels": 2})


def test_cores_change_nothing_and_memory_next_to_nothing(task):
    """Each pair is worked on by itself: the same bits, whoever does it; blocks only change the rounding."""
    cohort, starts = silos_of(task)
    vectors, silo = starts.flatten(0, 1), np.tile(np.arange(4), 2)
    rule = StepRule(cohort.settings.lr.reshape(-1, 1), torch.full((8, 1), 3.0))
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(3):
        length = np.array([5, 2, 3, 0, 9, 1, 1, 1])
        places = [generator.integers(0, cohort.examples.sizes[k % 4], n) for k, n in enumerate(length)]
        drawn.append(Batches(np.concatenate(places), np.cumsum(length) - length, length))

    def run(cores, memory=2**24):
        with threads(cores):
            rest = cohort.examples, vectors, silo, np.full(8, 3), rule, drawn
            return walk_compiled(stages(task), *rest, memory)

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
        seen.append((block, scratch.ctypes.data, 4 * len(scratch)))
        time.sleep(0.01)  # so that others have to take other memory
        return kernels.advance(*given)

    monkeypatch.setattr(steps, "advance", watched)
    vectors, x, y = random_case(task, pairs=6, examples=20)
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
        with threads(3):
            found = sum_compiled(known, vectors, x, y, memory)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        assert {used for used, _, _ in seen} == {block}
        assert sum({place: taken for _, place, taken in seen}.values()) <= memory
    seen.clear()
    with threads(3):
        sum_compiled(known, vectors, x, y, 2**40)
    assert max(taken for _, _, taken in seen) <= steps.NEAR
    assert len({place for _, place, _ in seen}) == 3


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_products_keep_to_one_core(task, monkeypatch):
    """Also for a single pair, whose bits would depend on it; the numbers of the process stay as they are."""
    seen, products = [], torch_symbol("MKL_Get_Max_Threads") or torch.get_num_threads

    def watched(*given):
        seen.append((torch.get_num_threads(), products()))
        assert blas_threads() == {2}
        return kernels.advance(*given)

    monkeypatch.setattr(steps, "advance", watched)
    with threads(2), threadpool_limits(2, "blas"):
        for pairs in (1, 4):
            sum_compiled(stages(task), *random_case(task, pairs))
        assert (torch.get_num_threads(), products(), blas_threads()) == (2, 2, {2})
    assert len(seen) > 2
    assert set(seen) == {(1, 1)}


def allowed(task, examples, vectors=None, pull=None):
    vectors = torch.zeros(4, task.layout.size) if vectors is None else vectors
    return can_step(stages(task), examples, vectors, StepRule(torch.ones(4, 1), torch.ones(4, 1), pull))


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


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("first", [True, False], ids=["peaks of examples", "peaks of values"])
@pytest.mark.parametrize("tiles", [1, 2])
def test_a_peak_that_is_no_number(place, first, tiles):
    layers = [nn.MaxPool2d(2), nn.Conv2d(1, 2, 1)] if first else [nn.Conv2d(1, 2, 1), nn.MaxPool2d(2)]
    side, width = 2 * tiles, 2 * tiles**2
    task = Task(
        lambda: nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3)), "cross-entropy", (1, side, side), 3
    )
    vectors, x, y = random_case(task)
    x[0, 0, 0][place] = math.nan
    expected = one_at_a_time(task, vectors, x, y).sum(1)
    found = sum_compiled(stages(task), vectors, x, y)
    assert torch.equal(torch.isnan(found), torch.isnan(expected))
    assert torch.isnan(found[0]).any()


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
    with pytest.warns(RuntimeWarning, match="so training uses slower code"):
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
    monkeypatch.setattr(blas, "of_torch", lambda: None)
    with threadpool_limits(1, "blas"):
        assert blas.one_core_sgemm() == of_scipy()
        torch.testing.assert_close(descend(cohort, starts, STREAMS, 0, 0), expected, atol=1e-6, rtol=1e-5)


def test_the_library_of_scipy_is_left_alone_while_it_uses_several_cores(task, monkeypatch):
    """Its number of threads is one for the whole process: to limit it is up to the owner of the process."""
    cohort, starts = silos_of(task)
    expected = descend(cohort, starts, STREAMS, 0, 0)
    monkeypatch.setattr(blas, "of_torch", lambda: None)
    with threadpool_limits(2, "blas"):
        forget(task)
        assert stages(task) is None
        torch.testing.assert_close(descend(cohort, starts, STREAMS, 0, 0), expected, atol=1e-5, rtol=1e-4)
        monkeypatch.setattr(process.sys, "platform", "none")  # the settings of memory stay with this process
        tune_process()
        assert blas_threads() == {1}
        forget(task)
        assert stages(task) is not None


@given(st.integers(0, 300), st.integers(1, 8))
def test_shares_hold_every_pair_once_and_get_smaller(count, cores):
    parts = shares(np.arange(count), cores)
    assert np.concatenate([*parts, np.array([], dtype=int)]).tolist() == list(range(count))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    if cores > 1 and count:
        assert sizes[0] == -(-count // (2 * cores))
        assert sizes[-1] == 1


def test_kernels_compile_also_where_nothing_can_be_kept(monkeypatch):
    """Read-only installations have no place for what was compiled."""
    real = numba.njit

    def strict(**settings):
        if settings.pop("cache", False):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**settings)

    monkeypatch.setattr(numba, "njit", strict)
    assert kernels.compiled(lambda a: a + 1)(1) == 2


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
