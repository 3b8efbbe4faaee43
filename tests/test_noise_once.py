"""In whole metered trainings, every noisy sum gets fresh words of its own pair's dice: none is used twice or left out."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

import coterie as ct
from coterie.cohort import noise
from coterie.noise.dice import KeyedDice


@pytest.fixture
def watched(monkeypatch):
    """Check each addition of exact noise; return how many rows got noise, and how many got none."""
    drawn, last, used = defaultdict(list), defaultdict(lambda: -1), set()
    alive, rows = [], {"noisy": 0, "without": 0}
    fill, add = KeyedDice.fill, noise.add_exact_noise

    def watched_fill(dice, out):
        fill(dice, out)
        alive.append(dice)  # so that no other dice gets its id
        drawn[id(dice)] += out.reshape(-1).tolist()

    def watched_add(sums, deviations, words, keyed):
        before = sums.copy()
        add(sums, deviations, words, keyed)
        for row, (deviation, dice) in enumerate(zip(deviations, keyed, strict=True)):
            if deviation == 0:
                rows["without"] += 1
                assert (sums[row] == before[row]).all()
                continue
            own = words.reshape(len(sums), -1)[row].tolist()
            places = sorted(map({word: n for n, word in enumerate(drawn[id(dice)])}.__getitem__, own))
            assert places == list(range(places[0], places[0] + sums.shape[1]))
            assert places[0] > last[id(dice)]
            assert used.isdisjoint(own)
            assert np.mean(sums[row] != before[row]) > 0.9
            used.update(own)
            last[id(dice)] = places[-1]
            rows["noisy"] += 1

    monkeypatch.setattr(KeyedDice, "fill", watched_fill)
    monkeypatch.setattr(noise, "add_exact_noise", watched_add)
    return rows


PASSES = {"sampling": "passes", "epochs": 1, "batch": 64}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        (ct.FedAvg(), {"uneven": 0.8, "drop": 0.4}),
        (ct.methods.Ditto(lam=0.2), {"uneven": 0.5, "memory": "300KB"}),
        (ct.FedAvg(), {**PASSES, "memory": "300KB", "drop": 0.3}),
        (ct.FedAvg(), {"model": "mlp", "uneven": 0.6, "memory": "2MB"}),
        (ct.methods.Dual(), {"loss": "one-against-rest", "uneven": 0.7}),
    ],
    ids=["absent", "blocks", "passes", "large steps", "duals"],
)
def test_every_noisy_sum_gets_words_of_its_own_once(watched, tmp_path, method, more):
    federation = ct.load("digits", silos=3, rows=400, partition="dirichlet", features="unit")
    (tmp_path / "w").mkdir()
    ct.open_ledgers(tmp_path / "kept", federation, 50.0, 1e-2, witness=tmp_path / "w")
    how = {"epochs": 1, "batch": 32, **more}
    privacy = ct.Privacy(epsilon=4, delta=1e-4)
    kept = {"ledger": tmp_path / "kept", "witness": tmp_path / "w"}
    result = ct.run(federation, method, privacy, rounds=2, seeds=(0, 1), out=tmp_path / "out", **kept, **how)
    doors = [
        door for run in range(2) for silo in result.names for door in result.statement(silo, run)["doors"]
    ]
    assert watched["noisy"] == sum(door["calls"] * door["steps"] for door in doors) > 10
