"""Filters: whether the next run fits, even if people choose it after seeing earlier results.

A run with a plan fixed in advance is certified by its privacy-loss distribution. Runs are chosen one
after another, so across runs only bounds for adaptively chosen events hold:

- *basic*: the epsilons and deltas of certified runs add up (Rogers, Roth, Ullman, Vadhan 2016: basic
  composition holds however runs are chosen). A run is charged as planned when it begins, even if it
  stops early, because its results may have been the reason to stop. Rounds that are repeated after a
  crash are charged as separate releases.
- *rdp*: the Renyi divergences of reserved rounds add up at one order, fixed when the ledger is created
  (Feldman and Zrnic 2021, theorem 4.3). Only reserved rounds are charged, which suits many short runs.
  Runs begin only if they fit together with what unfinished runs may still reserve. No good Renyi bound is
  known for passes by random allocation; a pass counts like one release of all units.
- *gdp*: every run is (mu, delta0)-approximately Gaussian; the squares of mu add up, and so do the delta0, up
  to limits that follow from the budget. `approximate_gaussian` has the proof. Runs are charged as planned,
  like *basic*, and are far cheaper if there are many (`python -m benchmarks filters`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from ...errors import Problem
from .. import gaussian
from ..accountant import ADJACENCY, ORDERS
from ..approximate_gaussian import approximation, mu_of, mu_within
from ..events import grouped
from ..units import UNITS
from .claim import OTHER, Claim

if TYPE_CHECKING:
    from .entries import LedgerState

# The relative amount by which a sum of certified numbers may exceed a budget, because sums are rounded.
SUM_TOLERANCE = 1e-9
PASSES_COUNT_WHOLE = (
    "the filter 'rdp' counts a pass over the data like one release of all examples: use the filter 'gdp' or"
    " 'basic', or train.sampling = 'poisson'"
)
TOLD = 0.1  # the share of a budget's delta for what approximately Gaussian runs may tell


class Spent(Problem):
    """A budget does not cover what was asked for.

    `resumable` says that these are rounds of a run that was granted: it can resume once the budget is raised.
    """

    def __init__(self, text: str = "", resumable: bool = False) -> None:
        super().__init__(text)
        self.resumable = resumable


class Filter(Protocol):
    """How spending adds up over runs.

    `by_round` says that only reserved rounds are charged. Otherwise a run is charged as planned once it has
    begun, so that rounds it never reserved cannot be given back.
    """

    by_round: ClassVar[bool]

    def total(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Return the (epsilon, delta) spent."""
        ...

    def carried(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Return what was spent in the filter's own numbers, from which a recovered ledger goes on.

        `total` includes `state.carried`, which are such numbers.
        """
        ...

    def affordable(self, state: LedgerState, claim: Claim, partial: bool) -> int:
        """Return how many rounds of a run the budget covers: all, none or, with `partial`, some."""
        ...

    def fits(self, state: LedgerState, claims: Sequence[Claim]) -> bool:
        """Return whether the budget certainly covers all of these runs together."""
        ...

    def check_granted(self, state: LedgerState, claims: Sequence[Claim]) -> None:
        """Raise `Spent` unless the budget covers all rounds of these runs, which the state has, together."""
        ...

    def check_reserve(self, state: LedgerState, runs: Sequence[int], first: int, last: int) -> None:
        """Raise `Spent` unless the budget covers these rounds of all these runs together."""
        ...


def charge(
    state: LedgerState, run: int, more: tuple[tuple[int, int], ...] = (), unit: str | None = None
) -> tuple[float, float]:
    """Return the charge of a run: as planned, plus one certified release for each repetition of rounds.

    When and how often people resume after a crash may depend on the results, so repetitions are not
    part of the plan's own certificate. `more` are rounds that would be reserved next. The default `unit`
    is that of the run.
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
    """Return the parts of reserved rounds that had been reserved before, in order.

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
            f"the ledger has no budget in the unit '{unit}'; set one with `coterie ledger budget FOLDER"
            f" --unit {unit} --epsilon E --delta D`"
        )
    return state.budgets[unit]


def _delta_for(state: LedgerState, unit: str) -> float:
    """Return the delta at which a total in a unit is stated."""
    larger = UNITS[UNITS.index(unit) :]
    return _budget(state, next((each for each in larger if each in state.budgets), unit))[1]


def vetoing(state: LedgerState, claim: Claim) -> list[str]:
    """Return the units whose budgets a run must fit: its own, and any other it counts in that has one."""
    _budget(state, claim.unit)
    return [unit for unit in claim.units if unit in state.budgets]


def _most(rounds: int, fits: Callable[[int], bool], partial: bool) -> int:
    """Return `rounds` if all fit, else 0 or, with `partial`, the largest number that fits (by bisection)."""
    if fits(rounds):
        return rounds
    low, high = 0, rounds - 1 if partial else 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


@dataclass(frozen=True)
class Basic:
    """The epsilons and deltas of certified runs add up."""

    by_round: ClassVar[bool] = False

    def total(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Return the sums of epsilon and delta over the runs that the adversary sees."""
        if (unit, adversary) not in state.sums:
            charged = [charge(state, run, unit=unit) for run in state.seen(unit, adversary)]
            charged.append(state.carried.get((unit, adversary), (0.0, 0.0)))
            state.sums[unit, adversary] = math.fsum(e for e, _ in charged), math.fsum(d for _, d in charged)
        return state.sums[unit, adversary]

    def carried(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Return the sums of epsilon and delta."""
        return self.total(state, unit, adversary)

    def _spent(self, state: LedgerState, claim: Claim, unit: str) -> list[tuple[float, float]]:
        """Return what was spent against each adversary who sees a run."""
        return [self.total(state, unit, adversary) for adversary in claim.seen]

    def affordable(self, state: LedgerState, claim: Claim, partial: bool) -> int:
        """Compare what is left with what is planned, in every unit that has a budget."""
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
        """Add up what all runs need, whoever sees them."""
        for unit in dict.fromkeys(unit for claim in claims for unit in vetoing(state, claim)):
            epsilon, delta = _budget(state, unit)
            charged = [claim for claim in claims if unit in claim.units]
            spent = [(0.0, 0.0), *(each for claim in charged for each in self._spent(state, claim, unit))]
            most = max(e for e, _ in spent) + math.fsum(_cost(claim, claim.rounds, unit) for claim in charged)
            chance = max(d for _, d in spent) + math.fsum(claim.delta for claim in charged)
            if not (most <= epsilon and chance <= delta):
                return False
        return True

    def check_granted(self, state: LedgerState, claims: Sequence[Claim]) -> None:
        """Do nothing: a run is charged when it is granted, so the next is compared with what is left."""

    def check_reserve(self, state: LedgerState, runs: Sequence[int], first: int, last: int) -> None:
        """Raise `Spent` if repeated rounds do not fit, or if the budget has been lowered since the charge.

        Planned rounds are paid for already. The repetitions of all runs count against everybody who sees
        one of the runs.
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
                    why = "would be repeated, which is charged again" if twice else "remain"
                    where = "" if unit == claims[0].unit else f" in the unit '{unit}'"
                    raise Spent(
                        f"rounds {first} to {last} {why}, but the budget (epsilon {epsilon:g}, delta"
                        f" {delta:g}){where} does not cover ({total[0]:.4g}, {total[1]:.3g})",
                        resumable=True,
                    )


def _cost(claim: Claim, rounds: int, unit: str) -> float:
    """Return the epsilon of the first rounds of a run that is not charged yet."""
    whole = rounds == claim.rounds and unit == claim.unit
    found = claim.certified(0, rounds, unit=unit)
    return max(claim.epsilon, found) if whole else found


@dataclass(frozen=True)
class Renyi:
    """The Renyi divergences of reserved rounds add up at one order, fixed when the ledger is created."""

    by_round: ClassVar[bool] = True

    def total(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Add up the divergences that the adversary sees, and convert them to (epsilon, delta).

        Delta is that of the unit's budget or, if it has none, that of the next larger unit that has one.
        """
        delta = _delta_for(state, unit)
        spent = self._spent(state, unit, adversary)
        if not spent:
            return 0.0, 0.0
        return max(0.0, spent + _turned(state.order, delta)), delta

    def carried(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Return the divergence at the ledger's order."""
        return self._spent(state, unit, adversary), 0.0

    def _spent(self, state: LedgerState, unit: str, adversary: str) -> float:
        before, _ = state.carried.get((unit, adversary), (0.0, 0.0))
        return before + math.fsum(
            state.claim_of(run).divergence(*span, state.order, unit)
            for run in state.seen(unit, adversary)
            for span in _charged(state.claim_of(run), state.reserved(run))
        )

    def _left(self, state: LedgerState, claim: Claim, unit: str) -> float:
        epsilon, delta = _budget(state, unit)
        most = epsilon - _turned(state.order, delta)
        return most - max(self._spent(state, unit, adversary) for adversary in claim.seen)

    def affordable(self, state: LedgerState, claim: Claim, partial: bool) -> int:
        """Compare the remaining divergence with that of the rounds, in every unit that has a budget."""
        units = vetoing(state, claim)
        if not claim.seen:
            return claim.rounds
        left = {unit: self._left(state, claim, unit) for unit in units}
        for unit in units[1:]:
            if math.isinf(claim.divergence(0, claim.rounds, state.order, unit)):
                raise Spent(
                    f"the filter 'rdp' has no bound in the unit '{unit}' for randomly drawn {claim.unit}s;"
                    " create ledgers with the filter 'basic'"
                )

        def fits(rounds: int) -> bool:
            return all(claim.divergence(0, rounds, state.order, unit) <= left[unit] for unit in units)

        return _most(claim.rounds, fits, partial)

    def fits(self, state: LedgerState, claims: Sequence[Claim]) -> bool:
        """Return False: this filter charges reservations, which are not known in advance."""
        return False

    def check_granted(self, state: LedgerState, claims: Sequence[Claim]) -> None:
        """Add what all unfinished runs may still reserve, these among them, to what is spent."""
        waiting = {run: (state.claim_of(run), span) for run, span in state.unreserved().items()}
        for unit in dict.fromkeys(unit for claim in claims for unit in vetoing(state, claim)):
            epsilon, delta = _budget(state, unit)
            for adversary in dict.fromkeys(name for claim in claims for name in claim.seen):
                counted = {run: waiting[run] for run in state.seen(unit, adversary) if run in waiting}
                needed = self._spent(state, unit, adversary) + math.fsum(
                    claim.divergence(*span, state.order, unit)
                    for run, (claim, left) in counted.items()
                    for span in _more(claim, state.reserved(run), left)
                )
                total = needed + _turned(state.order, delta)
                if total > epsilon + SUM_TOLERANCE:
                    raise Spent(
                        f"the budget of this data set is (epsilon {epsilon:g}, delta {delta:g}) in the unit"
                        f" '{unit}', but what is spent and what unfinished runs may still spend would be"
                        f" epsilon {total:.4g}, so {len(claims)} run(s) more do not fit"
                    )

    def check_reserve(self, state: LedgerState, runs: Sequence[int], first: int, last: int) -> None:
        """Raise `Spent` unless the reservation fits into what is left."""
        claims = [(state.claim_of(run), state.reserved(run)) for run in runs if state.claim_of(run).seen]
        for unit in dict.fromkeys(unit for claim, _ in claims for unit in vetoing(state, claim)):
            asked = math.fsum(
                claim.divergence(*span, state.order, unit)
                for claim, before in claims
                for span in _more(claim, before, (first, last))
            )
            if asked > min(self._left(state, claim, unit) for claim, _ in claims) + SUM_TOLERANCE:
                epsilon, _ = _budget(state, unit)
                said = f"the budget (epsilon {epsilon:g}) does not cover rounds {first} to {last}"
                raise Spent(said, resumable=True)


@dataclass(frozen=True)
class Gaussian:
    """The squares of mu of approximately Gaussian runs add up, and so do their delta0."""

    by_round: ClassVar[bool] = False

    def total(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Add up what the adversary sees, and convert it to the epsilon at nine tenths of the budget's delta.

        The delta is that share and the sum of delta0. The budget is that of the unit or, if it has none, that
        of the next larger unit that has one.
        """
        delta = _delta_for(state, unit)
        square, told = self._spent(state, unit, adversary)
        if not square and not told:
            return 0.0, 0.0
        if math.isinf(square):
            return math.inf, delta
        rest = delta * (1 - TOLD)
        return gaussian.epsilon_of(math.sqrt(square), rest) if square else 0.0, rest + told

    def carried(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        """Return the sums of squared mu and of delta0."""
        return self._spent(state, unit, adversary)

    def _spent(self, state: LedgerState, unit: str, adversary: str) -> tuple[float, float]:
        charged = [_gaussian_charge(state, run, unit) for run in state.seen(unit, adversary)]
        return _summed([*charged, state.carried.get((unit, adversary), (0.0, 0.0))])

    def _most_spent(self, state: LedgerState, claims: Sequence[Claim], unit: str) -> tuple[float, float]:
        """Return the largest sums against anyone who sees one of the runs."""
        names = dict.fromkeys(name for claim in claims if unit in claim.units for name in claim.seen)
        spent = [(0.0, 0.0), *(self._spent(state, unit, name) for name in names)]
        return max(square for square, _ in spent), max(told for _, told in spent)

    def affordable(self, state: LedgerState, claim: Claim, partial: bool) -> int:
        """Compare what is left with what is planned, in every unit that has a budget."""
        units = vetoing(state, claim)
        if not claim.seen:
            return claim.rounds

        spent = {unit: self._most_spent(state, [claim], unit) for unit in units}

        def fits(rounds: int) -> bool:
            costs = {unit: [gaussian_cost(claim, 0, rounds, unit)] for unit in units}
            return all(self._covers(state, unit, spent[unit], costs[unit]) for unit in units)

        return _most(claim.rounds, fits, partial)

    def fits(self, state: LedgerState, claims: Sequence[Claim]) -> bool:
        """Add up what all runs need, whoever sees them."""
        return all(
            self._covers(
                state, unit, self._most_spent(state, claims, unit),
                [gaussian_cost(claim, 0, claim.rounds, unit) for claim in claims if unit in claim.units],
            )
            for unit in dict.fromkeys(unit for claim in claims for unit in vetoing(state, claim))
        )  # fmt: skip

    def check_granted(self, state: LedgerState, claims: Sequence[Claim]) -> None:
        """Do nothing: runs are charged as planned when they are granted."""

    def check_reserve(self, state: LedgerState, runs: Sequence[int], first: int, last: int) -> None:
        """Raise `Spent` if repeated rounds do not fit, or if the budget has been lowered since the charge."""
        claims = [state.claim_of(run) for run in runs]
        for unit in dict.fromkeys(unit for claim in claims for unit in vetoing(state, claim)):
            more = [
                gaussian_cost(state.claim_of(run), *span, unit)
                for run in runs
                if unit in state.claim_of(run).units
                for span in _newly_repeated(state.reserved(run), first, last)
            ]
            if not self._covers(state, unit, self._most_spent(state, claims, unit), more):
                why = "would be repeated, which is charged again" if more else "remain"
                epsilon, delta = _budget(state, unit)
                where = "" if unit == claims[0].unit else f" in the unit '{unit}'"
                raise Spent(
                    f"rounds {first} to {last} {why}, but the budget (epsilon {epsilon:g}, delta"
                    f" {delta:g}){where} does not cover them",
                    resumable=True,
                )

    def _covers(
        self, state: LedgerState, unit: str, spent: tuple[float, float], more: Sequence[tuple[float, float]]
    ) -> bool:
        """Return whether a budget covers what is spent and more."""
        epsilon, delta = _budget(state, unit)
        square, told = _summed([spent, *more])
        most = mu_within(epsilon, delta * (1 - TOLD)) ** 2
        return square <= most * (1 + SUM_TOLERANCE) and told <= delta * TOLD * (1 + SUM_TOLERANCE)


def gaussian_cost(claim: Claim, first: int, last: int, unit: str) -> tuple[float, float]:
    """Return (mu^2, delta0) of some rounds of a run; the best of several trials has only an epsilon."""
    if claim.trials is not None:
        return mu_of(claim.certified(first, last, unit=unit)) ** 2, claim.delta
    adjacency = ADJACENCY if unit == claim.unit else OTHER
    mu, told = approximation(grouped(claim.events(first, last)), claim.delta, adjacency)
    return mu**2, told


def _gaussian_charge(state: LedgerState, run: int, unit: str) -> tuple[float, float]:
    """Return (mu^2, delta0) of the rounds that a run was granted, and of each repetition of rounds."""
    parts = [(0, int(state.runs[run]["allowed"])), *repeated(state.reserved(run))]
    return _summed(gaussian_cost(state.claim_of(run), *span, unit) for span in parts)


def _newly_repeated(spans: Sequence[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """Return the parts of a new reservation that repeat earlier ones."""
    return repeated([*spans, (first, last)])[len(repeated(spans)) :]


def _summed(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    given = list(pairs)
    return math.fsum(one for one, _ in given), math.fsum(two for _, two in given)


def best_order(epsilon: float, delta: float) -> int:
    """Return the order at which a Gaussian mechanism gets the most out of a budget."""
    tail = math.sqrt(math.log(1 / delta))
    wanted = tail / (math.sqrt(tail**2 + epsilon) - tail)
    return min(ORDERS, key=lambda order: abs(math.log((order - 1) / wanted)))


def _charged(claim: Claim, spans: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return the spans that count: all reserved ones or, for a best trial, the first and repetitions."""
    return spans if claim.trials is None else [*spans[:1], *repeated(spans)]


def _more(
    claim: Claim, before: Sequence[tuple[int, int]], span: tuple[int, int]
) -> Sequence[tuple[int, int]]:
    """Return the spans that count in addition if one more is reserved."""
    return _charged(claim, [*before, span])[len(_charged(claim, before)) :]


def _turned(order: int, delta: float) -> float:
    """Return what converting a divergence to (epsilon, delta) adds (Canonne, Kamath, Steinke 2020, 12)."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


FILTERS: dict[str, Filter] = {"basic": Basic(), "rdp": Renyi(), "gdp": Gaussian()}


def filter_for(kind: str) -> Filter:
    """Return the filter with this name."""
    if kind not in FILTERS:
        raise Problem(f"filter: expected one of {', '.join(FILTERS)}, got '{kind}'")
    return FILTERS[kind]
