"""Messages, results and what is saved of them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import coterie
from coterie.errors import Problem
from coterie.experiment.file_names import file_names
from coterie.protocol.messages import pack, unpack
from coterie.protocol.tree import concatenate, leaves, map_leaves
from coterie.report.tables import MOST_METHODS, silo_table


@pytest.mark.parametrize(
    "tree",
    [
        None,
        torch.randn(2, 3),
        (torch.zeros(1), None, {"a": torch.arange(3), "b": [torch.tensor(2.0)]}),
        [],
        {"x": (None, torch.ones(2, dtype=torch.bool))},
    ],
)
def test_messages_survive_as_bytes(tree):
    back = unpack(pack(tree))
    assert type(back) is type(tree)
    for before, after in zip(leaves(tree), leaves(back), strict=True):
        assert torch.equal(before, after)
        assert before.dtype == after.dtype
    assert pack(back) == pack(tree)


def test_trees():
    tree = {"a": (torch.ones(1, 2), None)}
    joined = concatenate([tree, tree], dim=1)
    assert joined["a"][0].shape == (1, 4)
    assert joined["a"][1] is None
    with pytest.raises(TypeError, match="a tree holds tensors"):
        map_leaves(lambda x: x, {"a": 3})


def test_the_five_lines_of_the_readme(tmp_path):
    federation = coterie.load("digits", silos=4, partition="shards")
    methods = [coterie.Local(), coterie.MRMTL(lam=[0.1, 0.5])]
    heard = []
    result = coterie.run(
        federation,
        methods,
        coterie.Privacy(epsilon=4, delta=1e-3),
        rounds=3,
        seeds=2,
        on_round=lambda name, number, score: heard.append((name, number, score)),
    )
    assert [row["settings"] for row in result.summary] == [{}, {"lam": 0.1}, {"lam": 0.5}]
    assert all(3.96 < row["epsilon"] <= 4 for row in result.summary)
    assert ("mr-mtl", 3) in [(name, number) for name, number, _ in heard]
    result.save_model("silo-2", tmp_path / "m.safetensors", run=3)
    model = coterie.load_model(tmp_path / "m.safetensors")
    x = federation.silos[2].test_x
    assert torch.equal(model(x), result.model("silo-2", run=3)(x))
    assert not torch.equal(model(x), result.model("silo-2", run=0)(x))


def test_the_result_refuses_what_it_has_not(federation, tmp_path):
    result = coterie.run(federation, coterie.Local(), coterie.Privacy(epsilon=4, delta=1e-3), rounds=1)
    with pytest.raises(Problem, match="there is no silo 'silo-9'; did you mean"):
        result.model("silo-9")
    with pytest.raises(Problem, match="there is no run 5; there are 1"):
        result.model("silo-0", run=5)
    for run in (5, -1):
        with pytest.raises(Problem, match=f"there is no run {run}; there are 1"):
            result.save_model("silo-0", tmp_path / "m.safetensors", run=run)
        with pytest.raises(Problem, match=f"there is no run {run}; there are 1"):
            result.predict("silo-0", federation.silos[0].test_x, run=run)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"rounds": 0}, "train.rounds"),
        ({"rounds": 10**9}, "train.rounds: expected a number <= 1000000, got 1000000000"),
        ({"batch": 0}, "train.batch"),
        ({"steps": -1}, "train.steps"),
        ({"epochs": float("nan")}, "train.epochs"),
        ({"epochs": -1.0}, "train.epochs"),
        ({"seeds": []}, "train.seeds"),
        ({"seeds": [0, 0]}, "train.seeds: expected"),
        ({"lr": 1e39}, "train.lr"),
    ],
)
def test_training_is_checked_from_python_too(federation, training, said):
    with pytest.raises(Problem, match=said):
        coterie.run(federation, coterie.Local(), coterie.Privacy(epsilon=4, delta=1e-3), **training)


def test_silos_have_names_of_their_own(federation):
    with pytest.raises(Problem, match="have the same name"):
        federation.pick(["silo-0", "silo-0"])


def test_run_wants_a_method(federation):
    with pytest.raises(Problem, match="at least one method"):
        coterie.run(federation, [], coterie.Privacy(epsilon=1))


def test_the_score_is_over_all_test_examples(federation):
    result = coterie.run(federation, coterie.FedAvg(), coterie.Privacy(epsilon=4, delta=1e-3), rounds=2)
    run = result.runs[0]
    sizes = [len(silo.test_y) for silo in federation.silos]
    pooled = sum(n * run.silos[s.name].score for n, s in zip(sizes, federation.silos, strict=True)) / sum(
        sizes
    )
    assert run.score == pytest.approx(pooled)
    module = result.model("silo-1")
    silo = federation.silos[1]
    with torch.no_grad():
        error = (module(silo.test_x).squeeze(1) - silo.test_y).square().mean()
    assert run.silos["silo-1"].score == pytest.approx(float(error), rel=1e-4)


def test_file_names_are_harmless_and_distinct():
    names = ["a/b", "a b", "A b", "../up", "", "x" * 300, "Überlingen"]
    made = file_names(names)
    assert len({name.lower() for name in made}) == len(names)
    assert all("/" not in name and not name.startswith(".") and len(name) < 100 for name in made)


def test_long_names_are_told_apart_by_their_ends_whatever_others_there_are():
    """Labels of several methods were cut alike, each in a list of its own: one overwrote the other."""
    one, other, wide = "x" * 80 + "1", "x" * 80 + "2", "\U00020000" * 80
    assert file_names([one]) != file_names([other])
    assert file_names([one, other]) == [*file_names([one]), *file_names([other])]
    assert all(len(f"{name}.safetensors~99".encode()) < 255 for name in file_names([one, wide, wide]))


def test_the_package_names_only_what_it_has():
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = coterie.nothing


def test_the_table_of_silos_fits_a_terminal_with_any_number_of_methods(federation):
    """Numbers are never broken; of many methods the best are shown, what was spent is that of all."""
    privacy = coterie.Privacy(epsilon=4, delta=1e-3)
    made = [coterie.MRMTL(lam=lam) for lam in (0.01, 0.1, 1.0, 2.0, 3.0)]
    result = coterie.run(federation, [*made, coterie.Local(), coterie.FedAvg()], privacy, rounds=2)
    out = Console(width=80, record=True, file=io.StringIO())
    out.print(silo_table(result, [[4.0]] * 3, federation.sizes))
    text = out.export_text()
    best = sorted({run.score: run for run in result.runs}.items())[:MOST_METHODS]
    for name in federation.names:
        (row,) = [line.split() for line in text.splitlines() if line.startswith(f" {name}")]
        assert sorted(row[5:]) == sorted(f"{run.silos[name].score:.3f}" for _, run in best)
        assert float(row[3]) >= max(run.silos[name].epsilon for run in result.runs)
    assert "2 more methods: see result.json" in text


def test_a_method_that_diverged_is_not_among_the_best(federation):
    made = [coterie.MRMTL(lam=lam) for lam in (0.01, 0.1, 1.0, 2.0, 3.0)]
    privacy = coterie.Privacy(epsilon=4, delta=1e-3)
    result = coterie.run(federation, [coterie.Local(), *made], privacy, rounds=2)
    result.runs[0] = replace(result.runs[0], score=float("nan"))
    out = Console(width=80, record=True, file=io.StringIO())
    out.print(silo_table(result, [[4.0]] * 3, federation.sizes))
    assert "local" not in out.export_text()
