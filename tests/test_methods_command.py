"""The list of methods: what it says is what dry runs and plans find."""

from __future__ import annotations

import json

import pytest
import torch

from coterie.cli.methods import passes, sends
from coterie.errors import Refused
from coterie.experiment import method_facts as facts_module
from coterie.experiment.method_facts import BUDGETS, LAYERS, MODEL, ROUNDS, method_facts
from coterie.methods import METHODS
from coterie.planning.example_plan import plan_examples
from coterie.planning.request import Request
from coterie.planning.training import Training
from coterie.protocol.roster import Roster
from coterie.protocol.settings import settings_of
from coterie.testing import check_method
from tests.helpers import call, every_method

SENDS = {  # models per silo and round; all others send one
    "local": 0,
    "tune": 0,
    "fine-tune": 0.5,
    "heads": sum(LAYERS[:3]) / sum(LAYERS),
    "ifca": 1 + 8 / MODEL,
    "pfa+": (1 + 9 * (3 + 5 * len(LAYERS) / sum(LAYERS)) / 8) / 10,
}
by_name = {method.name: method for method in reversed(every_method())}
each_name = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def found() -> dict[str, dict]:
    return {name: method_facts(kind) for name, kind in METHODS.items()}


def test_every_method_is_there_and_documented(found):
    assert set(SENDS) < set(found)
    for name, facts in found.items():
        assert facts["does"].endswith(".")
        assert "\n" not in facts["does"]
        assert bool(facts["paper"]) == (name not in ("local", "mr-mtl-auto"))
        assert facts["does"] == METHODS[name].__doc__.splitlines()[0]
        assert set(facts["settings"]) == set(settings_of(METHODS[name]))
        assert all(setting["help"] for setting in facts["settings"].values())


@each_name
def test_settings_have_their_defaults(found, name):
    method = METHODS[name]()
    for key, facts in found[name]["settings"].items():
        assert facts["default"] == getattr(method, key)


@each_name
def test_what_it_sends_is_what_a_plan_says(found, name):
    """The bytes, passes and choices are those of `coterie plan`."""
    sizes = [25] * len(BUDGETS)
    roster = Roster(
        tuple(map(str, range(len(sizes)))),
        torch.tensor(sizes, dtype=torch.float64),
        torch.tensor([BUDGETS], dtype=torch.float64),
    )
    work = tuple(Training(batch=25).work(size) for size in sizes)
    delta = torch.full((1, len(sizes)), 1e-3, dtype=torch.float64)
    plan = plan_examples(Request(METHODS[name](), roster, work, LAYERS, ROUNDS, delta, delta))
    seen = found[name]["dry_run"]
    assert seen["bytes_up"] == list(plan.counts.bytes_up)
    assert len(seen["passes"]) == ROUNDS
    assert [silo.steps for silo in plan.silos[0]] == [sum(seen["passes"])] * len(sizes)
    assert plan.silos[0][0].selections == sum(seen["choices"])


@each_name
def test_numbers_of_what_it_costs_and_sends(found, name):
    facts = found[name]
    assert sends(facts) == pytest.approx(SENDS.get(name, 1))
    assert passes(facts) == (2 if name == "ditto" else 1)
    assert sum(facts["dry_run"]["choices"]) == (name == "ifca")


@each_name
def test_units_are_those_in_which_it_is_sound(found, name):
    """The units of the list against the check that methods must pass (in 'example' all do, see test_methods)."""
    units, refused = found[name]["units"], found[name]["refused"]
    assert not set(units) & set(refused)
    assert "example" in units
    if "silo" in units:
        check_method(by_name[name], "silo")
    else:
        with pytest.raises(Refused):
            check_method(by_name[name], "silo")


def test_methods_that_look_into_uploads_are_refused_for_whole_silos(found):
    sound = {name for name, facts in found.items() if "silo" in facts["units"]}
    assert sound == {
        "local", "fedavg", "fedprox", "fine-tune", "mr-mtl", "ditto", "heads", "related", "joint", "pp-sgd",
        "tune",
    }  # fmt: skip


@pytest.mark.parametrize("columns", [80, 120])
def test_the_command_shows_all_in_a_line_or_two_each(monkeypatch, capsys, found, columns):
    monkeypatch.setattr(facts_module, "method_facts", lambda kind: found[kind.name])
    code, out, _ = call(monkeypatch, capsys, "methods", columns=columns)
    assert code == 0
    table = out.partition("\npasses:")[0].splitlines()
    assert len(table) < 3 * len(found) + 5
    assert max(map(len, table)) <= columns
    rows = {line.split()[0]: line.split()[-3:] for line in table if line[:1] == " " and line[1:2].strip()}
    assert set(rows) - {"method"} - {"─" * (columns - 2)} == set(found)
    assert rows["ditto"] == ["2", "1", "yes"]
    assert rows["fine-tune"] == ["1", "0.5", "yes"]
    assert rows["mocha"] == ["1", "1", "no"]
    assert "dry run of 10 rounds" in out
    assert "`coterie methods NAME`" in out


def test_the_command_speaks_json(monkeypatch, capsys, found):
    code, out, _ = call(monkeypatch, capsys, "methods", "--json")
    assert code == 0
    said = json.loads(out)
    assert [one["name"] for one in said["methods"]] == list(METHODS)
    assert said["methods"] == json.loads(json.dumps(list(found.values())))


def test_one_method_alone(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "methods", "pfa", "--json")
    assert (code, [one["name"] for one in json.loads(out)["methods"]]) == (0, ["pfa"])
    code, _, err = call(monkeypatch, capsys, "methods", "pfaa")
    assert (code, "unknown method 'pfaa'; did you mean 'pfa'?" in err) == (2, True)


@each_name
def test_all_about_one_method(monkeypatch, capsys, found, name):
    monkeypatch.setattr(facts_module, "method_facts", lambda kind: found[kind.name])
    code, out, _ = call(monkeypatch, capsys, "methods", name)
    said, facts = " ".join(out.split()), found[name]
    assert code == 0
    assert facts["paper"] in out
    assert " ".join(facts["about"].split()) in said
    assert all(setting in out for setting in facts["settings"])
    assert ("not 'silo':" in said) == ("silo" not in facts["units"])
    assert "private choice" not in said or name == "ifca"
    assert ("sends 0.13 to 1 model(s) per silo and round" in said) == (name == "pfa+")
