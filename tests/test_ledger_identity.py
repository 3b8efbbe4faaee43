"""A federation knows who it is: commands and Python find the same ledgers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.data.federation import Federation, from_table
from coterie.data.partition import Partition
from coterie.data.sources.table import Table
from coterie.experiment.config.schema import check
from coterie.experiment.from_config import load_federation
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.verify import check_ledger
from tests.conftest import regression_table
from tests.helpers import call, numbered, refused

STUDY = """
[data]
silos = 3
partition = "dirichlet"
alpha = 2
[train]
rounds = 2
[privacy]
epsilon = 2.0
delta = 1e-3
[[method]]
name = "fedavg"
"""


def by_python(**how):
    federation = coterie.load("digits", silos=3, partition=Partition("dirichlet", alpha=2))
    privacy = coterie.Privacy(epsilon=2.0, delta=1e-3)
    return coterie.run(federation, how.pop("methods", coterie.FedAvg()), privacy, rounds=2, **how)


@pytest.fixture
def study(tmp_path, monkeypatch) -> Path:
    """A configuration and ledgers that pay for one run of it, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def opened(monkeypatch, capsys, study, epsilon=2.0):
    budget = ("--epsilon", epsilon, "--delta", 1e-2)
    assert call(monkeypatch, capsys, "ledger", "open", study, "--ledger", "kept", *budget)[0] == 0
    return sorted(Path("kept").glob("*.sqlite"))


def test_what_a_command_spent_python_cannot_spend_again(study, monkeypatch, capsys):
    files = opened(monkeypatch, capsys, study)
    assert call(monkeypatch, capsys, "run", study, "--ledger", "kept", "--out", "out")[0] == 0
    with pytest.raises(Spent, match="does not fit"):
        by_python(ledger="kept")
    assert sorted(Path("kept").glob("*.sqlite")) == files
    assert [check_ledger(path).runs for path in files] == [1, 1, 1]


def test_what_python_spent_a_command_cannot_spend_again(study, monkeypatch, capsys):
    files = opened(monkeypatch, capsys, study)
    by_python(ledger="kept")
    code, _, err = call(monkeypatch, capsys, "run", study, "--ledger", "kept", "--out", "out")
    assert code == 2
    assert "does not fit" in err
    assert sorted(Path("kept").glob("*.sqlite")) == files
    assert [check_ledger(path).runs for path in files] == [1, 1, 1]


@pytest.mark.parametrize(
    ("table", "options", "cut"),
    [
        ({}, {}, '{"of": 1797, "partition": "iid", "seed": 0, "silos": 10}'),
        ({"silos": 5}, {"silos": np.int64(5)}, '{"of": 1797, "partition": "iid", "seed": 0, "silos": 5}'),
        ({"alpha": 3.0}, {"alpha": 3}, '{"of": 1797, "partition": "iid", "seed": 0, "silos": 10}'),
        (
            {"partition": "dirichlet", "silos": 4, "alpha": 1, "seed": 3, "rows": 900},
            {"partition": Partition("dirichlet", alpha=1), "silos": 4, "seed": 3, "rows": 900},
            '{"alpha": 1.0, "of": 1797, "partition": "dirichlet", "rows": 900, "seed": 3, "silos": 4}',
        ),
        (
            {"partition": "shards", "shards": 3, "positive": "7"},
            {"partition": "shards", "shards": 3, "positive": "7"},
            '{"of": 1797, "partition": "shards", "positive": "7", "seed": 0, "shards": 3, "silos": 10}',
        ),
    ],
)  # fmt: skip
def test_the_words_that_ledgers_are_found_by_never_change(table, options, cut):
    config = check({"data": table, "privacy": {"epsilon": 1.0}, "method": [{"name": "local"}]})
    by_command, by_python = load_federation(config), coterie.load("digits", **options)
    assert by_command.source == by_python.source == f"digits cut by {cut}"
    assert by_command.identities == by_python.identities
    assert by_command.identities[0].silo == by_command.names[0]


def test_silos_of_the_data_are_known_by_its_name_however_many_are_taken():
    whole, largest = from_table(numbered((20, 7, 4, 50))), from_table(numbered((20, 7, 4, 50)), silos=2)
    assert (whole.source, largest.source) == ("made", "made")
    assert set(largest.identities) < set(whole.identities)
    assert whole.pick(["d", "a"]).identities == (whole.identities[3], whole.identities[0])
    assert from_table(numbered((20, 7, 4, 50)), partition="iid", silos=2).source.startswith("made cut by")


def test_a_federation_made_by_hand_is_known_by_its_name(federation):
    by_hand = Federation("mine", federation.silos)
    assert {who.source for who in by_hand.identities} == {"mine"}


def test_data_without_a_name_has_no_ledger(tmp_path):
    table = regression_table()
    nameless = from_table(Table("", table.x, table.y, table.silo))
    with refused("this one has no name"):
        coterie.open_ledgers(tmp_path, nameless, 2.0, 1e-3)
    assert coterie.run(nameless, coterie.Local(), coterie.Privacy(epsilon=4, delta=1e-3), rounds=1).runs
