"""No attribute of what a method gets leads to examples, in either engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from coterie.cohort.dp_sgd import Cohort
from coterie.cohort.oracle import CohortOracle
from coterie.data.federation import Federation, Silo
from coterie.errors import Refused
from coterie.methods import FedAvg
from coterie.planning.dry_doors import CountingOracle
from coterie.protocol.streams import SeededStreams
from tests.helpers import experiment, reference_vectors, vectors
from tests.reach import reachable
from tests.test_silo_attacks import made_of

HIDDEN = (Cohort, Federation, Silo, CohortOracle, CountingOracle, SeededStreams)
SEEN: list[object] = []


@dataclass(frozen=True, kw_only=True)
class Looks(FedAvg):
    """Keeps everything that it gets."""

    name: ClassVar[str] = "looks"

    def check(self, task, federation):
        SEEN.append(federation)

    def init(self, task, silos):
        SEEN.append(task)
        return super().init(task, silos)

    def local(self, sent, own, oracle):
        out = super().local(sent, own, oracle)
        SEEN.extend([oracle, out])
        return out

    def merge(self, shared, uploads, merger):
        SEEN.extend([uploads, merger])
        return super().merge(shared, uploads, merger)


@pytest.fixture
def seen():
    SEEN.clear()
    yield SEEN
    SEEN.clear()


def memory(tensor):
    """Return where the numbers of a tensor lie; None if it has no memory."""
    with torch._C.DisableTorchFunction():
        start = tensor.untyped_storage().data_ptr()
    return start or None


@pytest.mark.parametrize("unit", ["example", "silo"])
@pytest.mark.parametrize("train", [vectors, lambda made: reference_vectors(made, 0)], ids=["fast", "slow"])
def test_no_attribute_leads_to_examples(federation, seen, unit, train):
    made = experiment(federation, Looks()) if unit == "example" else made_of(federation, Looks())
    made.check()
    train(made)
    assert len(seen) > 10
    found = reachable(seen)
    assert not [type(thing) for thing in found if isinstance(thing, HIDDEN)]
    places = {
        memory(values) for silo in federation.silos for values in (silo.x, silo.y, silo.test_x, silo.test_y)
    }
    rows = {tuple(row.tolist()) for silo in federation.silos for row in silo.x}
    tensors = [thing for thing in found if type(thing) is torch.Tensor]
    assert len(tensors) > 5
    for tensor in tensors:
        assert memory(tensor) not in places
        numbers = tensor.detach().reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)
        assert not rows & {tuple(row.tolist()) for row in numbers}


def test_the_walk_finds_examples_where_there_are_some(federation):
    """Without the facade it is found: this is how the training oracle was given to methods."""
    made = experiment(federation, FedAvg())
    plan = made.plan()
    oracle = CohortOracle(made.cohort(plan), SeededStreams(made.keys), 0, plan.counts.calls[0])
    assert any(isinstance(thing, Cohort) for thing in reachable(oracle))
    assert any(isinstance(thing, Cohort) for thing in reachable(oracle.descend))


def test_a_method_cannot_turn_the_clock_of_its_oracle(federation):
    """A round written to the oracle would draw the noise of another round."""

    class Turns(FedAvg):
        def local(self, sent, own, oracle):
            oracle.round = 0
            return super().local(sent, own, oracle)

    with pytest.raises(Refused, match="writes the attribute 'round' of its oracle"):
        experiment(federation, Turns()).plan()
