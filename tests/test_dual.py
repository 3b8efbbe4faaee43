"""The dual method: against independent solvers, in privacy, and on silos that are hard."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import kstest
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from coterie.data.federation import Federation, from_table
from coterie.data.sources.table import Table
from coterie.engines.simulation import simulate
from coterie.errors import Refused
from coterie.experiment.experiment import Experiment
from coterie.experiment.statements import statement_of
from coterie.methods import Dual, Mocha
from coterie.methods.omega import FLOOR, omega_of
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from coterie.protocol.streams import SeededStreams
from coterie.report.privacy_lines import uses_paper_accounting
from coterie.report.statement_page import page
from coterie.tasks.task import make_task
from coterie.testing import check_method
from tests.helpers import experiment, reference_vectors, refused, vectors

INF = math.inf


def federation(sizes=(60, 40, 50), features=4, classes=2, seed=0, shift=0.5) -> Federation:
    """Silos whose best models differ a little; features of norm at most 1."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(sum(sizes), features)).astype(np.float32)
    x /= 1.01 * np.linalg.norm(x, axis=1, keepdims=True)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    truth = generator.normal(size=(features, max(classes, 1)))
    own = truth + shift * generator.normal(size=(len(sizes), features, max(classes, 1)))
    score = np.einsum("nf,nfc->nc", x, own[owner]) + 0.3 * generator.normal(size=(len(x), max(classes, 1)))
    y = score.argmax(1) if classes else score[:, 0].astype(np.float32)
    return from_table(Table("made", x, y, np.array([f"silo-{k}" for k in owner])))


def trained(data: Federation, method: Dual, loss: str, bias=False, epsilon=INF, **training):
    task = make_task("linear", shape=data.shape, classes=len(data.classes), loss=loss, options={"bias": bias})
    given = {"rounds": 200, "batch": 1000, "steps": 1} | training
    made = Experiment(data, task, method, Privacy(epsilon=epsilon, delta=1e-3), Training(**given))
    made.check()
    return made, made.train()


def objective(data: Federation, models: np.ndarray, omega: np.ndarray, lam: float, loss: str) -> float:
    """The paper's objective, written down as it stands."""
    total = lam * np.trace(models.T @ np.linalg.inv(omega) @ models)
    for silo, model in zip(data.silos, models, strict=True):
        score = silo.x.double().numpy() @ model
        y = silo.y.double().numpy()
        if loss == "squared":
            total += ((score - y) ** 2).sum()
            continue
        short = np.maximum(0, 1 - (2 * y - 1) * score)
        total += (short if loss == "hinge" else short**2).sum()
    return float(total)


@pytest.mark.parametrize(("loss", "name"), [("hinge", "hinge"), ("squared-hinge", "squared_hinge")])
@pytest.mark.parametrize("bias", [False, True])
def test_one_silo_alone_is_the_support_vector_machine_of_scikit_learn(loss, name, bias):
    data = federation(sizes=(80,))
    _, result = trained(data, Dual(lam=0.4, form="upload", inner=0), loss, bias)
    silo, sign = data.silos[0], 2 * data.silos[0].y.numpy() - 1
    peer = LinearSVC(C=1 / 0.8, loss=name, dual=True, fit_intercept=bias, tol=1e-9, max_iter=10**6)
    peer.fit(silo.x.numpy(), sign)
    theirs = np.append(peer.coef_[0], peer.intercept_ if bias else [])
    x = np.hstack([silo.x.numpy(), np.ones((len(sign), 1))]) if bias else silo.x.numpy()
    values = []
    for model in (result.vectors[0][0].double().numpy(), theirs):
        short = np.maximum(0, 1 - sign * (x @ model))
        values.append((short if loss == "hinge" else short**2).sum() + 0.4 * model @ model)
    assert values[0] == pytest.approx(values[1], abs=1e-4)


@pytest.mark.parametrize("form", ["upload", "examples"])
def test_one_silo_alone_is_ridge_regression(form):
    data = federation(sizes=(60,), classes=0)
    _, result = trained(data, Dual(lam=0.4, form=form, inner=0), "squared", rounds=400)
    peer = Ridge(alpha=0.4, fit_intercept=False, solver="cholesky")
    peer.fit(data.silos[0].x.double().numpy(), data.silos[0].y.double().numpy())
    np.testing.assert_allclose(result.vectors[0][0].numpy(), peer.coef_, atol=1e-4)


def dense_ridge(data: Federation, omega: np.ndarray, lam: float) -> np.ndarray:
    """Solve the joint problem of all silos as one system of linear equations."""
    silos, size = len(data), data.shape[0]
    system = lam * np.kron(np.linalg.inv(omega), np.eye(size))
    right = np.zeros(silos * size)
    for k, silo in enumerate(data.silos):
        x, here = silo.x.double().numpy(), slice(k * size, (k + 1) * size)
        system[here, here] += x.T @ x
        right[here] = x.T @ silo.y.double().numpy()
    return np.linalg.solve(system, right).reshape(silos, size)


def test_many_silos_with_learned_relations_are_a_dense_solve_with_these():
    """LearnedRelations change three times, then stay: the models are those of a dense solve with the last ones."""
    data = federation(classes=0)
    _, result = trained(data, Dual(lam=0.3, form="upload", inner=100), "squared", rounds=399)
    omega = result.relations[0].double().numpy()
    assert not np.allclose(omega, np.eye(3) / 3, atol=0.05)
    assert np.trace(omega) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(result.vectors[0].numpy(), dense_ridge(data, omega, 0.3), atol=1e-4)


@pytest.mark.parametrize("loss", ["hinge", "squared-hinge"])
def test_many_silos_reach_the_minimum_of_the_joint_problem(loss):
    data = federation()
    _, result = trained(data, Dual(lam=0.3, form="upload", inner=100), loss, rounds=399)
    omega = result.relations[0].double().numpy()
    models = result.vectors[0].double().numpy()
    ours = objective(data, models, omega, 0.3, loss)
    found = minimize(
        lambda w: objective(data, w.reshape(models.shape), omega, 0.3, loss),
        models.reshape(-1) * 0.9,
        method="Powell",
        options={"maxiter": 40, "xtol": 1e-7, "ftol": 1e-10},
    )
    assert ours <= found.fun + 1e-4


@pytest.mark.parametrize("loss", ["squared", "hinge", "squared-hinge", "one-against-rest"])
def test_the_duality_gap_vanishes_without_noise(loss):
    data = federation(classes={"squared": 0, "one-against-rest": 3}.get(loss, 2))
    _, result = trained(data, Dual(lam=0.3, form="upload", inner=0), loss, rounds=600)
    gaps = [gap for _, gap in result.runs[0].gaps]
    assert len(gaps) == 601
    assert min(gaps) > -1e-7
    assert gaps[-1] < 1e-6 < gaps[0]


def test_moves_apart_reach_the_same_models():
    data = federation()
    _, turn = trained(data, Dual(lam=0.3, form="upload", inner=0), "squared-hinge")
    _, apart = trained(data, Dual(lam=0.3, inner=0), "squared-hinge", rounds=1500, batch=12)
    torch.testing.assert_close(apart.vectors[0], turn.vectors[0], atol=1e-3, rtol=1e-3)
    _, half = trained(data, Dual(lam=0.3, xi=0.5, inner=0), "squared-hinge", rounds=1500, batch=12, steps=2)
    torch.testing.assert_close(half.vectors[0], turn.vectors[0], atol=1e-3, rtol=1e-3)


def test_relations_of_models():
    models = torch.tensor([[[1.0, 0], [2, 0], [0, 1]]])
    omega = omega_of(models)[0].double()
    assert float(omega.trace()) == pytest.approx(1)
    assert float(omega[0, 1]) > 0.1 > abs(float(omega[0, 2]))
    wide = models[0].double() @ models[0].double().T
    root = omega @ omega / (omega @ omega).trace()
    torch.testing.assert_close(root, wide / wide.trace(), atol=2 * FLOOR, rtol=0)
    torch.testing.assert_close(omega_of(torch.zeros(1, 3, 2))[0], torch.eye(3) / 3)


def test_relations_of_mocha_are_in_its_result():
    data = federation(classes=0)
    result = experiment(data, Mocha(), epsilon=INF, rounds=20).train()
    assert result.relations[0].shape == (3, 3)
    assert float(result.relations[0].trace()) == pytest.approx(1, abs=1e-4)
    assert not result.runs[0].gaps


@pytest.mark.parametrize("form", ["examples", "upload"])
@pytest.mark.parametrize("loss", ["squared", "hinge", "squared-hinge", "one-against-rest"])
def test_the_slow_engine_gives_the_same(form, loss):
    data = federation(sizes=(12, 8, 15), classes={"squared": 0, "one-against-rest": 3}.get(loss, 2))
    task = make_task("linear", shape=data.shape, classes=len(data.classes), loss=loss)
    method = Dual(lam=(0.1, 0.5), xi=0.8, inner=2, form=form)
    made = experiment(data, method, task=task, epsilon={"each": [4.0, INF]}, clip=0.2, steps=2, batch=4)
    fast = vectors(made)
    for run in range(2):
        torch.testing.assert_close(fast[run], reference_vectors(made, run), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "method", [Dual(), Dual(form="upload", inner=1), Dual(xi=0.3, beta=2.0, inner=0), Dual(lam=3.0, inner=2)]
)
def test_conformance(method):
    check_method(method)


@pytest.mark.parametrize("form", ["examples", "upload"])
def test_every_silo_ends_at_its_budget_and_its_statement_verifies(form):
    data = federation()
    made = experiment(data, Dual(form=form), epsilon={"each": [1.0, 4.0]}, rounds=30, batch=6, steps=1)
    plan = made.plan()
    for k, silo in enumerate(plan.silos[0]):
        assert 0.99 * silo.budget <= silo.epsilon <= silo.budget
        assert silo.steps == 30
        said = verify(text_of(statement_of(made, plan, 0, k)))
        (event,), (door,) = said["events"], said["doors"]
        rate = silo.work.rate if form == "examples" else 1.0
        assert (event["rate"], event["count"], event["noise"]) == (rate, 30, silo.noise)
        assert door["door"] == ("solve_dual" if form == "examples" else "solve_dual whole")
        assert door["sampler"] == ("poisson" if form == "examples" else "all examples")
        assert ("a multiple of twice the clip" in page(said)) == (form == "upload")


def test_whole_uploads_need_far_more_noise():
    """As derived: at rate .1, epsilon 8 and delta 1e-3, 200 rounds: .94 a sum; twice 6.8 an upload."""
    data = federation(sizes=(250,))
    noise = {
        form: experiment(data, Dual(form=form), epsilon=8.0, rounds=200, batch=20, steps=1).plan()
        for form in ("examples", "upload")
    }
    assert noise["examples"].silos[0][0].noise == pytest.approx(0.94, abs=0.01)
    assert 2 * noise["upload"].silos[0][0].noise == pytest.approx(13.6, abs=0.3)


def test_the_paper_s_noise_is_as_printed_and_certifies_nothing():
    """sigma1 (8 lam + beta) / (beta n) on duals, 2 xi |d| sigma1 / r on uploads; no silo may have a budget."""
    data = federation(classes=0)
    task = make_task("linear", shape=data.shape, classes=0, loss="squared")
    found = {"duals": [], "sums": []}
    method = Dual(lam=0.3, xi=0.5, inner=0, form="paper", sigma=2.0, ratio=4.0)
    plain = Dual(lam=0.3, xi=0.5, inner=0, form="upload")
    for seed in range(40):
        states = []
        for each in (method, plain):
            made = experiment(
                data, each, task=task, epsilon=INF, rounds=1, seeds=(seed,), batch=1000, steps=1
            )
            plan = made.plan()
            given = (made.running, made.cohort(plan), plan, made.roster, [seed], SeededStreams(((seed, 0),)))
            states.append(list(simulate(*given))[-1])
        noisy, quiet = states
        beta, size = 0.5 * 3, data.sizes[0]
        s1 = (8 * 0.3 + beta) / (beta * size)
        found["duals"].append(((noisy.own - quiet.own)[0, 0, :size] / (2.0 * s1)).flatten())
        s2 = 2 * 0.5 * (quiet.own[0, 0] / 0.5).norm()
        found["sums"].append(((noisy.shared.sums - quiet.shared.sums)[0, 0] / (s2 * 0.5)).flatten())
    for drawn in found.values():
        assert kstest(torch.cat(drawn).numpy(), "norm").pvalue > 0.01
    said = statement_of(made, plan, 0, 0)
    assert said["guarantee"]["epsilon"] is None
    loud = experiment(data, method, task=task, epsilon=INF, rounds=2, seeds=(0, 1))
    assert loud.plan().silos[0][0].epsilon == INF
    assert any("certifies nothing" in note for note in loud.plan().notes)
    assert uses_paper_accounting(loud, loud.plan())
    for run in range(2):
        torch.testing.assert_close(vectors(loud)[run], reference_vectors(loud, run), atol=1e-4, rtol=1e-3)
    with pytest.raises(Refused, match="certifies nothing; it is allowed only for silos without a budget"):
        experiment(data, method, task=task, epsilon={"each": [INF, 8.0]}, rounds=2).plan()
    with refused("sigma applies only to form 'paper'"):
        Dual(sigma=1.0)


def test_gaps_are_not_computed_where_anybody_has_a_budget():
    from coterie.cohort.dual.gap import duality_gap

    data = federation()
    made, result = trained(data, Dual(), "hinge", epsilon={"each": [INF, 4.0]}, rounds=3)
    assert not result.runs[0].gaps
    with pytest.raises(Refused, match="needs a run without privacy"):
        duality_gap(made.cohort(made.plan()), torch.zeros(1), torch.zeros(1), torch.zeros(1))


def test_a_silo_with_one_class_only_trains():
    data = federation()
    first = data.silos[0]
    x = first.x.numpy()
    rows = [(x, np.ones(len(x), dtype=np.int64), ["one"] * len(x))]
    rows += [(s.x.numpy(), s.y.numpy(), [s.name] * len(s.y)) for s in data.silos[1:]]
    parts = [np.concatenate(column) for column in zip(*rows, strict=True)]
    _, result = trained(from_table(Table("made", *parts)), Dual(lam=0.3), "hinge", epsilon=4.0, rounds=40)
    assert torch.isfinite(result.vectors[0]).all()
    assert all(silo.epsilon <= 4.0 for silo in result.runs[0].silos.values())


def test_bad_settings_are_one_sentence():
    for value in (0, -1.0):
        with refused(f"lam must be a number >= 1e-09 and <= 1e+09, got {value!r}"):
            Dual(lam=value)
    for value in (0, 1.5, -0.1):
        with refused(f"xi must be a number > 0 and <= 1, got {value!r}"):
            Dual(xi=value)
    with refused("inner must be a whole number >= 0"):
        Dual(inner=0.5)
    with refused("form must be one of examples, upload, paper"):
        Dual(form="both")


def test_long_features_are_refused_under_privacy_only():
    data = federation()
    long = from_table(
        Table("long", 3 * data.silos[0].x.numpy(), data.silos[0].y.numpy(), np.repeat(["a", "b"], 24))
    )
    with refused("norm is above 1 or not a number; under privacy, dual coordinates need norms of at most 1"):
        trained(long, Dual(), "hinge", epsilon=4.0, rounds=1)
    trained(long, Dual(), "hinge", rounds=1)


def test_more_than_two_classes_need_one_against_rest():
    data = federation(classes=3)
    with refused("needs two classes, but the data has 3; use 'one-against-rest'"):
        trained(data, Dual(), "hinge")
    with refused("dual coordinates need a linear model"):
        trained(data, Dual(), "cross-entropy")


def test_it_neither_follows_nor_leads_another_method():
    from coterie.methods import FedAvg, Then

    with refused("'dual' cannot come after another method"):
        Then(first=FedAvg(), second=Dual())
    with refused("'dual' cannot come before another method"):
        Then(first=Dual(), second=FedAvg())
