"""The certified epsilon against dp-accounting's, on one grid, and the calibration of many silos."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from coterie.privacy.accountant import interval
from coterie.privacy.calibration import Target, calibrate
from coterie.privacy.events import Event
from coterie.privacy.pld.mechanisms import distribution

DELTA, TURNS, SILOS, PAIRS = 1e-5, 5, 1000, 300
SETTINGS = [(5.0, 0.3, 600), (1.0, 0.01, 10_000), (0.6, 0.01, 500), (2.0, 0.05, 100), (1.1, 1e-4, 1_000_000)]


def report() -> list[str]:
    """Time both accountants, taking turns."""
    lines = [
        "## Accountant",
        "",
        f"One upper bound of a Poisson-sampled Gaussian at delta {DELTA:g}, the same grid for both; medians of"
        f" {TURNS} turns.",
        "",
        "| noise | rate | steps | dp-accounting | coterie | ratio | epsilons differ by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for noise, rate, steps in SETTINGS:
        event = Event("gaussian", noise, rate, steps)
        step = interval([event], DELTA, "zero-out")
        theirs, ours = [], []
        for _ in range(TURNS):
            theirs.append(_timed(lambda event=event, step=step: _library(event, step)))
            ours.append(_timed(lambda event=event, step=step: distribution([event], step).epsilon_at(DELTA)))
        a, b = (statistics.median(t for t, _ in both) for both in (theirs, ours))
        apart = abs(theirs[0][1] / ours[0][1] - 1)
        lines.append(
            f"| {noise:g} | {rate:g} | {steps:,} | {a * 1e3:.0f} ms | {b * 1e3:.1f} ms | {a / b:.0f} x"
            f" | {apart:.0e} |"
        )
    return [*lines, "", _many()]


def _library(event: Event, step: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_gaussian_mechanism(
        event.noise, value_discretization_interval=step, sampling_prob=event.rate
    )
    return float(one.self_compose(event.count).get_epsilon_for_delta(DELTA))


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


def _many() -> str:
    """Calibrate many silos from cold."""
    draw = random.Random(1)
    pairs = [(draw.uniform(0.001, 0.3), draw.randint(100, 5000)) for _ in range(PAIRS)]
    epsilons = [draw.choice([1.0, 2.0, 4.0, 8.0]) for _ in range(PAIRS)]
    targets = [Target(epsilons[k % PAIRS], 1e-5, *pairs[k % PAIRS]) for k in range(SILOS)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COTERIE_CACHE"] = folder
        try:
            spent, _ = _timed(lambda: calibrate(targets))
        finally:
            del os.environ["COTERIE_CACHE"]
    return (
        f"Calibrating {SILOS:,} silos with {PAIRS} distinct (rate, steps) pairs, from cold: {spent:.1f} s; the"
        " goal is 30 s."
    )
