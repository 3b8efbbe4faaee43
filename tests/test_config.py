"""Configuration: everything wrong is reported at once, with its key."""

from __future__ import annotations

import copy

import pytest

from coterie.cli.demo import DEMO
from coterie.errors import Problem
from coterie.experiment.config.schema import apply_change, check, read

GOOD = {"privacy": {"epsilon": 3.0}, "method": [{"name": "mr-mtl", "lam": 0.5}]}


def broken(path: str, value) -> dict:
    content = copy.deepcopy(GOOD)
    table = content
    *parents, last = path.split(".")
    for part in parents:
        table = table.setdefault(part, {})
    table[last] = value
    return content


def test_defaults_are_enough():
    config = check(GOOD)
    assert config.data.source == "digits"
    assert config.train.rounds == 50
    assert check(DEMO).train.seeds == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("train.rounds", 0, "train.rounds: expected a number >= 1, got 0"),
        ("train.rounds", "ten", "train.rounds: expected a whole number, got 'ten'"),
        ("train.round", 5, "train.round: unknown key; did you mean 'rounds'?"),
        ("trian", {}, "trian: unknown key; did you mean 'train'?"),
        ("train.lr", -1, "train.lr: expected a finite number > 0 or 'auto', got -1"),
        ("train.lr", [], "train.lr: expected at least one value, got an empty list"),
        ("train.batch", 1.5, "train.batch: expected a whole number"),
        ("train.seeds", 0, "train.seeds: expected the number of seeds, or a list"),
        ("train.seeds", [1, 1], "train.seeds: expected the number of seeds, or a list of different"),
        ("train.memory", "much", "train.memory: expected a size such as \"1GB\", got 'much'"),
        ("train.epochs", 0, "train.epochs: expected a number > 0, got 0"),
        ("privacy.epsilon", 0, "privacy.epsilon: expected a number > 0 (inf: no privacy), got 0"),
        ("privacy.epsilon", -3, "privacy.epsilon: expected a number > 0"),
        ("privacy.epsilon", True, "privacy.epsilon: expected a number > 0"),
        ("privacy.epsilon", {"a": "x"}, "privacy.epsilon: expected a number > 0 (inf: no privacy), got 'x'"),
        ("privacy.epsilon", [1, 0], "privacy.epsilon: expected a number > 0"),
        ("privacy.delta", 1, "privacy.delta: expected a number between 0 and 1, got 1"),
        ("privacy.delta", [0.1], "privacy.delta: expected a number between 0 and 1"),
        ("privacy.clip", 0, "privacy.clip: expected a finite number > 0, got 0"),
        ("privacy.clip", float("inf"), "privacy.clip: expected a finite number > 0, got inf"),
        ("privacy.unit", "patient", "privacy.unit: expected 'example', 'person' or 'silo', got 'patient'"),
        ("data.test", 1.5, "data.test: expected a share between 0 and 1 or 'official', got 1.5"),
        ("data.partition", "idd", "data.partition: expected 'iid'"),
        ("data.silos", 0, "data.silos: expected a number >= 1, got 0"),
        ("data.target_range", [3, 1], "data.target_range: expected [lowest, highest], got [3, 1]"),
        ("model.loss", "mse", "model.loss: unknown loss 'mse'; did you mean 'squared'?"),
        ("method", [], "method: expected at least one [[method]] table, got none"),
        ("method", [{}], 'method: the first [[method]] has no name; add one, such as name = "local"'),
        ("method", [{"name": "local"}, {"lam": 1}], "method: the second [[method]] has no name"),
        ("method", [{"name": 3}], "method[0].name: expected the name of a method"),
        ("method", [{"name": "mr_mtl"}], "method[0].name: unknown method 'mr_mtl'; did you mean 'mr-mtl'?"),
        (
            "method",
            [{"name": "mr-mtl", "lam": -1}],
            "method[0].lam: expected a number >= 0 or 'auto', got -1",
        ),
        ("method", [{"name": "mr-mtl", "lam": []}], "method[0].lam: expected at least one value"),
        (
            "method",
            [{"name": "local", "lam": 1}],
            "method[0].lam: 'local' has no such setting",
        ),
        ("method", [{"name": "ifca", "clusters": 2.5}], "method[0].clusters: expected a whole number >= 1"),
        ("method", [{"name": "pfa", "divide": "half"}], "method[0].divide: expected one of mixture, kmeans"),
        (
            "method",
            [{"name": "fedavg", "budgets": "most"}],
            "method[0].budgets: expected one of own, minimum",
        ),
        (
            "method",
            [{"name": "local", "after": "ifca"}],
            "method[0].after.name: expected the table of a method",
        ),
        ("method", [{"name": "local", "after": {"name": "ifac"}}], "method[0].after.name: unknown method"),
        (
            "method",
            [{"name": "local", "after": {"name": "ifca", "share": 3}}],
            "method[0].after.share: expected a share of rounds",
        ),
        ("train.participation", 1.5, "train.participation: expected a share in (0, 1]"),
        (
            "privacy.adjacency",
            "replace-one",
            "privacy.adjacency: cannot be set: budgets always use zero-out",
        ),
        ("train.participation", {"poisson": 2}, "train.participation: expected a share in (0, 1]"),
        ("train.participation", {"cohort": 0}, "{ cohort = number of silos }, got {'cohort': 0}"),
        ("train.participation", {"cohort": 0.5}, "{ cohort = number of silos }, got {'cohort': 0.5}"),
        ("train.participation", {"cohort": True}, "{ cohort = number of silos }, got {'cohort': True}"),
        ("train.participation", {"cohort": 2, "poisson": 0.5}, "train.participation: expected a share"),
    ],
)
def test_each_problem_names_its_key(path, value, said):
    with pytest.raises(Problem) as caught:
        check(broken(path, value))
    assert said in str(caught.value)


def test_all_problems_come_together():
    content = {
        "data": {"test": 2},
        "train": {"rounds": -1, "epochs": 1, "steps": 2, "colour": "red"},
        "model": {"name": "mlp", "widht": 3},
        "privacy": {"delta": 3},
        "method": [{"name": "dittto"}, {"name": "fedprox", "mu": "strong"}],
    }
    with pytest.raises(Problem) as caught:
        check(content, "my.toml")
    lines = str(caught.value).splitlines()
    assert lines[0] == "my.toml has 9 problem(s):"
    keys = {line.strip().split(":")[0] for line in lines[1:]}
    assert keys == {
        "data.test", "train.rounds", "train.colour", "train", "privacy.epsilon", "privacy.delta",
        "method[0].name", "method[1].mu", "model.widht",
    }  # fmt: skip


def test_the_resolved_configuration_reads_back(tmp_path):
    config = check(broken("privacy.epsilon", {"each": [1, float("inf")]}))
    path = tmp_path / "c.toml"
    path.write_text(config.to_toml())
    assert read(path) == config


def test_changes():
    content = {"privacy": {"epsilon": 1}, "method": [{"name": n} for n in ("local", "mr-mtl", "mr-mtl")]}
    changes = (
        "method.lam=[0.1, 0.3]",
        "train.rounds=7",
        "data.source=school",
        "privacy.epsilon={each=[1,2]}",
    )
    for change in changes:
        apply_change(content, change)
    assert content["method"] == [{"name": "local"}, *[{"name": "mr-mtl", "lam": [0.1, 0.3]}] * 2]
    assert content["train"]["rounds"] == 7
    assert content["data"]["source"] == "school"
    assert content["privacy"]["epsilon"] == {"each": [1, 2]}
    apply_change(content, "method.budgets=minimum")
    assert [table["budgets"] for table in content["method"]] == ["minimum"] * 3


def test_files_beside_the_configuration(tmp_path):
    (tmp_path / "groups.csv").write_text("silo,group\na,1\n")
    path = tmp_path / "c.toml"
    for named in ('"groups.csv"', '["groups.csv", "groups.csv"]'):
        path.write_text(f'privacy.epsilon = 1\n[[method]]\nname = "related"\nrelations = {named}\n')
        found = read(path).method[0]["relations"]
        assert set(found if isinstance(found, list) else [found]) == {str(tmp_path / "groups.csv")}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("rounds=3", "dotted key"),
        ("train.rounds", "dotted key"),
        ("method.mu=1", "no method in the file has a setting 'mu'"),
        ("privacy.epsilon.x=1", "not a key of a table"),
    ],
)
def test_changes_refuse(change, said):
    with pytest.raises(Problem, match=said):
        apply_change(copy.deepcopy(GOOD), change)


@pytest.mark.parametrize(
    ("text", "said"), [("[data", "not valid TOML"), ("\xff\xfe", "not valid TOML"), (None, "does not exist")]
)
def test_files_that_cannot_be_read(tmp_path, text, said):
    path = tmp_path / "c.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Problem, match=said):
        read(path)


def test_memory_is_read_in_any_unit():
    for text, size in (("512MB", 2**29), ("1 GiB", 2**30), ("100", 100), (77, 77)):
        assert check(broken("train.memory", text)).train.memory == size


def test_budgets_by_preference_by_file_and_by_silo(tmp_path):
    """A name is drawn for each silo; a file's numbers, deltas too, are in the resolved configuration."""
    assert check(broken("privacy.epsilon", "mixgauss1")).privacy.epsilon == "mixgauss1"
    assert check(broken("privacy.epsilon", ["gauss", 3.0])).privacy.epsilon == ["gauss", 3.0]
    with pytest.raises(Problem, match=r"privacy.epsilon: .*'mixgaus1'.*did you mean 'mixgauss1'"):
        check(broken("privacy.epsilon", "mixgaus1"))
    (tmp_path / "budgets.csv").write_text("silo,epsilon,delta\nnorth,1,1e-6\nsouth,2.5,1e-5\n")
    config = tmp_path / "config.toml"
    config.write_text('[privacy]\nepsilon = { file = "budgets.csv" }\n[[method]]\nname = "local"\n')
    privacy = read(config).privacy
    assert privacy.epsilon == {"north": 1.0, "south": 2.5}
    assert privacy.delta == {"north": 1e-6, "south": 1e-5}
    with pytest.raises(Problem, match=r"privacy.delta: given more than once"):
        read(config, ["privacy.delta=1e-5"])


def test_drawn_budgets_are_the_same_for_every_seed(federation):
    from dataclasses import replace

    from coterie.methods import Local
    from coterie.privacy.budget import Privacy
    from tests.helpers import experiment

    plain = experiment(federation, Local())
    made, again = (replace(plain, privacy=Privacy("uniform", 1e-3, budget_seed=seed)) for seed in (3, 4))
    assert len(set(made.epsilon[0].tolist())) == len(federation)
    assert made.epsilon[0].tolist() != again.epsilon[0].tolist()
    with pytest.raises(Problem, match="expected a number, or one for each silo, got 'gauss'"):
        _ = replace(plain, privacy=Privacy(epsilon=1.0, delta="gauss")).delta
