"""The door of dual coordinates: the best moves, what is released, and attacks on its guarantee."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coterie.cohort.dp_sgd import Cohort, Settings
from coterie.cohort.dual.linear import linear_shape, points_of
from coterie.cohort.dual.sampled import DualRequest, best_move, clipped_moves, solve_apart
from coterie.cohort.dual.sdca import solve_in_turn
from coterie.cohort.examples import Examples
from coterie.cohort.sampling import coins
from coterie.engines.reference_duals import slow_move
from coterie.protocol.doors import Work
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import make_task
from tests.helpers import refused

LOSSES = ("squared", "hinge", "squared-hinge", "one-against-rest")
SIZES, FEATURES = (12, 7, 9), 4
STREAMS = SeededStreams(((0, "run"),))


def cohort(loss="hinge", clip=0.3, noise=0.0, rate=0.4, steps=1, seed=0, bias=False, long=1.0, memory=2**30):
    """Three silos of random examples."""
    generator = torch.Generator().manual_seed(seed)
    x = long * torch.randn(3, max(SIZES), FEATURES, generator=generator) / 4
    classes = {"squared": 0, "one-against-rest": 3}.get(loss, 2)
    y = torch.randint(0, max(classes, 2), x.shape[:2], generator=generator)
    for k, size in enumerate(SIZES):
        x[k, size:] = 0
    examples = Examples(("a", "b", "c"), SIZES, x, y if classes else y.float() - 0.4, 1.0)
    task = make_task("linear", shape=(FEATURES,), classes=classes, loss=loss, options={"bias": bias})
    work = tuple(Work(size, max(1, round(rate * size)), steps) for size in SIZES)
    settings = Settings(torch.ones(1, 3), torch.full((1, 3), clip), torch.full((1, 3), noise))
    return Cohort(task, examples, work, settings, memory)


def dual_request(made: Cohort, seed=1, **changes) -> DualRequest:
    generator = torch.Generator().manual_seed(seed)
    models = torch.randn(1, 3, made.task.layout.size, generator=generator)
    duals = torch.zeros(1, 3, max(SIZES), made.task.outputs)
    return replace(DualRequest(models, duals, torch.tensor([[0.7, 1.3, 0.2]]), torch.ones(1, 3)), **changes)


@given(
    st.sampled_from(LOSSES),
    st.floats(-5, 5),
    st.floats(0, 1),
    st.sampled_from([-1.0, 1.0]),
    st.floats(0.01, 10),
)
def test_best_move_is_the_one_found_by_search(loss, score, size, target, curvature):
    dual = size * target  # where the conjugate is finite
    fast = best_move(loss, *(np.array(v) for v in (score, dual, target, curvature)))
    assert float(fast) == pytest.approx(slow_move(loss, score, dual, target, curvature), abs=1e-6)


def with_null(made: Cohort, silo: int, row: int) -> Cohort:
    """The same cohort in which one example adds nothing."""
    x = made.examples.x.clone()
    x[silo, row] = 0
    return replace(made, examples=replace(made.examples, x=x))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("long", [1.0, 1e4])
def test_neighbours_differ_by_at_most_the_clip_in_every_round(loss, long):
    """The attack: two data sets that differ in one example, everything released being equal.

    Duals are kept over twelve rounds. In each, the sums differ by at most the clip, by nothing if the
    example is not in the sample, and all other duals stay equal.
    """
    made = cohort(loss, clip=0.05, long=long)
    other = with_null(made, 0, 5)
    duals = [dual_request(made).duals] * 2
    largest, sampled = 0.0, 0
    for number in range(12):
        hit = coins(STREAMS.dice(0, "a", number, 0), made.work[0], 1)[0, 5]
        question = dual_request(made, seed=number)
        (one, duals[0]), (two, duals[1]) = (
            solve_apart(each, replace(question, duals=kept), STREAMS, number, 0)
            for each, kept in zip((made, other), duals, strict=True)
        )
        apart = float((one - two).double().norm(dim=-1)[0, 0])
        assert apart <= 0.05 * (1 + 1e-4)
        assert hit or apart == 0
        assert torch.equal(one[:, 1:], two[:, 1:])
        rest = [row for row in range(SIZES[0]) if row != 5]
        assert torch.equal(duals[0][:, 0, rest], duals[1][:, 0, rest])
        largest, sampled = max(largest, apart), sampled + int(hit)
    assert 0 < sampled < 12
    assert largest > 0.0499, "the attack must come close, or it proves nothing"


def test_who_else_is_in_a_sample_does_not_round_an_example_otherwise():
    """A large silo, many features: with and without one example, all other duals are equal to the bit."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 400, 301, generator=generator) / 20
    task = make_task("linear", shape=(301,), classes=2, loss="hinge", options={"bias": False})
    examples = Examples(("a",), (400,), x, torch.randint(0, 2, (1, 400), generator=generator), 1.0)
    settings = Settings(*(torch.full((1, 1), value) for value in (1.0, 0.01, 0.0)))
    made = Cohort(task, examples, (Work(400, 100, 1),), settings)
    one = torch.ones(1, 1)
    found = []
    for each in (made, with_null(made, 0, 7)):
        duals, sums = torch.zeros(1, 1, 400, 1), []
        for number in range(6):
            model = torch.randn(1, 1, 301, generator=torch.Generator().manual_seed(number))
            sent, duals = solve_apart(each, DualRequest(model, duals, one, one), STREAMS, number, 0)
            sums.append(sent)
        found.append((duals, torch.stack(sums)))
    rest = [row for row in range(400) if row != 7]
    assert torch.equal(found[0][0][:, :, rest], found[1][0][:, :, rest])
    assert float((found[0][1] - found[1][1]).double().norm(dim=-1).max()) <= 0.01 * (1 + 1e-4)


def test_an_example_that_sees_others_would_break_it():
    """Moves in turn are not bounded by an example's clip: the attack above finds that."""
    made = cohort("squared", clip=10.0, rate=1.0)
    other = with_null(made, 0, 0)
    one, two = (solve_in_turn(each, dual_request(made), STREAMS, 0, 0)[1] for each in (made, other))
    assert not torch.equal(one[:, 0, 1:], two[:, 0, 1:])


@pytest.mark.parametrize("loss", LOSSES)
def test_an_upload_lies_within_the_clip_whatever_a_silo_holds(loss):
    for long in (1.0, 1e3):
        made = cohort(loss, clip=0.2, rate=1.0, long=long)
        sums, duals = solve_in_turn(made, dual_request(made), STREAMS, 0, 0)
        assert (sums.double().norm(dim=-1) <= 0.2 * (1 + 1e-6)).all()
        assert torch.isfinite(duals).all()


def test_a_clipped_sum_belongs_to_the_duals_that_are_kept():
    for solve in (solve_apart, solve_in_turn):
        made = cohort("squared", clip=0.07, rate=1.0)
        sums, duals = solve(made, dual_request(made), STREAMS, 0, 0)
        x = torch.from_numpy(points_of(made.examples, made.task).x).reshape(3, max(SIZES), FEATURES)
        torch.testing.assert_close(
            sums[0], torch.einsum("sn,snf->sf", duals[0, ..., 0], x), atol=1e-6, rtol=1e-4
        )


@pytest.mark.parametrize(("solve", "sensitivity"), [(solve_apart, 1), (solve_in_turn, 2)])
def test_noise_has_the_deviation_that_is_charged(solve, sensitivity):
    """Over 300 calls: a Kolmogorov-Smirnov test accepts sigma, and rejects 2/3 and 3/2 of it."""
    found = []
    for number in range(300):
        quiet, noisy = (cohort(clip=0.3, noise=z) for z in (0.0, 2.0))
        one, two = (solve(made, dual_request(quiet), STREAMS, number, 0)[0] for made in (quiet, noisy))
        found.append((two - one).flatten() / (sensitivity * 2.0 * 0.3))
    drawn = torch.cat(found).numpy()
    assert stats.kstest(drawn, "norm").pvalue > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(drawn * wrong, "norm").pvalue < 1e-6
    assert len(np.unique(drawn)) == len(drawn)


def test_every_step_is_noised_and_the_next_one_sees_the_noise():
    made = cohort(clip=0.3, noise=3.0, steps=4, rate=0.01)
    quiet = replace(made, settings=replace(made.settings, noise=torch.zeros(1, 3)))
    question = dual_request(made)
    noisy, _ = solve_apart(made, question, STREAMS, 0, 0)
    plain, _ = solve_apart(quiet, question, STREAMS, 0, 0)
    assert float((noisy - plain).std()) > 0.3 * 3.0  # of four draws: twice that of one


def test_silos_that_are_away_move_nothing_and_send_nothing():
    for solve in (solve_apart, solve_in_turn):
        made = cohort(noise=1.0, rate=1.0)
        present = torch.tensor([[True, False, True]])
        sums, duals = solve(made, dual_request(made, present=present), STREAMS, 0, 0)
        whole, _ = solve(made, dual_request(made), STREAMS, 0, 0)
        assert not sums[:, 1].any()
        assert not duals[:, 1].any()
        torch.testing.assert_close(sums[:, [0, 2]], whole[:, [0, 2]])


def test_fewer_steps_are_the_first_ones():
    made, short = cohort(noise=1.0, steps=3), cohort(noise=1.0, steps=3)
    steps = torch.tensor([[1, 3, 2]])
    fewer, _ = solve_apart(made, dual_request(made, steps=steps), STREAMS, 0, 0)
    for count in (1, 2, 3):
        every = torch.full((1, 3), count)
        same, _ = solve_apart(short, dual_request(short, steps=every), STREAMS, 0, 0)
        k = [1, 3, 2].index(count)
        torch.testing.assert_close(fewer[:, k], same[:, k])


@pytest.mark.parametrize("loss", LOSSES)
def test_products_of_examples_in_blocks_give_the_same(loss):
    made, tight = (cohort(loss, clip=math.inf, rate=1.0, steps=20, memory=m) for m in (2**30, 1))
    for one, two in zip(
        *(solve_in_turn(c, dual_request(c), STREAMS, 0, 0) for c in (made, tight)), strict=True
    ):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)


def test_moves_that_are_not_finite_count_as_none():
    moves = np.array([[np.nan, 1.0], [np.inf, 0.0], [3.0, 4.0], [0.3, 0.4]])
    found = clipped_moves(moves, np.ones(4), np.full(4, 1.0))
    assert not found[:2].any()
    assert np.linalg.norm(found[2]) == pytest.approx(1, rel=1e-4)
    assert np.linalg.norm(found[2]) <= 1
    np.testing.assert_array_equal(found[3], moves[3])


def test_vectors_as_matrices_and_back():
    for bias in (False, True):
        task = make_task("linear", shape=(2, 3), classes=3, loss="one-against-rest", options={"bias": bias})
        shape, vector = linear_shape(task), torch.randn(5, task.layout.size)
        assert torch.equal(shape.vector(shape.matrix(vector)), vector)
        x = torch.randn(4, 2, 3)
        wide = torch.cat([x.flatten(1), torch.ones(4, 1)], 1) if bias else x.flatten(1)
        said = task.predict(task.layout.unflatten(vector[0]), x)
        torch.testing.assert_close(said, wide @ shape.matrix(vector[0]).T)


@pytest.mark.parametrize(("model", "loss"), [("mlp", "hinge"), ("linear", "logistic")])
def test_other_models_are_refused(model, loss):
    with refused("dual coordinates need a linear model"):
        linear_shape(make_task(model, shape=(3,), classes=2, loss=loss))
