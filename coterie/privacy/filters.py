"""Filters: whether the next run fits, valid when people choose it after seeing earlier results.

A run whose plan is fixed beforehand is certified by its privacy-loss distribution. Runs are
chosen one after the other, so across runs only bounds for adaptively chosen events hold:

- *basic*: certified runs add up, epsilon and delta (Rogers, Roth, Ullman, Vadhan 2016: basic
  composition holds however runs are chosen). A run is charged as planned when it begins, also
  if it stops early: it may have stopped because of what came out.
- *rdp*: Renyi divergences of reserved rounds add up at one order, fixed by the budget (Feldman
  and Zrnic 2021, theorem 4.3). Only what was reserved is charged: better for many short runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..errors import Problem
from .accountant import ORDERS, epsilon_of, renyi_curve
from .events import Event

if TYPE_CHECKING:
    from .ledger import State
    from .runplan import RunPlan

# What a sum of certified numbers may exceed a budget by, for the rounding of the sum itself.
ROUNDING = 1e-9


class Spent(Problem):
    """A budget does not pay for what was asked."""


class Filter(Protocol):
    """How what was spent adds up over runs."""

    def total(self, state: State, unit: str, adversary: str) -> tuple[float, float]:
        """Give the (epsilon, delta) spent."""
        ...

    def affordable(self, state: State, plan: RunPlan, partial: bool) -> int:
        """Give how many rounds of a run the budget pays for: all, none or, with `partial`, some."""
        ...

    def certified(self, plan: RunPlan, first: int, last: int) -> float:
        """Give the epsilon of some rounds of a run."""
        ...

    def check_reserve(self, state: State, run: int, plan: RunPlan, first: int, last: int) -> None:
        """Refuse rounds that the budget does not pay for."""
        ...


def _budget(state: State, unit: str) -> tuple[float, float]:
    if unit not in state.budgets:
        raise Problem(f"the ledger has no budget in the unit '{unit}': set one first")
    return state.budgets[unit]


def _most(plan: RunPlan, fits_within: float) -> int:
    """Give the largest number of rounds whose epsilon is at most a number, by halves."""
    low, high = 0, plan.rounds
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon_of(plan.events(0, middle), plan.delta) <= fits_within:
            low = middle
        else:
            high = middle - 1
    return low


def _all_reserved(state: State, run: int, plan: RunPlan) -> tuple[Event, ...]:
    return tuple(e for first, last in state.reserved(run) for e in plan.events(first, last))


def _repeats(spans: list[tuple[int, int]]) -> bool:
    """Whether some round was reserved twice."""
    ends = sorted(spans)
    return any(later[0] < earlier[1] for earlier, later in zip(ends, ends[1:], strict=False))


@dataclass(frozen=True)
class Basic:
    """Certified runs add up."""

    def total(self, state: State, unit: str, adversary: str) -> tuple[float, float]:
        """Add up epsilon and delta of the runs that the adversary sees."""
        charged = [charge(state, run) for run, body in state.runs.items()
                   if body["unit"] == unit and adversary in body["seen"]]  # fmt: skip
        return math.fsum(e for e, _ in charged), math.fsum(d for _, d in charged)

    def affordable(self, state: State, plan: RunPlan, partial: bool) -> int:
        """Compare what is left with what is planned."""
        epsilon, delta = _budget(state, plan.unit)
        spent = [self.total(state, plan.unit, adversary) for adversary in plan.seen]
        left = epsilon * (1 + ROUNDING) - max(e for e, _ in spent)
        if max(d for _, d in spent) + plan.delta > delta * (1 + ROUNDING):
            return 0
        if plan.epsilon <= left:
            return plan.rounds
        return _most(plan, left) if partial else 0

    def certified(self, plan: RunPlan, first: int, last: int) -> float:
        """Give the epsilon of some rounds by their privacy-loss distribution."""
        return epsilon_of(plan.events(first, last), plan.delta)

    def check_reserve(self, state: State, run: int, plan: RunPlan, first: int, last: int) -> None:
        """Rounds of the plan are paid for; repeated ones must fit into what is left."""
        spans = [*state.reserved(run), (first, last)]
        if not _repeats(spans):
            return
        epsilon, _ = _budget(state, plan.unit)
        more = epsilon_of((*_with_plan(state, run, plan), *plan.events(first, last)), plan.delta)
        for adversary in plan.seen:
            total = self.total(state, plan.unit, adversary)[0]
            if total - charge(state, run)[0] + more > epsilon * (1 + ROUNDING):
                raise Spent(
                    f"rounds {first} to {last} must be repeated, and the budget (epsilon {epsilon:g}) does"
                    " not pay for them twice"
                )


def charge(state: State, run: int) -> tuple[float, float]:
    """Charge a run as planned; more if rounds had to be repeated."""
    plan, spans = state.plan_of(run), state.reserved(run)
    if not _repeats(spans):
        return plan.epsilon, plan.delta
    return max(plan.epsilon, epsilon_of(_with_plan(state, run, plan), plan.delta)), plan.delta


def released(state: State, run: int) -> tuple[Event, ...]:
    """Give what a run may release in all: what it reserved, and the rest of what it may do."""
    return _with_plan(state, run, state.plan_of(run))


def _with_plan(state: State, run: int, plan: RunPlan) -> tuple[Event, ...]:
    """Give all that a run with repeated rounds may release: what it reserved, and the rest of its plan."""
    spans = state.reserved(run)
    done = max((last for _, last in spans), default=0)
    allowed = int(state.runs[run]["allowed"])
    return (*_all_reserved(state, run, plan), *plan.events(done, allowed))


@dataclass(frozen=True)
class Renyi:
    """Renyi divergences of reserved rounds add up at one order."""

    def order(self, epsilon: float, delta: float) -> int:
        """Choose the place in `ORDERS` at which a Gaussian would spend the budget best, a whole number."""
        tail = math.sqrt(math.log(1 / delta))
        wanted = 1 + tail / (math.sqrt(tail**2 + epsilon) - tail)
        whole = [k for k, order in enumerate(ORDERS) if order == int(order)]
        return min(whole, key=lambda k: abs(math.log((ORDERS[k] - 1) / (wanted - 1))))

    def _rate(self, order: float, delta: float) -> float:
        """Give what turning it to (epsilon, delta) adds (Canonne, Kamath, Steinke 2020, proposition 12)."""
        return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)

    def total(self, state: State, unit: str, adversary: str) -> tuple[float, float]:
        """Add up the divergences that the adversary sees, and convert."""
        epsilon, delta = _budget(state, unit)
        place = self.order(epsilon, delta)
        spent = self._spent(state, unit, adversary, place)
        return (max(0.0, spent + self._rate(ORDERS[place], delta)) if spent else 0.0), (
            delta if spent else 0.0
        )

    def _spent(self, state: State, unit: str, adversary: str, place: int) -> float:
        parts = []
        for run, body in state.runs.items():
            if body["unit"] == unit and adversary in body["seen"]:
                plan = state.plan_of(run)
                parts.append(renyi_curve(_all_reserved(state, run, plan))[place])
        return math.fsum(parts)

    def _left(self, state: State, plan: RunPlan) -> tuple[float, int]:
        epsilon, delta = _budget(state, plan.unit)
        place = self.order(epsilon, delta)
        most = epsilon - self._rate(ORDERS[place], delta)
        return most - max(self._spent(state, plan.unit, a, place) for a in plan.seen), place

    def affordable(self, state: State, plan: RunPlan, partial: bool) -> int:
        """Compare what is left of the divergence with that of the rounds."""
        left, place = self._left(state, plan)
        whole = renyi_curve(plan.events(0, plan.rounds))[place]
        if whole <= left:
            return plan.rounds
        if not partial:
            return 0
        low, high = 0, plan.rounds
        while low < high:
            middle = (low + high + 1) // 2
            if renyi_curve(plan.events(0, middle))[place] <= left:
                low = middle
            else:
                high = middle - 1
        return low

    def certified(self, plan: RunPlan, first: int, last: int) -> float:
        """Give the epsilon of some rounds by their privacy-loss distribution."""
        return epsilon_of(plan.events(first, last), plan.delta)

    def check_reserve(self, state: State, run: int, plan: RunPlan, first: int, last: int) -> None:
        """Every reservation must fit into what is left."""
        left, place = self._left(state, plan)
        if renyi_curve(plan.events(first, last))[place] > left + ROUNDING:
            epsilon, _ = _budget(state, plan.unit)
            raise Spent(f"the budget (epsilon {epsilon:g}) does not pay for rounds {first} to {last}")


FILTERS: dict[str, Filter] = {"basic": Basic(), "rdp": Renyi()}


def filter_for(kind: str) -> Filter:
    """Give a filter by its name."""
    if kind not in FILTERS:
        raise Problem(f"filter: expected one of {', '.join(FILTERS)}, got '{kind}'")
    return FILTERS[kind]
