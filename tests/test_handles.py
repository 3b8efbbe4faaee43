"""Whole silos' uploads are handles in training too: a merge that behaves in the dry run cannot look then."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from coterie.cohort.merging import PrivateMerger
from coterie.errors import Refused
from coterie.methods import MRMTL, FedAvg
from coterie.planning.schedule import Participation
from coterie.protocol.handles import Handle, hide_uploads, refuse_handles
from coterie.protocol.merging import AS_SENT, MergeRule
from coterie.protocol.roster import Roster
from coterie.protocol.streams import SeededStreams
from tests.helpers import reference_vectors, vectors
from tests.reach import reachable
from tests.test_silo_attacks import made_of

ROSTER = Roster(("a", "b"), torch.ones(2), torch.ones(1, 2))
RULE = MergeRule(torch.ones(1), torch.ones(1), 2.0)


def two_faced(look):
    """Make a method that averages in the dry run, and looks at uploads in training."""

    @dataclass(frozen=True, kw_only=True)
    class TwoFaced(FedAvg):
        name: ClassVar[str] = "two-faced"

        def merge(self, shared, uploads, merger):
            mean = merger.mean(uploads)
            return shared + mean if type(shared) is not torch.Tensor else look(shared, uploads, merger)

    return TwoFaced()


LOOKS = {
    "upload": lambda s, u, m: u,
    "first": lambda s, u, m: u[:, :1],
    "sum": lambda s, u, m: s + u.sum(1, keepdim=True),
    "added": lambda s, u, m: s + u,
    "torch": lambda s, u, m: torch.add(s, u),
    "stack": lambda s, u, m: torch.stack([u, u]).sum(0),
    "from the merger": lambda s, u, m: m.uploads[0],
    "in a tuple": lambda s, u, m: (s, u),
    "in a dict": lambda s, u, m: {"upload": u},
    "branch": lambda s, u, m: s if u > 0 else -s,
    "scaled": lambda s, u, m: s + m.mean(2 * u),
    "another": lambda s, u, m: s + m.mean(s.expand(-1, 3, -1)),
    "matrix": lambda s, u, m: s + m.mix(u, u),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("train", [vectors, lambda made: reference_vectors(made, 0)], ids=["fast", "slow"])
def test_a_merge_that_looks_in_training_only_is_refused(federation, look, train):
    with pytest.raises((Refused, AttributeError)):
        train(made_of(federation, two_faced(look)))


def test_who_came_is_hidden_in_training_too(federation):
    made = made_of(
        federation,
        two_faced(lambda s, u, m: s + m.roster.present.float().mean()),
        participation=Participation(0.5, "poisson"),
    )
    with pytest.raises(Refused, match="merge looks at who took part"):
        vectors(made)


@pytest.mark.parametrize("method", [FedAvg(), MRMTL()], ids=lambda m: m.name)
def test_honest_merges_are_those_of_the_uploads(federation, method):
    """What a merger answers to a handle is what it answers to the upload, to the bit."""
    made = made_of(federation, method)
    assert torch.isfinite(vectors(made)).all()
    uploads = torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(0))

    def merger():
        return PrivateMerger.of(ROSTER, RULE, SeededStreams(((0, 0),)), uploads)

    handle, closed = hide_uploads(merger(), uploads)
    assert torch.equal(closed.mean(handle), merger().mean(uploads))
    handle, closed = hide_uploads(merger(), uploads)
    clip = torch.full((1, 1, 1), 0.5)
    chained = closed.within(None).after(0).clipping(clip)
    assert torch.equal(chained.mix(handle, torch.eye(2)), merger().clipping(clip).mix(uploads, torch.eye(2)))
    with pytest.raises(Refused, match="may merge only once per round"):
        closed.mean(handle)


def test_a_merger_takes_its_own_handles_only():
    uploads = torch.ones(1, 2, 3)
    streams = SeededStreams(((0, 0),))
    handle, _ = hide_uploads(PrivateMerger.of(ROSTER, RULE, streams, uploads), uploads)
    _, closed = hide_uploads(PrivateMerger.of(ROSTER, RULE, streams, uploads), uploads)
    for wrong in (handle, Handle(), uploads, None):
        with pytest.raises(Refused, match=AS_SENT[:40]):
            closed.mean(wrong)


def test_nothing_that_a_merge_gets_leads_to_an_upload():
    uploads = torch.randn(1, 2, 5)
    facts = ROSTER.at(torch.tensor([[True, False]]))
    handle, closed = hide_uploads(PrivateMerger.of(facts, RULE, SeededStreams(((0, 0),)), uploads), uploads)
    for thing in (handle, closed, closed.within(None), closed.after(1)):
        found = reachable(thing)
        assert not any(isinstance(other, PrivateMerger | SeededStreams) for other in found)
        tensors = [other for other in found if isinstance(other, torch.Tensor)]
        assert all(tensor is facts.sizes or tensor is facts.epsilon for tensor in tensors)


@pytest.mark.parametrize(
    "use",
    [
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        float,
        len,
        list,
        bool,
        lambda h: h.shape,
        lambda h: h + 1,
        lambda h: 1 - h,
        lambda h: h @ h,
        lambda h: torch.zeros(1) + h,
        lambda h: torch.cat([h, h]),
        lambda h: setattr(h, "_why", ""),
        lambda h: refuse_handles([{"a": (None, h)}]),
    ],
)
def test_a_handle_can_only_be_passed_on(use):
    with pytest.raises(Refused, match="merge looks into raw uploads"):
        use(Handle())
