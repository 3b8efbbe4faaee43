"""Silos that come by a schedule, and silos that miss a round: a deployment is still the simulation."""

from __future__ import annotations

import pytest

from tests.parities import assert_same, both, configured, every_table, refusal, title

SOUND = [table for table in every_table() if refusal(table, "example") is None]
WHOLE = {"batch": 32, "rounds": 4}  # batches of all examples: their noise is found at once


def misses(number: int) -> tuple[str, ...]:
    """Return who does not answer a round."""
    return {1: ("silo-1",), 2: ("silo-0", "silo-2")}.get(number, ())


@pytest.mark.parametrize("table", SOUND, ids=title)
def test_silos_that_miss_rounds(tmp_path, table):
    assert_same(*both(configured(table, {}, **WHOLE), tmp_path, misses), absent=True)


@pytest.mark.parametrize(
    "train",
    [{"participation": 0.67}, {"participation": {"cohort": 1}}, {"drop": 0.4, "recover": 0.5, "uneven": 0.5}],
    ids=str,
)
@pytest.mark.parametrize("name", ["fedavg", "mr-mtl", "ditto", "heads", "dual"])
def test_silos_that_come_by_a_schedule(tmp_path, name, train):
    settings = {**WHOLE, "steps": 2} if "uneven" in train else WHOLE
    first, second = both(configured({"name": name}, {}, **settings, **train), tmp_path)
    assert_same(first, second)
    assert any(len(names) < 3 for names in first.present) or "uneven" in train
