"""A statistical audit of the unit 'person': what is released is never easier to tell apart than certified.

The worst pair: everybody else is null, and all rows of the person who is there or not point the same way, so
that their mean has the length of the clip. A training that samples or clips rows exceeds the certificate, and
the audit notices it.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from coterie.cohort.dp_sgd import Cohort, Settings
from coterie.cohort.examples import Examples, Persons
from coterie.privacy.pld.mechanisms import distribution
from coterie.protocol.doors import Work
from coterie.tasks.task import Task
from tests.test_passes_audit import CHANCE, EPSILONS, noisy_sums, told

PEOPLE, EACH, STEPS, NOISE = 6, 4, 3, 1 / 1.5
RUNS, REPEATS = 200, 400
WORK = Work(PEOPLE, PEOPLE // 3, STEPS)


@functools.lru_cache
def released(there: bool, by_person: bool) -> np.ndarray:
    """Return noisy sums, in units of the noise: [trainings, steps]."""
    rows = PEOPLE * EACH
    x, y = torch.zeros(1, rows, 1), torch.zeros(1, rows)
    mine = torch.arange(2, rows, PEOPLE)
    x[0, mine], y[0, mine] = float(there), -float(there)  # the gradient of each row at 0 is 1: the clip
    task = Task(lambda: torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False)), "squared", (1,))
    persons, members = None, rows
    if by_person:
        place = torch.arange(rows).reshape(EACH, PEOPLE).T.reshape(1, PEOPLE, EACH)
        persons, members = Persons(place, torch.full(place.shape, 1 / EACH)), PEOPLE
    full, work = torch.ones(RUNS, 1), Work(members, members // 3, STEPS * REPEATS)
    settings = Settings(1e-30 * full, full, NOISE * full)
    made = Cohort(task, Examples(("a",), (members,), x, y, 1.0, persons=persons), (work,), settings)
    return noisy_sums(made, f"{there} {by_person}", STEPS) / NOISE


def losses(sums: np.ndarray) -> np.ndarray:
    """Return the log-likelihood ratios of sampled Gaussian sums."""
    weights = np.exp(sums / NOISE - 1 / (2 * NOISE**2))
    return np.log(1 - WORK.rate + WORK.rate * weights).sum(1)


def excess(by_person: bool) -> float:
    """Return by how much an attack exceeds the certificate of the unit 'person': at most 0 if it holds."""
    certified = distribution([WORK.releases(NOISE, STEPS)], 0.005).directions
    there, gone = losses(released(True, by_person)), losses(released(False, by_person))
    found = []
    for epsilon in EPSILONS:
        most = [float(way.delta_at(np.array([epsilon]))[0]) for way in certified]
        found += [told(there, gone, epsilon) - most[0], told(-gone, -there, epsilon) - most[1]]
    return max(found)


def test_no_attack_exceeds_the_certificate_of_persons():
    assert -0.03 < excess(by_person=True) <= 0  # and one of them comes close


def test_sampling_and_clipping_rows_exceeds_it():
    assert excess(by_person=False) > 0.05


def test_a_person_is_in_a_batch_as_often_as_is_charged():
    there, gone = released(True, True), released(False, True)
    assert stats.kstest(gone.reshape(-1), "norm").pvalue > CHANCE
    mean = WORK.rate / NOISE
    assert abs(there.mean() - mean) < 5.5 * there.std() / math.sqrt(there.size)
    spread = WORK.rate * (1 - WORK.rate) / NOISE**2
    assert there.var() == pytest.approx(1 + spread, rel=0.03)
