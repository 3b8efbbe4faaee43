"""How a silo's rows become examples: told to others, alike at all silos, and kept with its models."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pandas as pd
import pytest

from coterie.cli.coordinate import propose_plan
from coterie.deploy.coordinator import Coordinator
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import GuardFolder
from coterie.errors import Problem
from coterie.experiment.config.schema import check
from coterie.experiment.saved_models import load_model
from coterie.network.transport import DirectTransport
from coterie.privacy.keys import new_key, read_key
from tests.helpers import call

SILOS = ("north", "south", "west")
OUTCOMES = {"north": ("ill", "well"), "south": ("ill", "well"), "west": ("ill", "well", "worse")}
OWN_STATISTICS = "features standardized with each silo's own statistics, without noise"


@pytest.fixture
def command(monkeypatch, capsys):
    return lambda *words: call(monkeypatch, capsys, *words, columns=1000)


def table(silo: str, folder: Path, columns=("age", "dose", "ward")) -> Path:
    """Invented patients of a silo."""
    dice = random.Random(silo)
    rows = [{"age": dice.randrange(100), "dose": dice.random(), "ward": dice.choice("ab")} for _ in range(60)]
    frame = pd.DataFrame(rows)[list(columns)]
    frame["outcome"] = [dice.choice(OUTCOMES[silo]) for _ in rows]
    path = folder / f"{silo}.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def made(tmp_path, command):
    """Make the guard of a silo; return its facts' path and what the command noted."""
    new_key(tmp_path / "keys", "coordinator")

    def make(silo: str, prepare: str = "", **options) -> tuple[Path, str]:
        (tmp_path / "prepare.toml").write_text(f"[data]\n{prepare}")
        words = ["guard", "init", str(tmp_path / silo), "--data", str(table(silo, tmp_path, **options))]
        words += ["--silo", silo, "--target", "outcome", "--prepare", str(tmp_path / "prepare.toml")]
        words += [
            "--epsilon",
            "9",
            "--delta",
            "0.01",
            "--coordinator",
            str(tmp_path / "keys/coordinator.pub"),
        ]
        code, _, noted = command(*words)
        assert code == 0, noted
        code, facts, _ = command("guard", "facts", str(tmp_path / silo))
        assert code == 0
        path = tmp_path / f"{silo}.json"
        path.write_text(facts)
        return path, noted

    return make


def proposed(tmp_path: Path, facts: list[Path]):
    """Propose a plan for silos by their facts."""
    config = check(
        {
            "method": [{"name": "fedavg"}],
            "train": {"rounds": 2, "batch": 48},
            "privacy": {"epsilon": 2.0, "delta": 1e-3},
        }
    )
    given = ("clinics", facts, tmp_path / "keys" / "coordinator.key", tmp_path / "plan.json")
    return propose_plan(config, *given, None, 5.0, lambda line: None)


def test_a_model_of_a_guard_predicts_for_raw_rows(tmp_path, made):
    facts = [made(silo, "feature_range = { age = [0, 100], dose = [0, 1] }")[0] for silo in SILOS]
    plan = proposed(tmp_path, facts)
    guards = {silo: Guard(GuardFolder(tmp_path / silo)) for silo in SILOS}
    for guard in guards.values():
        guard.store.approve(plan.hash, "now", "owner")
    transport = DirectTransport({silo: guard.answer for silo, guard in guards.items()})
    key = read_key(tmp_path / "keys" / "coordinator.key")
    outcome = Coordinator(plan, tmp_path / "training", key, transport).run()
    assert outcome.missing == ()
    model = load_model(tmp_path / "north" / "results" / plan.training / "model.safetensors")
    rows = pd.read_csv(tmp_path / "north.csv").drop(columns="outcome")
    said = model.predict(rows)
    assert list(said.columns) == ["prediction", *[f"probability of {name}" for name in OUTCOMES["west"]]]
    again = model.predict(rows[["ward", "dose", "age"]])  # in any order
    pd.testing.assert_frame_equal(said, again)
    held = guards["north"].folder.examples(OUTCOMES["west"])
    prepared = model.preparation.prepare(rows, "north")
    kept = {tuple(row) for row in [*held.x.tolist(), *held.test_x.tolist()]}
    assert {tuple(row) for row in prepared.tolist()} == kept


@pytest.mark.parametrize(
    ("silo", "options", "words"),
    [
        ({}, {"columns": ("dose", "age", "ward")}, r"columns: 'north' has \['age', 'dose', 'ward_a', 'ward_b'\], 'south' \['dose', 'age'"),
        ({"prepare": "feature_range = { age = [0, 120] }"}, {}, r"steps: 'north' has \{\}, 'south' \{'feature_range': "),
        ({"prepare": 'drop = ["ward"]'}, {}, r"shape: 'north' has \[4\], 'south' \[2\]"),
    ],
)  # fmt: skip
def test_silos_that_prepare_their_rows_in_other_ways_get_no_plan(tmp_path, made, silo, options, words):
    facts = [made("north")[0], made("south", **silo, **options)[0]]
    with pytest.raises(Problem, match=f"the silos' examples do not fit together: .*{words}"):
        proposed(tmp_path, facts)


RULES = """
categories = {{ ward = ["a", "b"] }}
missing = {{ age = {age}, dose = "indicator" }}
standardize = {{ dose = [0.5, {deviation}] }}
"""


def test_a_public_vocabulary_makes_silos_alike_and_other_rules_are_told(tmp_path, made):
    """What missing cells become, and by what columns are scaled, must agree, although no column shows it."""
    alike, other = RULES.format(age=50, deviation=0.3), RULES.format(age=51, deviation=0.4)
    facts = {silo: made(silo, alike)[0] for silo in SILOS}
    content = json.loads(facts["north"].read_text())
    assert content["columns"] == ["age", "dose", "ward_a", "ward_b", "dose (missing)", "ward (other)"]
    assert content["not_covered"] == []
    proposed(tmp_path, list(facts.values()))
    west = json.loads(facts["west"].read_text())
    facts["west"].write_text(json.dumps({**west, **changed(tmp_path, other)}))
    with pytest.raises(Problem) as problem:
        proposed(tmp_path, list(facts.values()))
    said = "'north' has {'standardize': {'dose': [0.5, 0.3]}, 'rules': {'age': {'missing': 50.0}"
    assert f"steps: {said}" in str(problem.value)


def changed(folder: Path, rules: str) -> dict:
    """The steps of a silo with other rules, as its facts tell them."""
    from coterie.data.federation import load
    from coterie.deploy.facts import read_preparation
    from coterie.deploy.guard_folder import _steps

    (folder / "p.toml").write_text(f"[data]\n{rules}")
    made = load(
        str(table("west", folder)),
        silos=1,
        partition="iid",
        target_column="outcome",
        **read_preparation(folder / "p.toml"),
    )
    return {"steps": json.loads(json.dumps(_steps(made.preparation)))}


def test_what_no_budget_covers_is_said_by_guard_plan_and_refused_if_left_out(tmp_path, made):
    facts = []
    for silo in SILOS:
        path, noted = made(silo, 'features = "standardize"')
        assert f"note: not covered by any budget: {OWN_STATISTICS}" in noted
        facts.append(path)
    plan = proposed(tmp_path, facts)
    assert OWN_STATISTICS in plan.content["facts"]["not_covered"]
    guard = Guard(GuardFolder(tmp_path / "north"))
    guard.prepare(plan)
    for path in facts:
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "not_covered": []}))
    with pytest.raises(Problem, match=r"does not say that no budget covers this: features standardized"):
        guard.prepare(proposed(tmp_path, facts))


def test_a_budget_for_persons_needs_to_know_whose_rows_are_whose(tmp_path, command):
    new_key(tmp_path / "keys", "coordinator")
    path = table("north", tmp_path)
    frame = pd.read_csv(path)
    frame.assign(who=[k // 2 for k in range(len(frame))]).to_csv(path, index=False)
    words = [
        "guard",
        "init",
        str(tmp_path / "guard"),
        "--data",
        str(path),
        "--silo",
        "north",
        "--epsilon",
        "1",
    ]
    words += [
        "--coordinator",
        str(tmp_path / "keys/coordinator.pub"),
        "--target",
        "outcome",
        "--unit",
        "person",
    ]
    code, _, error = command(*words)
    assert (code, (tmp_path / "guard").exists()) == (2, False)
    assert "unit: 'person' needs to know whose rows are whose: name the column with --person" in error
    assert command(*words, "--person", "who")[0] == 0


def test_all_that_is_wrong_with_a_file_of_preparation_is_said(tmp_path, command):
    new_key(tmp_path / "keys", "coordinator")
    words = ["guard", "init", str(tmp_path / "north"), "--data", "x.csv", "--silo", "north", "--epsilon", "1"]
    words += ["--coordinator", str(tmp_path / "keys/coordinator.pub"), "--prepare", str(tmp_path / "p.toml")]
    for text, said in (
        ('[data]\nsilos = 3\nrows = 9\n[train]\nrounds = 2', "[train]: only the table [data] is read here;"
         " data.rows: a guard has one silo, so leave it out; data.silos: a guard has one silo"),
        ("[data]\nfeatures = 3\nnorms = 1", "data."),
        ('[data]\nmissing = "no"\ncategories = { ward = [] }', "': data.missing: unknown choice 'no'; known: indicator,"
         " public-median, refuse; data.categories.ward: expected a list"),
        ("[data", "is not valid TOML"),
    ):  # fmt: skip
        (tmp_path / "p.toml").write_text(text)
        code, _, error = command(*words)
        assert (code, said in error) == (2, True), error
    (tmp_path / "p.toml").unlink()
    assert "cannot read" in command(*words)[2]
