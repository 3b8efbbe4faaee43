"""The list of methods: what it says is what dry runs and plans find."""

from __future__ import annotations

import json

import pytest
import torch

from coterie.cli import methods as methods_command
from coterie.cli.methods import BUDGETS, LAYERS, NUMBER, ROUNDS, amount, method_facts
from coterie.errors import Refused
from coterie.methods import METHODS
from coterie.planning.example_plan import plan_examples
from coterie.planning.request import Request
from coterie.planning.training import Training
from coterie.protocol.roster import Roster
from coterie.protocol.settings import settings_of
from coterie.testing import check_method
from tests.helpers import call, every_method

MODEL = NUMBER * sum(LAYERS)
SENDS = {
    "heads": "some of the layers",
    "related": "the model",
    "tune": "nothing",
    "joint": "the model",
    "pp-sgd": "the model",
    "local": "nothing",
    "fedavg": "the model",
    "fedprox": "the model",
    "fine-tune": "the model, later nothing",
    "mr-mtl": "the model",
    "mr-mtl-auto": "the model",
    "ditto": "the model",
    "mocha": "the model",
    "dual": "the model",
    "ifca": "the model and 8 bytes",
    "weiavg": "the model",
    "pfa": "the model",
    "pfa+": "large budget: the model; small budget: the model, later 1 number a layer",
    "random-projection": "the model",
}
by_name = {method.name: method for method in reversed(every_method())}
each_name = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def found() -> dict[str, dict]:
    return {name: method_facts(kind) for name, kind in METHODS.items()}


def test_every_method_is_there_and_documented(found):
    assert set(found) == set(SENDS)
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
def test_what_it_sends_adds_up_to_what_a_plan_says(found, name):
    """The bytes behind the words are those of `coterie plan`, by its own dry run."""
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
    assert len(seen["bytes_up"]) == ROUNDS
    assert [sum(column) for column in zip(*seen["bytes_up"], strict=True)] == list(plan.counts.bytes_up)
    assert [silo.steps for silo in plan.silos[0]] == [sum(seen["passes"])] * len(sizes)
    assert plan.silos[0][0].selections == sum(seen["choices"])


@each_name
def test_words_for_what_it_sends(found, name):
    assert found[name]["sends"] == SENDS[name]


def test_words_follow_the_bytes(found):
    """Each claim in words, against the bytes of each round."""
    bytes_up = {name: facts["dry_run"]["bytes_up"] for name, facts in found.items()}
    silos = len(BUDGETS)
    assert bytes_up["local"] == [[0] * silos] * ROUNDS
    assert bytes_up["fedavg"] == [[MODEL] * silos] * ROUNDS
    assert bytes_up["fine-tune"] == [[MODEL] * silos] * 5 + [[0] * silos] * 5
    assert bytes_up["ifca"] == [[MODEL + 8] * silos] * ROUNDS
    later = [NUMBER * len(LAYERS)] * 5 + [MODEL] * 3
    assert bytes_up["pfa+"] == [[MODEL] * silos, *[later] * (ROUNDS - 1)]


def test_costs(found):
    costs = {name: facts["costs"] for name, facts in found.items()}
    assert costs.pop("ditto") == "2 passes"
    assert costs.pop("ifca") == "1 pass, private choices in 1 of 10 rounds"
    assert set(costs.values()) == {"1 pass"}


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


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "nothing"),
        (MODEL, "the model"),
        (2 * MODEL, "2 models"),
        (NUMBER * len(LAYERS), "1 number a layer"),
        (2 * NUMBER * len(LAYERS), "2 numbers a layer"),
        (MODEL + NUMBER * len(LAYERS), "the model and 1 number a layer"),
        (MODEL + 4, "the model and 4 bytes"),
        (12, "12 bytes"),
    ],
)
def test_amounts_in_words(count, words):
    assert amount(count) == words


def test_the_command_shows_all(monkeypatch, capsys, found):
    monkeypatch.setattr(methods_command, "method_facts", lambda kind: found[kind.name])
    code, out, _ = call(monkeypatch, capsys, "methods")
    assert code == 0
    for name, facts in found.items():
        assert name in out
        assert all(key in out for key in facts["settings"])
    assert "dry run" in out
    assert "McMahan" in out


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
