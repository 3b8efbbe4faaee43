"""Heterogeneous budgets: WeiAvg, PFA and PFA+ against slow versions, participation, bytes, division."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.guard.claims import claims_of
from coterie.methods import PFA, FedAvg, Local, PFAPlus, RandomProjection, WeiAvg
from coterie.methods.projection import coordinates, directions, expand
from coterie.methods.public_silos import public_silos
from coterie.planning.schedule import Participation, schedule
from coterie.protocol.merging import PlainMerger
from coterie.protocol.messages import addressed, bytes_of, only, pack, unpack
from coterie.protocol.roster import Roster
from tests.helpers import experiment, reference_vectors, refused, vectors

LAYERS = (5, 3)
WIDE = {"divide": "top", "top": 0.5}


class Start:
    def __init__(self, epsilon):
        self.roster = Roster(
            tuple(map(str, range(len(epsilon)))), torch.ones(len(epsilon)), torch.tensor([epsilon])
        )
        self.rounds, self.layers = 4, LAYERS

    def initial(self, index=0, apart=False):
        return torch.randn(1, 1, sum(LAYERS), generator=torch.Generator().manual_seed(index))


def updates(silos=6, seed=0):
    return torch.randn(1, silos, sum(LAYERS), generator=torch.Generator().manual_seed(seed))


BUDGETS = [10.0, 9.0, 8.0, 0.1, 0.2, 0.3]


def slow_pfa(deltas, epsilon, public, rank, centre):
    """The merge with loops and numpy's SVD, one layer at a time."""
    deltas, epsilon = deltas[0].double().numpy(), np.array(epsilon)
    private = [k for k in range(len(epsilon)) if k not in public]
    merged = []
    for layer in np.split(deltas, np.cumsum(LAYERS)[:-1], axis=1):
        about = sum(epsilon[k] * layer[k] for k in public) / sum(epsilon[k] for k in public)
        offset = about if centre == "mean" else np.zeros_like(about)
        _, _, right = np.linalg.svd(np.stack([layer[k] - offset for k in public]))
        basis = right[:rank]
        hidden = sum(epsilon[k] * layer[k] for k in private) / sum(epsilon[k] for k in private)
        projected = offset + sum((hidden - offset) @ v * v for v in basis)
        loud, quiet = sum(epsilon[k] for k in public), sum(epsilon[k] for k in private)
        merged.append((loud * about + quiet * projected) / (loud + quiet))
    return np.concatenate(merged)


@pytest.mark.parametrize("centre", ["mean", "none"])
@pytest.mark.parametrize("rank", [1, 2])
def test_pfa_is_its_slow_version(rank, centre):
    start = Start(BUDGETS)
    method = PFA(rank=rank, centre=centre, **WIDE)
    shared, _ = method.init(start, 6)
    deltas = updates()
    moved = method.merge(shared, deltas, PlainMerger(start.roster)).model - shared.model
    expected = slow_pfa(deltas, BUDGETS, [0, 1, 2], rank, centre)
    np.testing.assert_allclose(moved[0, 0].numpy(), expected, atol=1e-5)


def test_directions_are_those_of_a_singular_value_decomposition():
    deltas = updates(4, 3)
    for found, part in zip(directions(deltas, list(LAYERS), 2), deltas.split(LAYERS, dim=-1), strict=True):
        right = torch.linalg.svd(part[0].double()).Vh[:2]
        torch.testing.assert_close(
            (found[0, 0].double() @ right.T).abs(), torch.eye(2).double(), atol=1e-5, rtol=0
        )


def test_coordinates_and_back():
    basis = directions(updates(4, 3), list(LAYERS), 2)
    code = updates(3, 5)[..., :4]
    torch.testing.assert_close(coordinates(expand(code, basis), basis), code, atol=1e-5, rtol=1e-5)


def test_with_the_whole_space_as_basis_pfa_is_the_weighted_mean():
    """Rank as large as a layer: nothing is lost by projecting."""
    start = Start([9.0] * 7 + [0.1, 0.2])
    method = PFA(rank=5, divide="top", top=7 / 9, centre="none")
    shared, _ = method.init(start, 9)
    deltas = updates(9)
    moved = method.merge(shared, deltas, PlainMerger(start.roster)).model - shared.model
    torch.testing.assert_close(
        moved, PlainMerger(start.roster).mean(deltas, start.roster.epsilon), atol=1e-5, rtol=1e-4
    )


def test_equal_budgets_make_weiavg_the_uniform_mean(federation):
    start = Start([2.0] * 6)
    deltas = updates()
    moved = WeiAvg().merge(torch.zeros(1, 1, 8), deltas, PlainMerger(start.roster))
    torch.testing.assert_close(moved, deltas.mean(1, keepdim=True))


def rounds_of(method, deltas, epsilon, present=None):
    """Merge several rounds by hand, uploads made by the method itself from given differences."""

    class Door:
        rounds = len(deltas)

        def __init__(self, delta):
            self.delta = delta

        def descend(self, start):
            return start + self.delta

    start = Start(epsilon)
    shared, own = method.init(start, len(epsilon))
    for number, delta in enumerate(deltas):
        here = None if present is None else torch.tensor([present[number]])
        uploads, own = method.local(method.broadcast(shared), own, Door(delta))
        shared = method.merge(shared, uploads, PlainMerger(start.roster.at(here)))
    return shared


@pytest.mark.parametrize("centre", ["mean", "none"])
def test_pfa_plus_with_a_basis_that_never_changes_is_pfa(centre):
    """Public silos send the same every round, so last round's basis is this round's."""
    same = updates()
    deltas = []
    for seed in range(4):
        delta = updates(seed=seed).clone()
        delta[:, :3] = same[:, :3]
        deltas.append(delta)
    plain = rounds_of(PFA(centre=centre, **WIDE), deltas, BUDGETS).model
    sent = rounds_of(PFAPlus(centre=centre, **WIDE), deltas, BUDGETS).model
    torch.testing.assert_close(sent, plain, atol=1e-5, rtol=1e-4)


def test_a_round_without_public_silos_keeps_the_last_basis():
    deltas = [updates(seed=s) for s in range(2)]
    present = [[True] * 6, [False, False, False, True, True, True]]
    shared = rounds_of(PFA(**WIDE), deltas, BUDGETS, present)
    first = rounds_of(PFA(**WIDE), deltas[:1], BUDGETS)
    for old, new in zip(first.basis.directions, shared.basis.directions, strict=True):
        assert torch.equal(old, new)
    moved = shared.model - first.model - first.basis.centre
    code = coordinates(moved, first.basis.directions)
    torch.testing.assert_close(expand(code, first.basis.directions), moved, atol=1e-4, rtol=1e-4)


def test_before_any_basis_and_without_private_silos_it_is_the_weighted_mean():
    deltas = [updates()]
    for present in ([False] * 3 + [True] * 3, [True] * 3 + [False] * 3):
        shared = rounds_of(PFA(**WIDE), deltas, BUDGETS, [present])
        roster = Start(BUDGETS).roster.at(torch.tensor([present]))
        expected = Start(BUDGETS).initial() + PlainMerger(roster).mean(deltas[0], roster.epsilon)
        torch.testing.assert_close(shared.model, expected, atol=1e-5, rtol=1e-4)


def test_a_random_projection_keeps_its_basis():
    shared, _ = RandomProjection(**WIDE).init(Start(BUDGETS), 6)
    for part in shared.basis.directions:
        torch.testing.assert_close(part @ part.transpose(-1, -2), torch.ones(1, 1, 1, 1))
    after = RandomProjection(**WIDE).merge(shared, updates(), PlainMerger(Start(BUDGETS).roster))
    assert all(
        torch.equal(a, b) for a, b in zip(shared.basis.directions, after.basis.directions, strict=True)
    )


def test_private_silos_really_send_few_numbers(classes):
    """After the first round a private silo sends one number a layer, in the plan and as bytes."""
    budgets = {"a": 8.0, "b": 6.0, "default": 0.5}
    made = experiment(classes, PFAPlus(**WIDE), epsilon=budgets, rounds=5)
    size, layers = made.task.layout.size, len(made.task.layout.lengths)
    sent = {silo.name: silo.bytes_up for silo in made.plan().silos[0]}
    assert sent["a"] == sent["b"] == 5 * 4 * size
    assert sent["c"] == sent["d"] == 4 * size + 4 * 4 * layers
    full = {
        silo.name: silo.bytes_up
        for silo in experiment(classes, PFA(**WIDE), epsilon=budgets, rounds=5).plan().silos[0]
    }
    assert full["c"] == 5 * 4 * size


def test_what_is_not_sent_is_not_in_the_message():
    value = torch.randn(1, 2, 1000)
    tree = {"part": only(torch.tensor([[[True], [False]]]), value)}
    assert bytes_of(tree, 2) == [4000, 0]
    sizes = [len(pack(addressed(tree, k, 2))) for k in range(2)]
    assert sizes[0] - sizes[1] > 3900
    again = unpack(pack(addressed(tree, 1, 2)))
    assert torch.equal(again["part"].value, torch.zeros(1, 1, 1000))


def test_divisions():
    epsilon = torch.tensor([[0.1, 0.11, 0.09, 9.0, 10.0, 0.1]])
    for way in ("mixture", "kmeans"):
        assert public_silos(epsilon, way, 0.2).tolist() == [[False, False, False, True, True, False]]
    assert public_silos(epsilon, "top", 0.2).tolist() == [[False, False, False, False, True, False]]
    assert public_silos(torch.ones(1, 4), "mixture", 0.2).all()
    with refused("needs finite budgets"):
        public_silos(torch.tensor([[1.0, float("inf")]]), "mixture", 0.2)


def test_a_rank_that_public_silos_do_not_span_is_refused(federation):
    with refused("rank: 2 public silo(s) span only 1 direction(s) (centre = 'mean'), so rank 2 is too large"):
        experiment(federation, PFA(rank=2, divide="top", top=0.7), epsilon={"each": [1.0, 2.0, 3.0]}).plan()


def test_schedules():
    fixed = schedule(Participation(0.8), 0, 30, 200)
    assert (fixed.sum(1) == 24).all()
    poisson = schedule(Participation(0.3, "poisson"), 0, 50, 400)
    assert abs(float(poisson.float().mean()) - 0.3) < 5.5 * np.sqrt(0.21 / 20_000)
    assert poisson.sum(1).float().var() > 5
    assert not torch.equal(fixed, schedule(Participation(0.8), 1, 30, 200))
    with refused("expected a share in (0, 1]"):
        Participation(0.0)


@pytest.mark.parametrize(
    "method",
    [FedAvg(), Local(), WeiAvg(), PFA(divide="top", top=0.7), PFAPlus(divide="top", top=0.7)],
    ids=lambda m: m.name,
)
@pytest.mark.parametrize("how", [Participation(0.6), Participation(0.4, "poisson")], ids=["fixed", "poisson"])
def test_engines_agree_when_silos_take_turns(federation, method, how):
    made = experiment(
        federation, method, epsilon={"each": [2.0, 5.0]}, seeds=(0, 7), rounds=6, participation=how
    )
    fast = vectors(made)
    assert not made.present.all()
    for run in range(2):
        torch.testing.assert_close(fast[run], reference_vectors(made, run), atol=1e-5, rtol=1e-4)


def test_silos_are_charged_for_the_rounds_they_take_part_in(federation):
    made = experiment(
        federation, FedAvg(), rounds=20, participation=Participation(0.5, "poisson"), seeds=(0, 3)
    )
    plan = made.plan()
    for run in range(2):
        for k, silo in enumerate(plan.silos[run]):
            rounds = int(made.present[:, run, k].sum())
            assert silo.rounds == rounds
            assert silo.steps == rounds * silo.work.steps
            asked = claims_of("fedavg", plan, k)[run]
            assert sum(event.count for event in asked.events(0, 20)) == silo.steps
            assert silo.bytes_up == rounds * 4 * made.task.layout.size
            assert 0.99 * silo.budget < silo.epsilon <= silo.budget
    first = next(n for n in range(20) if not made.present[n, 0, 0])
    assert claims_of("fedavg", plan, 0)[0].events(first, first + 1) == ()


def test_a_silo_that_never_takes_part_spends_nothing(federation):
    made = experiment(federation, FedAvg(), rounds=2, participation=Participation(0.34), seeds=(1,))
    silos = made.plan().silos[0]
    never = [silo for silo in silos if silo.rounds == 0]
    assert never
    assert all((silo.epsilon, silo.noise, silo.bytes_up) == (0.0, 0.0, 0) for silo in never)
    assert torch.isfinite(vectors(made)).all()


@pytest.mark.parametrize(
    ("budgets", "expected"), [("minimum", 1.0), ("maximum", 4.0), ("none", float("inf"))]
)
def test_what_a_method_makes_of_budgets(federation, budgets, expected):
    from dataclasses import replace

    made = experiment(federation, FedAvg(), epsilon={"each": [1.0, 2.0, 4.0]})
    other = replace(made, budgets=budgets)
    assert other.epsilon.tolist() == [[expected] * 3]
    assert other.labels == [f"fedavg budgets={budgets}"]
    other.check()
    assert any("for comparison only" in note for note in other.notes) == (budgets != "minimum")
