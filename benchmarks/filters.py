"""How many equal runs fit into a ledger's budget, with each of its filters."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.filters import FILTERS
from coterie.privacy.ledger.ledger import Identity, open_ledger

MOST = 5_000
BUDGETS = ((2.0, 1e-5), (8.0, 1e-5))
# one event per round: what the run is, its noise, rate, steps per round and rounds
RUNS = (
    ("600 sampled steps, rate 0.3", 20.0, 0.3, 6, 100),
    ("10,000 sampled steps, rate 0.01", 4.0, 0.01, 100, 100),
    ("1,000 sampled steps, rate 0.01", 1.0, 0.01, 10, 100),
    ("40 sampled steps, rate 0.1", 3.0, 0.1, 2, 20),
    ("100 merges of all silos", 100.0, 1.0, 1, 100),
    ("1 merge of all silos", 20.0, 1.0, 1, 1),
)


def report() -> list[str]:
    """Count the runs that fit."""
    lines = [
        "## Filters of a ledger",
        "",
        "How many equal runs fit into a budget. Runs ask for a hundredth of the ledger's delta each.",
        "",
        "| run | noise | epsilon of one | budget | " + " | ".join(FILTERS) + " | seconds |",
        "| --- | --- | --- | --- | " + "--- | " * len(FILTERS) + "--- |",
    ]
    for label, noise, rate, steps, rounds in RUNS:
        for budget in BUDGETS:
            claim = _claim(label, Event("gaussian", noise, rate, steps), rounds, budget[1] / 100)
            start = time.perf_counter()
            counts = [_fitting(claim, budget, name) for name in FILTERS]
            took = time.perf_counter() - start
            shown = " | ".join(str(count) for count in counts)
            asked = f"{claim.epsilon:.3g} at {claim.delta:g}"
            lines.append(
                f"| {label} | {noise:g} | {asked} | {budget[0]:g} at {budget[1]:g} | {shown} | {took:.1f} |"
            )
    return [*lines, ""]


def _claim(label: str, event: Event, rounds: int, delta: float) -> Claim:
    made = Claim(label, "example", delta, 0.0, ((rounds, (event,)),))
    return Claim(label, "example", delta, epsilon_of(made.events(0, rounds), delta), made.stages)


def _fitting(claim: Claim, budget: tuple[float, float], name: str) -> int:
    """Return the largest number of runs that fit together, by bisection over fresh ledgers."""
    with tempfile.TemporaryDirectory() as folder:
        book = open_ledger(Path(folder), Identity("benchmark", "silo", 100), budget, filter=name)
        state = book.state()
        low, high = 0, MOST
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if _fits(state, claim, middle, name) else (low, middle - 1)
        book.close()
    return low


def _fits(state, claim: Claim, count: int, name: str) -> bool:  # type: ignore[no-untyped-def]
    if name == "rdp":  # it charges what is reserved: all rounds of all runs
        one = claim.divergence(0, claim.rounds, state.order)
        most = state.filter._left(state, claim, "example")
        return count * one <= most
    return state.filter.fits(state, [claim] * count)
