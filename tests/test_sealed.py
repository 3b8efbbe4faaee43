"""What a door seals: a method can keep it and give it back, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from coterie.errors import Refused
from coterie.guard.checkpoint import digest_of
from coterie.methods import Dual
from coterie.planning.dry_run import dry_run
from coterie.planning.taint import Labelling, label, seal
from coterie.protocol.doors import SOLVE_DUAL, SOLVE_DUAL_WHOLE
from coterie.protocol.roster import Roster
from coterie.protocol.state import State
from coterie.protocol.units import SILO

ROSTER = Roster(tuple("abc"), torch.ones(3, dtype=torch.float64), torch.ones(1, 3))


@dataclass(frozen=True, kw_only=True)
class Tries(Dual):
    """Does something else with its duals."""

    name: ClassVar[str] = "tries"

    def ask(self, sent, own, oracle, **changes):
        given = {"start": sent.model, "duals": own, "stiffness": sent.stiffness} | changes
        return oracle.solve_dual(given.pop("start"), given.pop("duals"), **given)


class Unproven(Tries):
    """Takes duals that a paper's noise has moved, as if they had not seen each other."""

    def local(self, sent, own, oracle):
        noise = (torch.ones(1, 3, 1), torch.ones(1, 3, 1))
        _, seen = self.ask(sent, own, oracle, unproven=noise)
        return self.ask(sent, own, oracle, duals=seen)


class Uploads(Tries):
    def local(self, sent, own, oracle):
        sums, duals = self.ask(sent, own, oracle)
        return (sums, duals), duals


class Adds(Tries):
    def local(self, sent, own, oracle):
        sums, duals = self.ask(sent, own, oracle)
        return sums, duals + 0


class Mixes(Tries):
    def local(self, sent, own, oracle):
        sums, duals = self.ask(sent, own, oracle)
        return sums + duals.mean(), duals


class Branches(Tries):
    def local(self, sent, own, oracle):
        sums, duals = self.ask(sent, own, oracle)
        return (sums if duals.sum() > 0 else -sums), duals


class Steers(Tries):
    def local(self, sent, own, oracle):
        _, duals = self.ask(sent, own, oracle)
        return self.ask(sent, own, oracle, start=duals)


class Stiffens(Tries):
    def local(self, sent, own, oracle):
        _, duals = self.ask(sent, own, oracle)
        return self.ask(sent, own, oracle, stiffness=duals)


class Predicts(Tries):
    def personal(self, sent, own):
        return own


class Invents(Tries):
    def local(self, sent, own, oracle):
        raw = label(torch.ones(1, 3, 1, 1), raw=True)
        return self.ask(sent, own, oracle, duals=raw)


class Swaps(Tries):
    """Moves in turn first, so that duals have seen each other, then as if they had not."""

    def local(self, sent, own, oracle):
        _, seen = self.ask(sent, own, oracle, whole=True)
        return self.ask(sent, own, oracle, duals=seen)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Uploads(), "an upload is raw"),
        (Adds(), "looks by 'add'"),
        (Mixes(), "looks by 'mean'"),
        (Branches(), "looks by 'sum'"),
        (Steers(), "the start of 'solve_dual' is raw"),
        (Stiffens(), "the stiffness of 'solve_dual' is raw"),
        (Predicts(), r"personal must give \[runs, silos, 4\]|a personal model is raw"),
        (Invents(), "the duals of 'solve_dual' are raw"),
        (Swaps(), "have seen all examples"),
        (Unproven(), "have seen all examples"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_refused(method, said):
    with pytest.raises(Refused, match=said):
        dry_run(method, ROSTER, (4,), 3)


def test_kept_and_given_back_it_is_sound():
    counts = dry_run(Dual(), ROSTER, (4,), 3)
    assert counts.calls == ((SOLVE_DUAL,),) * 3
    assert counts.sealed == (True,)
    assert dry_run(Dual(form="upload"), ROSTER, (4,), 1).calls == ((SOLVE_DUAL_WHOLE,),)


def test_sealed_tells_nothing():
    with Labelling():
        sealed = seal(torch.zeros(2, 3), apart=True)
        for look in (lambda: sealed.shape, lambda: len(sealed), lambda: sealed.numel(), lambda: sealed + 1, lambda: sealed.tolist(), lambda: sealed[0], lambda: repr(sealed),
                     lambda: torch.zeros_like(sealed), lambda: sealed.clone(), lambda: sealed.numpy()):  # fmt: skip
            with pytest.raises(Refused):
                look()


def test_whole_silos_have_no_such_door():
    with pytest.raises(Refused, match="no sound release"):
        dry_run(Dual(), ROSTER, (4,), 2, SILO)


def test_a_digest_that_others_see_is_not_of_duals():
    shared, kept = torch.zeros(1, 1, 2), torch.ones(1, 3, 2)
    states = [State(1, shared, (kept, torch.full((1, 3, 2), value))) for value in (0.0, 1.0)]
    assert digest_of(states[0], (False, True)) == digest_of(states[1], (False, True))
    assert digest_of(states[0], (True, False)) != digest_of(states[1], (True, False))
    assert digest_of(states[0]) != digest_of(states[1])
