"""Suggestions follow from public facts, and are the best of their small grid."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.experiment.advise import advise
from coterie.experiment.learning_rate import DISTANCE, LARGEST, slowness
from coterie.experiment.suggest import BATCHES, ENOUGH, ROUNDS, suggest
from coterie.privacy.accountant import epsilon as certified
from coterie.privacy.calibration import Target, calibrate
from tests.helpers import call, refused

PRIVACY = coterie.Privacy(epsilon=2, delta=1e-3)


@pytest.fixture
def silos():
    return coterie.load("digits", silos=4, rows=600)


def test_it_is_the_cheapest_setting_near_the_best_bound(silos):
    found = suggest(silos, PRIVACY)
    assert found.method in ("mr-mtl", "fedavg")
    size, members, bounds = 650, len(silos), {}
    for rounds in ROUNDS:
        for batch in (batch for batch in BATCHES if batch < silos.sizes[0]):
            steps = rounds * max(1, round(silos.sizes[0] / batch))
            target = Target(2.0, 1e-3, batch / silos.sizes[0], steps)
            noise = calibrate([target])[target].noise
            assert certified(noise, target.rate, steps, 1e-3) <= 2.0
            length = math.sqrt(1 + size * (noise / batch) ** 2 / members)
            assert slowness(noise / math.sqrt(members), batch, steps, size) == pytest.approx(
                length / math.sqrt(steps)
            )
            alone = DISTANCE["classes"] / (math.sqrt(1 + size * (noise / batch) ** 2) * math.sqrt(steps))
            bounds[rounds, batch] = length / math.sqrt(steps), min(alone, LARGEST)
    least = min(bound for bound, _ in bounds.values())
    chosen = bounds[found.rounds, found.batch]
    assert chosen[0] <= ENOUGH * least
    cheaper = [key for key in bounds if key < (found.rounds, found.batch)]
    assert all(bounds[key][0] > ENOUGH * least for key in cheaper)
    assert found.lr == pytest.approx(chosen[1], rel=0.06)


def test_a_larger_model_steps_more_carefully(silos):
    small, large = (suggest(silos, PRIVACY, model=model) for model in ("linear", "mlp"))
    assert large.lr < small.lr


def test_silos_that_gain_nothing_stay_alone():
    """Most silos have no noise to average out, and one has almost nothing else."""
    silos = coterie.load("digits", silos=8)
    loose = coterie.Privacy(epsilon={"silo-0": 0.01, "default": math.inf}, delta=1e-3)
    (forecast,) = advise(silos, loose)
    assert forecast.throughout == 1
    found = suggest(silos, loose)
    assert found.method == "local"
    assert found.reasons[0].startswith("method: only 1 of 8 silos are forecast to gain by joining")


def test_it_reads_no_example(silos):
    assert suggest(silos.without_examples(), PRIVACY) == suggest(silos, PRIVACY)


def test_what_is_refused(silos):
    with refused("a suggestion is for one setting: give one epsilon and one clip, not a list"):
        suggest(silos, coterie.Privacy(epsilon=[1, 2], delta=1e-3))
    with refused("advice is for the units 'example' and 'person'"):
        suggest(silos, coterie.Privacy(epsilon=1, delta=1e-3, unit="silo"))


def test_persons_count_as_examples_do():
    """Two rows for each person: the advice is that for half as many examples."""
    frame = pd.DataFrame(np.random.default_rng(0).random((400, 3)), columns=list("abc"))
    frame = frame.assign(silo=np.arange(400) // 100, ill=np.arange(400) % 3 == 0, who=np.arange(400) // 2)
    named = {"silo_column": "silo", "target_column": "ill"}
    persons = coterie.load(frame, person_column="who", **named)
    single = coterie.load(frame[::2], **named)
    by_person = coterie.Privacy(epsilon=2, delta=1e-3, unit="person")
    found, expected = suggest(persons, by_person), suggest(single, PRIVACY)
    assert persons.protected_sizes("person") == single.sizes
    assert advise(persons, by_person)[0].to_frame().equals(advise(single, PRIVACY)[0].to_frame())
    assert found.reasons[1] == expected.reasons[1].replace(" examples,", " persons,")
    assert (found.method, found.rounds, found.batch, found.lr) == (
        expected.method, expected.rounds, expected.batch, expected.lr,
    )  # fmt: skip
    with refused("name data.person_column"):
        suggest(single, by_person)


def test_the_command_says_the_same(config, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "advise", config)
    assert code == 0
    silos = coterie.load("digits", silos=3)
    found = coterie.suggest(silos, coterie.Privacy(epsilon={"each": [1, 4]}, delta=1e-3))
    start = (
        f"To try first: {found.method} with rounds = {found.rounds}, batch = {found.batch} and lr = 'auto'"
    )
    assert start in out
    code, out, _ = call(monkeypatch, capsys, "advise", config, "--json")
    assert json.loads(out)["suggestion"] == found.facts()
    lists = ("--set", "privacy.epsilon=[1, 2]")
    code, out, _ = call(monkeypatch, capsys, "advise", config, "--json", *lists)
    assert (code, json.loads(out)["suggestion"]) == (0, None)
