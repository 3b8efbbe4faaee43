"""Mistakes that people make when they set up a federation: each is named, and nothing half-made remains."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare")

from coterie.errors import Problem
from coterie.network.nvflare.kit import Record, check_kit, make_kits, record_from
from coterie.privacy.keys import new_key

from .helpers import call

GOOD = {"federation": "hospitals", "host": "localhost", "port": 8002, "silos": ["north", "south"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"silos": "north"}, r'silos: expected a list of names such as \["north"\], got \'north\''),
        ({"silos": ["north", 3]}, "silos: expected a list of names"),
        ({"port": "8002"}, "port: expected a whole number, got '8002'"),
        ({"port": True}, "port: expected a whole number, got True"),
        ({"host": 5}, "host: expected text, got 5"),
        ({"silo": ["west"]}, "'silo': there is no such key"),
    ],
)
def test_a_wrong_key_of_a_federation_is_named(changes, message):
    with pytest.raises(Problem, match=message):
        record_from({**GOOD, **changes})


def test_everything_wrong_with_a_federation_is_said_at_once():
    with pytest.raises(
        Problem, match="'silo': there is no such key; 'host' is missing; port: expected a whole"
    ):
        record_from({"federation": "hospitals", "port": "8002", "silo": [], "silos": []})
    assert record_from(GOOD) == Record("hospitals", "localhost", 8002, ("north", "south"))


def test_kits_of_another_federation_file_are_not_passed_off_as_new(tmp_path):
    kits = make_kits(record_from(GOOD), tmp_path)
    assert make_kits(record_from(GOOD), tmp_path) == kits
    for changes, stale in (
        ({"port": 9999}, "server"),
        ({"federation": "clinics"}, "server"),
        ({"silos": ["north", "south", "west"]}, "coordinator"),
    ):
        with pytest.raises(Problem, match=f"{stale}'.*: made from another federation.toml"):
            make_kits(record_from({**GOOD, **changes}), tmp_path)
    assert not (tmp_path / "west").exists()


def test_the_folder_of_all_kits_names_the_kits_in_it(tmp_path):
    make_kits(record_from(GOOD), tmp_path)
    (problem,) = check_kit(tmp_path)
    assert (
        "no such file or directory; name one of the kits in it: coordinator, north, server, south" in problem
    )


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (["--epsilon", "-1"], "epsilon_per_training: expected a number > 0, got -1.0"),
        (["--epsilon", "8", "--unit", "exmple"], "unit: expected one of example, person, silo, got 'exmple'"),
        (["--epsilon", "8", "--user", "nobody-here"], "there is no user 'nobody-here' on this machine"),
    ],
)
def test_a_guard_that_could_not_be_made_leaves_no_folder(tmp_path, monkeypatch, capsys, mistake, message):
    table = tmp_path / "records.csv"
    table.write_text("a,outcome\n" + "".join(f"{k},{'yes' if k % 2 else 'no'}\n" for k in range(40)))
    new_key(tmp_path / "keys", "coordinator")
    key = tmp_path / "keys" / "coordinator.pub"
    rest = ["--data", table, "--silo", "north", "--target", "outcome", "--coordinator", key]
    words = ["guard", "init", tmp_path / "guard", *rest, *mistake]
    code, _, said = call(monkeypatch, capsys, *words, columns=1000)
    assert code == 2
    assert message in said
    assert not (tmp_path / "guard").exists()
