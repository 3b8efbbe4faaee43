"""What a deployment does not use of a configuration: refused, or said in one sentence."""

from __future__ import annotations

import pytest

from coterie.cli.coordinate import propose_plan
from coterie.deploy.federate import Listening, federate
from coterie.deploy.make_plan import ignored, make_plan
from coterie.errors import Problem
from coterie.privacy.keys import draw_key
from tests.federations import config_of, digits

UNUSED = {"ledger": "ledgers", "keys": "keys", "witness": "witness"}


def test_tuning_is_refused_before_anything_is_made(tmp_path):
    config = config_of(tuning={"trials": "poisson", "mean": 2.0})
    refused = r"^tuning: a deployment draws no trials: remove \[tuning\]; .* `coterie sweep`$"
    with pytest.raises(Problem, match=refused):
        federate(config, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    federation = digits()
    keys = {name: draw_key(name).public for name in federation.names}
    with pytest.raises(Problem, match=refused):
        make_plan(config, federation, draw_key("coordinator").public, keys)


def test_every_key_that_is_not_used_is_named():
    config = config_of(privacy=UNUSED, train={"checkpoint": 5})
    assert [line.partition(":")[0] for line in ignored(config)] == [
        "privacy.ledger",
        "privacy.keys",
        "privacy.witness",
        "train.checkpoint",
    ]
    assert all("\n" not in line and ": not used here: " in line for line in ignored(config))
    assert ignored(config_of()) == []


class Enough(Exception):
    """Nothing needs to be started."""


def test_federate_says_what_it_leaves_out(tmp_path, monkeypatch):
    def stop(*given):
        raise Enough

    monkeypatch.setattr("coterie.deploy.federate.load_federation", stop)
    lines: list[str] = []
    config = config_of(privacy={"ledger": "ledgers"}, train={"seeds": [3, 4, 5]})
    with pytest.raises(Enough):
        federate(config, tmp_path / "new", listening=Listening(on_note=lines.append))
    assert lines == [
        "privacy.ledger: not used here: every guard has a ledger of its own",
        "train.seeds: a deployment trains one seed, 3; left out: 4, 5",
    ]


def test_propose_says_that_silos_prepare_their_own_examples(tmp_path):
    lines: list[str] = []
    config = config_of(train={"checkpoint": 5})
    with pytest.raises(Problem):  # nobody described that silo, so there is no plan
        propose_plan(
            config,
            "a",
            [tmp_path / "none.json"],
            tmp_path / "key",
            tmp_path / "plan",
            None,
            1.0,
            lines.append,
        )
    assert lines == [
        "train.checkpoint: not used here: a coordinator keeps a checkpoint after every round",
        "data: not used here: silos prepare their own examples",
    ]
