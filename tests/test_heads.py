"""Shared layers and private heads: what is sent, what stays, and what it becomes at its ends."""

from __future__ import annotations

import math

import pytest
import torch

from coterie._seeds import seed_for
from coterie.engines.simulation import personal_vectors, simulate
from coterie.experiment.experiment import Experiment
from coterie.guard.session import Session
from coterie.methods import FedAvg, Heads
from coterie.methods.head_layers import head_parameters
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.protocol.streams import SeededStreams
from coterie.testing import check_method
from tests.helpers import experiment, refused, task_for, vectors
from tests.measured import reference_of


def of(federation, head, unit="silo", epsilon=6.0, **more):
    task = task_for(federation, "mlp", hidden=5)
    training = Training(**{"rounds": 4, "batch": 8, "lr": 0.3} | more)
    made = Experiment(
        federation, task, Heads(head=head), Privacy(epsilon=epsilon, delta=1e-2, unit=unit), training
    )
    made.check()
    return made


@pytest.mark.parametrize("unit", ["example", "silo"])
def test_it_is_sound_in_both_units(unit):
    check_method(Heads(), unit)


def test_heads_differ_and_the_rest_is_shared(classes):
    made = of(classes, "3")
    found = vectors(made)[0]
    cut = sum(made.task.layout.lengths[:2])
    assert (found[:, :cut] == found[:1, :cut]).all()
    assert len({tuple(row) for row in found[:, cut:].tolist()}) == len(classes)


def test_only_shared_layers_are_sent(classes):
    made = of(classes, "3")
    shared = sum(made.task.layout.lengths[:2])
    assert {silo.bytes_up for silo in made.plan().silos[0]} == {4 * shared * 4}
    assert {silo.bytes_down for silo in made.plan().silos[0]} == {4 * shared * 4}


@pytest.mark.parametrize("how", [None, Participation(0.5, "poisson")])
def test_engines_agree(classes, how):
    made = of(classes, "3", participation=how)
    torch.testing.assert_close(vectors(made)[0], reference_of(made, 0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("3", {"3.weight", "3.bias"}),
        ("3.bias", {"3.bias"}),
        ("0.5", {"3.weight", "3.bias"}),
        (0.1, {"3.weight", "3.bias"}),
        ("1", {"1.weight", "1.bias"}),
    ],
)
def test_a_head_is_named_or_a_share(head, expected):
    assert head_parameters(head, ("1.weight", "1.bias", "3.weight", "3.bias")) == expected


def test_a_head_that_cannot_be(classes):
    with refused("there is no layer 'fc'"):
        of(classes, "fc").plan()
    with refused("there is no layer 'fc'; the layers are 1, 3"):
        of(classes, "fc").plan()
    with refused("(did you mean 'head'?); the layers are body, body.1, head, head.0, head.2"):
        head_parameters("hed", ("body.1.weight", "head.0.weight", "head.2.bias"))
    with refused("""--set 'method.head="3"')"""):
        head_parameters(3, ("1.weight", "3.weight"))
    with refused("there is no layer '9'"):
        of(classes, "9").plan()
    for number in (9, 1, 1.0, 0):  # numbers are shares: layers of these names are given as text
        with refused("a share of the layers must be between 0 and 1"):
            of(classes, number).plan()
    with refused("is the whole network"):
        of(classes, "0.9").plan()
    with refused("head must be a name or a number"):
        Heads(head="")


def test_what_is_shared_moves_as_averaging_does_in_one_step(federation):
    """In one step of all examples what is shared moves as FedAvg's does, whatever the head."""
    task = task_for(federation, "mlp", hidden=5)
    privacy = Privacy(epsilon=math.inf)
    cut = sum(task.layout.lengths[:3])
    assert task.layout.names[-1] == "3.bias"
    everything = Training(rounds=1, steps=1, batch=10_000, lr=0.3)
    a = vectors(Experiment(federation, task, FedAvg(), privacy, everything))
    b = vectors(Experiment(federation, task, Heads(head="3.bias"), privacy, everything))
    torch.testing.assert_close(a[..., :cut], b[..., :cut], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(a[..., cut:], b[..., cut:])


def test_in_the_unit_example_heads_are_noised_too(classes):
    made = experiment(classes, Heads(head="3"), task=task_for(classes, "mlp", hidden=5))
    assert all(silo.noise > 0 for silo in made.plan().silos[0])


def test_a_silo_that_joins_late_gets_what_is_shared_and_a_fresh_head(classes):
    made = of(classes, "3", rounds=4, epsilon=math.inf)
    plan = made.plan()
    head = torch.cat([torch.full((n,), flag) for flag, n in zip(
        (False, False, True, True), made.task.layout.lengths, strict=True
    )])  # fmt: skip
    given = (made.running, made.cohort(plan), plan, made.roster, [0], SeededStreams(made.keys))
    states = list(simulate(*given, before=lambda number: [0, 1] if number < 3 else [0, 1, 2]))
    start = made.task.initial(seed_for(0, "initial/0"))
    before = personal_vectors(made.running, states[3], len(classes))[0]
    assert torch.equal(before[2][head], start[head])
    assert torch.equal(before[2][~head], before[0][~head])
    assert not torch.equal(before[2][~head], start[~head])
    after = personal_vectors(made.running, states[4], len(classes))[0]
    assert not torch.equal(after[2][head], start[head])


def test_heads_survive_a_restart(classes, tmp_path):
    class Stop(Exception):
        pass

    def stop(number, _):
        if number == 3:
            raise Stop

    made = of(classes, "3", rounds=6, participation=Participation(0.5, "poisson"))
    whole = made.train().vectors[0]
    with pytest.raises(Stop):
        made.train(on_round=stop, session=Session(tmp_path / "point", "key", every=2))
    assert torch.equal(made.train(session=Session(tmp_path / "point", "key", every=2)).vectors[0], whole)
