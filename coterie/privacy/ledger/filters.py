"""Filters: whether the next run fits, valid when people choose it after seeing earlier results.

A run whose claim is fixed beforehand is certified by its privacy-loss distribution. Runs are
chosen one after the other, so across runs only bounds for adaptively chosen events hold:

- *basic*: certified runs add up, epsilon and delta (Rogers, Roth, Ullman, Vadhan 2016: basic
  composition holds however runs are chosen). A run is charged as planned when it begins, also
  if it stops early: it may have stopped because of what came out. Rounds that are repeated
  after a crash are charged as releases of their own.
- *rdp*: Renyi divergences of reserved rounds add up at one order, fixed when the ledger is made (Feldman
  and Zrnic 2021, theorem 4.3). Only what was reserved is charged: better for many short runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...errors import Problem
from ..accountant import ORDERS

if TYPE_CHECKING:
    from .claim import Claim
    from .entries import LedgerState

# What a sum of certified numbers may exceed a budget by, for the rounding of the sum itself.
SUM_TOLERANCE = 1e-9


class Spent(Problem):
    """A budget does not pay for what was asked."""


class Filter(Protocol):
    """How what was spent adds up over runs."""

    def total(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Give the (epsilon, delta) spent."""
        ...

    def affordable(self, state: LedgerState, claim: Claim, partial: bool) -> int:
        """Give how many rounds of a run the budget pays for: all, none or, with `partial`, some."""
        ...

    def fits(self, state: LedgerState, claims: Sequence[Claim]) -> bool:
        """Whether the budget surely pays for all of some runs, together."""
        ...

    def check_reserve(self, state: LedgerState, runs: Sequence[int], first: int, last: int) -> None:
        """Refuse rounds of some runs, all together, that the budget does not pay for."""
        ...


def charge(
    state: LedgerState, run: int, more: tuple[tuple[int, int], ...] = (), unit: str | None = None
) -> tuple[float, float]:
    """Charge a run as planned, and each repetition of rounds as one more certified release.

    When and how often people go on after a crash may depend on what came out, so repetitions are
    not part of the plan's own certificate. `more` are rounds that would be reserved next. In the `unit`
    of the run, if no other is asked for.
    """
    spans = (*state.reserved(run), *more)
    claim = state.claim_of(run)
    unit = claim.unit if unit is None else unit
    key = run, len(spans), unit
    if more or key not in state.charges:
        extra = [claim.certified(*span, unit=unit) for span in repeated(spans)]
        found = claim.stated(unit) + math.fsum(extra), claim.delta * (1 + len(extra))
        if more:
            return found
        state.charges[key] = found
    return state.charges[key]


def repeated(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """List the parts of reserved rounds, in their order, that had been reserved before.

    >>> repeated([(0, 5), (3, 9), (9, 12), (0, 2)])
    [(3, 5), (0, 2)]
    """
    done, found = 0, []
    for first, last in spans:
        if first < done:
            found.append((first, min(last, done)))
        done = max(done, last)
    return found


def _budget(state: LedgerState, unit: str) -> tuple[float, float]:
    if unit not in state.budgets:
        raise Problem(
            f"the ledger has no budget in the unit '{unit}': give it one with `coterie ledger budget FOLDER"
            f" --unit {unit} --epsilon E --delta D`"
        )
    return state.budgets[unit]


def vetoing(state: LedgerState, claim: Claim) -> list[str]:
    """List the units whose budgets a run must fit into: its own, and those others in which there is one."""
    _budget(state, claim.unit)
    return [unit for unit in claim.units if unit in state.budgets]


def _most(rounds: int, fits: Callable[[int], bool], partial: bool) -> int:
    """Give all rounds if they fit, else none or, with `partial`, the most that do, by halves."""
    if fits(rounds):
        return rounds
    low, high = 0, rounds - 1 if partial else 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


@dataclass(frozen=True)
class Basic:
    """Certified runs add up."""

    def total(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Add up epsilon and delta of the runs that the adversary sees."""
        if (unit, adversary) not in state.sums:
            charged = [charge(state, run, unit=unit) for run in state.seen(unit, adversary)]
            state.sums[unit, adversary] = math.fsum(e for e, _ in charged), math.fsum(d for _, d in charged)
        return state.sums[unit, adversary]

    def _spent(self, state: LedgerState, claim: Claim, unit: str) -> list[tuple[float, float]]:
        """List what was spent against those who see a run."""
        return [self.total(state, unit, adversary) for adversary in claim.seen]

    def affordable(self, state: LedgerState, claim: Claim, partial: bool) -> int:
        """Compare what is left with what is planned, in every unit in which there is a budget."""
        units = vetoing(state, claim)
        if not claim.seen:
            return claim.rounds
        left: dict[str, float] = {}
        for unit in units:
            epsilon, delta = _budget(state, unit)
            spent = self._spent(state, claim, unit)
            left[unit] = epsilon * (1 + SUM_TOLERANCE) - max(e for e, _ in spent)
            if max(d for _, d in spent) + claim.delta > delta * (1 + SUM_TOLERANCE):
                return 0

        def fits(rounds: int) -> bool:
            return all(_cost(claim, rounds, unit) <= room for unit, room in left.items())

        return _most(claim.rounds, fits, partial)

    def fits(self, state: LedgerState, claims: Sequence[Claim]) -> bool:
        """Add up what all of them ask, whoever sees them."""
        for unit in dict.fromkeys(unit for claim in claims for unit in vetoing(state, claim)):
            epsilon, delta = _budget(state, unit)
            charged = [claim for claim in claims if unit in claim.units]
            spent = [(0.0, 0.0), *(each for claim in charged for each in self._spent(state, claim, unit))]
            most = max(e for e, _ in spent) + math.fsum(_cost(claim, claim.rounds, unit) for claim in charged)
            chance = max(d for _, d in spent) + math.fsum(claim.delta for claim in charged)
            if not (most <= epsilon and chance <= delta):
                return False
        return True

    def check_reserve(self, state: LedgerState, runs: Sequence[int], first: int, last: int) -> None:
        """Rounds of the plan are paid for unless the budget was lowered; repetitions must fit beside them.

        Those of all runs count against everybody who sees one of them.
        """
        claims = [state.claim_of(run) for run in runs]
        for unit in dict.fromkeys(unit for claim in claims for unit in vetoing(state, claim)):
            epsilon, delta = _budget(state, unit)
            twice = [run for run in runs if state.repeats(run, first)]
            before = [charge(state, run, (), unit) for run in twice]
            after = [charge(state, run, ((first, last),), unit) for run in twice]
            again = [math.fsum(a[i] - b[i] for a, b in zip(after, before, strict=True)) for i in (0, 1)]
            spent = {each for claim in claims for each in self._spent(state, claim, unit)}
            for total in ((e + again[0], d + again[1]) for e, d in spent):
                if not (
                    total[0] <= epsilon * (1 + SUM_TOLERANCE) and total[1] <= delta * (1 + SUM_TOLERANCE)
                ):
                    why = "would be repeated, which is charged anew" if twice else "remain"
                    where = "" if unit == claims[0].unit else f" in the unit '{unit}'"
                    raise Spent(
                        f"rounds {first} to {last} {why}, and the budget (epsilon {epsilon:g}, delta"
                        f" {delta:g}){where} does not pay for ({total[0]:.4g}, {total[1]:.3g})"
                    )


def _cost(claim: Claim, rounds: int, unit: str) -> float:
    """Give the epsilon of the first rounds of a run that was not charged yet."""
    whole = rounds == claim.rounds and unit == claim.unit
    found = claim.certified(0, rounds, unit=unit)
    return max(claim.epsilon, found) if whole else found


@dataclass(frozen=True)
class Renyi:
    """Renyi divergences of reserved rounds add up at one order, which is fixed when a ledger is made."""

    def total(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Add up the divergences that the adversary sees, and turn them to (epsilon, delta).

        At the delta of the budget; where only whole silos have one, at that.
        """
        _, delta = state.budgets.get(unit) or _budget(state, "silo")
        spent = self._spent(state, unit, adversary)
        if not spent:
            return 0.0, 0.0
        return max(0.0, spent + _turned(state.order, delta)), delta

    def _spent(self, state: LedgerState, unit: str, adversary: str) -> float:
        return math.fsum(
            state.claim_of(run).divergence(*span, state.order, unit)
            for run in state.seen(unit, adversary)
            for span in _charged(state.claim_of(run), state.reserved(run))
        )

    def _left(self, state: LedgerState, claim: Claim, unit: str) -> float:
        epsilon, delta = _budget(state, unit)
        most = epsilon - _turned(state.order, delta)
        return most - max(self._spent(state, unit, adversary) for adversary in claim.seen)

    def affordable(self, state: LedgerState, claim: Claim, partial: bool) -> int:
        """Compare what is left of the divergence with that of the rounds, in every unit with a budget."""
        units = vetoing(state, claim)
        if not claim.seen:
            return claim.rounds
        left = {unit: self._left(state, claim, unit) for unit in units}
        for unit in units[1:]:
            if math.isinf(claim.divergence(0, claim.rounds, state.order, unit)):
                raise Spent(
                    f"the filter 'rdp' knows no bound in the unit '{unit}' for silos that are drawn: make"
                    " ledgers with the filter 'basic'"
                )

        def fits(rounds: int) -> bool:
            return all(claim.divergence(0, rounds, state.order, unit) <= left[unit] for unit in units)

        return _most(claim.rounds, fits, partial)

    def fits(self, state: LedgerState, claims: Sequence[Claim]) -> bool:
        """Reservations are what counts here: not known beforehand."""
        return False

    def check_reserve(self, state: LedgerState, runs: Sequence[int], first: int, last: int) -> None:
        """Every reservation must fit into what is left."""
        claims = [(state.claim_of(run), state.reserved(run)) for run in runs if state.claim_of(run).seen]
        for unit in dict.fromkeys(unit for claim, _ in claims for unit in vetoing(state, claim)):
            asked = math.fsum(
                claim.divergence(*span, state.order, unit)
                for claim, before in claims
                for span in _charged(claim, [*before, (first, last)])[len(_charged(claim, before)) :]
            )
            if asked > min(self._left(state, claim, unit) for claim, _ in claims) + SUM_TOLERANCE:
                epsilon, _ = _budget(state, unit)
                raise Spent(f"the budget (epsilon {epsilon:g}) does not pay for rounds {first} to {last}")


def best_order(epsilon: float, delta: float) -> int:
    """Choose the order at which a Gaussian would spend a budget best."""
    tail = math.sqrt(math.log(1 / delta))
    wanted = tail / (math.sqrt(tail**2 + epsilon) - tail)
    return min(ORDERS, key=lambda order: abs(math.log((order - 1) / wanted)))


def _charged(claim: Claim, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """List the rounds whose divergences count: all reserved ones; of a best trial once, and repetitions."""
    return spans if claim.trials is None else [*spans[:1], *repeated(spans)]


def _turned(order: int, delta: float) -> float:
    """Give what turning a divergence to (epsilon, delta) adds (Canonne, Kamath, Steinke 2020, 12)."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


FILTERS: dict[str, Filter] = {"basic": Basic(), "rdp": Renyi()}


def filter_for(kind: str) -> Filter:
    """Give a filter by its name."""
    if kind not in FILTERS:
        raise Problem(f"filter: expected one of {', '.join(FILTERS)}, got '{kind}'")
    return FILTERS[kind]
