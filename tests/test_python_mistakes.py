"""Mistakes that people make in Python: each is one sentence that says what to do, and nothing is charged."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

import coterie as ct
from coterie.errors import check_call, nearest, plainly, shown
from coterie.experiment.listener import Listener
from coterie.privacy.ledger.filters import Spent
from tests.helpers import refused
from tests.test_python_api import PRIVACY, clinics, frame, with_columns

__all__ = ["clinics"]  # the fixture


class FailsOnLargeBatches(nn.Module):
    """A module with a bug that shows only for more than three examples."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        y = self.layer(x)
        return y + torch.zeros(len(x), 5) if len(x) > 3 else y


class FailsLater(nn.Module):
    """A module that fails on the examples of the silos, but not on zeros."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        if FailsLater.armed and not torch.is_grad_enabled() and x.shape[0] > 3:
            raise ZeroDivisionError("a bug")
        return self.layer(x)

    armed: ClassVar[bool] = False


def budgets_spent() -> list[int]:
    return [report.runs for report in ct.read_ledgers("ledgers")]


# Callbacks and modules that fail, and what was charged.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_round": 3}, "on_round: expected a function of (method, round, score), got 3"),
        ({"on_round": lambda method: None}, "on_round: the function must take (method, round, score), but"),
        ({"listener": print}, "listener: expected a Listener, got"),
        ({"listener": Listener(), "on_round": print}, "the listener hears of rounds already"),
    ],
)
@pytest.mark.parametrize("call", [ct.run, ct.sweep], ids=["run", "sweep"])
def test_callbacks_are_checked_before_anything_is_charged(clinics, call, options, said):
    with refused(said):
        call(clinics, "local", PRIVACY, rounds=2, lr=[0.1, 0.2], ledger="ledgers", **options)
    assert not Path("ledgers").exists()


def test_a_listener_is_checked_when_it_is_made():
    with refused("on_planning: the function must take (method, done, total), but"):
        Listener(on_planning=lambda: None)
    assert Listener(on_note=print, on_stopping=lambda *_: None).on_note is print
    heard = Listener(on_round=max)  # a built-in function does not say what it takes
    assert heard.on_round is max


def test_a_callback_that_fails_in_a_metered_run_says_what_is_charged(clinics):
    def fails(method, number, score):
        if number == 3:
            raise KeyError("a bug")

    asked = {"rounds": 6, "ledger": "ledgers", "on_round": fails}
    said = (
        "on_round failed after round 3 of 'local' (KeyError: 'a bug'); the run stays charged, with an epsilon of"
        " at most 4 per silo: correct the error; "
    )
    with refused(said + "run the same again with the same folder (out) to resume it") as caught:
        ct.run(clinics, "local", PRIVACY, out="study", **asked)
    assert isinstance(caught.value.__cause__, KeyError)
    result = ct.run(clinics, "local", PRIVACY, rounds=6, ledger="ledgers", out="study")
    # The checkpoint of round 3 was written, so no round is repeated and charged again.
    assert result.to_frame()["epsilon"].max() <= 4
    assert not any("repeated" in note for note in result.notes)
    with pytest.raises(Spent):
        ct.run(clinics, "local", PRIVACY, rounds=6, ledger="ledgers")
    ct.set_budget("ledgers", 20, 1e-2, reason="again", higher=True)
    with refused("it cannot be resumed, because no folder was given (out)"):
        ct.run(clinics, "local", PRIVACY, **asked)
    with pytest.raises(KeyError):  # nothing is charged, so the error is the caller's own
        ct.run(clinics, "local", PRIVACY, rounds=6, on_round=fails)


def test_a_module_that_fails_on_large_batches_is_refused_before_it_is_charged(clinics):
    ct.open_ledgers("ledgers", clinics, epsilon=99, delta=0.1)
    for call, more in ((ct.run, {}), (ct.sweep, {"lr": [0.1, 0.2], "mean": 1.5, "most": 30})):
        with refused("model: the module fails on batches of the size that training uses (RuntimeError"):
            call(clinics, "local", PRIVACY, rounds=2, model=FailsOnLargeBatches, ledger="ledgers", **more)
        assert budgets_spent() == [0, 0, 0]


def test_a_module_that_fails_later_says_what_is_charged(clinics, monkeypatch):
    plan = ct.plan(clinics, "local", PRIVACY, rounds=2, model=FailsLater)

    def arm(method, number, score):
        monkeypatch.setattr(FailsLater, "armed", True)

    said = "training 'local' failed (ZeroDivisionError: a bug); the run stays charged"
    with refused(said):
        ct.run(plan, ledger="ledgers", on_round=arm)
    assert budgets_spent() == [1, 1, 1]


# Which run a result is asked for.


def test_a_result_of_several_methods_asks_which_one_is_meant(clinics):
    methods = ["local", ct.methods.MRMTL(lam=[0.1, 1.0])]
    result = ct.run(clinics, methods, PRIVACY, rounds=2, seeds=2)
    rows = frame()[["age", "dose"]][:3]
    asks = {
        result.model: (), result.statement: (), result.vector: (), result.predict: (rows,),
        result.save_model: ("x.safetensors",),
    }  # fmt: skip
    for ask, more in asks.items():
        with refused("which method? give one of them as method=: 'local', 'mr-mtl lam=0.1', 'mr-mtl lam=1'"):
            ask("north", *more)
        with refused("which method? give one of them as method=: 'mr-mtl lam=0.1', 'mr-mtl lam=1'"):
            ask("north", *more, method="mr-mtl")
        with refused("there is no run of 'mr-mtl lam=2'; did you mean 'mr-mtl lam=1'?"):
            ask("north", *more, method="mr-mtl lam=2")
        ask("north", *more, method="local")
    numbers = {result.find_run(method="mr-mtl lam=1", seed=seed) for seed in (0, 1)}
    assert numbers == {4, 5}
    assert result.find_run(method=ct.methods.MRMTL(lam=0.1)) == 2
    assert result.find_run(method=ct.methods.Local) == 0
    assert torch.equal(result.vector("north", method="mr-mtl lam=0.1"), result.vectors[2][0])
    assert result.statement("north", method="mr-mtl lam=1") == result.statement("north", 4)
    with refused("there is no run of 'local' with seed 7; known: [0, 1]"):
        result.model("north", method="local", seed=7)
    with refused("run: it says the method and the seed already"):
        result.model("north", 1, method="local")
    with refused("method: expected the name of a method, got 3"):
        result.model("north", method=3)
    for wrong in (-1, 6, "first", True):
        with refused("there is no run"):
            result.model("north", run=wrong)
    assert torch.equal(result.vector("north", np.int64(1)), result.vectors[1][0])


def test_a_swept_result_gives_the_chosen_trial(clinics):
    asked = {"rounds": 2, "lr": [0.1, 0.5], "mean": 4}
    results = (ct.sweep(clinics, "local", PRIVACY, seeds=[seed], **asked) for seed in range(9))
    result = next(result for result in results if result.tuning["chosen"])  # neither none nor the first one
    assert result.find_run() == result.tuning["chosen"] > 0
    assert result.statement("north")["tuning"]["ran"] == result.tuning["ran"]


def test_a_result_prepares_rows_for_its_modules(clinics):
    result = ct.run(clinics, "local", PRIVACY, rounds=1)
    rows = frame()[["age", "dose"]][:3]
    x = result.prepare("north", rows)
    predicted = result.predict("north", rows)
    scores = result.model("north")(x).softmax(-1).detach().numpy()
    assert np.array_equal(scores[:, 1], predicted["probability of well"])
    same = result.predict("north", {"age": rows["age"].to_list(), "dose": rows["dose"].to_list()})
    assert np.array_equal(same["probability of well"], predicted["probability of well"])
    with refused("rows: these columns do not make a table"):
        result.predict("north", {"age": [1.0], "dose": [1.0, 2.0]})
    with refused("there is no silo 'nort'"):
        result.prepare("nort", rows)


def test_a_result_shows_the_notes_of_its_plan():
    fed = ct.load(frame().assign(age=np.arange(120) % 70), **with_columns())
    plan = ct.plan(fed, "local", PRIVACY, rounds=1, lr=0.1)
    result = ct.run(plan)
    (note,) = plan.notes
    assert "load the data with feature_range" in note
    for each in (plan, result):
        assert f"note: {note}" in repr(each)
        assert note[:20] in each._repr_html_()


def test_the_calls_of_the_readme():
    text = (Path(__file__).parent.parent / "README.md").read_text()
    silos = ct.load("digits", silos=10, partition="dirichlet", alpha=0.15, rows=400)
    methods = ["local", "fedavg", ct.methods.MRMTL(lam=0.2)]
    result = ct.run(silos, methods, ct.Privacy(epsilon={"each": [1, 2, 4]}, delta=1e-3), rounds=1, seeds=2)
    rows = np.zeros((2, 8, 8))
    for call in ('result.model("silo-3", method="mr-mtl")', 'result.prepare("silo-3", rows)'):
        assert call in " ".join(text.split())
    module = result.model("silo-3", method="mr-mtl")
    assert module(result.prepare("silo-3", rows)).shape == (2, 10)
    with refused("which method?"):
        result.predict("silo-3", rows)


# Wrong calls.


def make_method(local=None, personal=None) -> ct.Method:
    """Make a method from functions."""
    named = {
        "name": "mine",
        "local": local or (lambda self, sent, own, oracle: (oracle.descend(sent) - sent, own)),
        "personal": personal or (lambda self, sent, own: own),
    }
    return dataclass(frozen=True, kw_only=True)(type("Mine", (ct.Method,), named))()


@dataclass(frozen=True, kw_only=True)
class Unfinished(ct.Method):
    """A method without `personal`."""

    name: ClassVar[str] = "unfinished"

    def local(self, sent, own, oracle):
        return oracle.descend(sent) - sent, own


class NoRecord(ct.Method):
    """A method that is no dataclass."""

    name = "no-record"

    def local(self, sent, own, oracle):
        return oracle.descend(sent) - sent, own

    def personal(self, sent, own):
        return own


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ct.methods.Ditto(lamb=1), "Ditto: unknown argument 'lamb'; did you mean 'lam'?"),
        (lambda: ct.methods.Ditto(0.2), "Ditto: give arguments by name, as in Ditto(lam=0.2)"),
        (lambda: ct.methods.IFCA(k=3), "IFCA: unknown argument 'k'; known: choosing, clusters"),
        (
            lambda: ct.methods.Then(ct.methods.IFCA(), ct.methods.MRMTL()),
            "Then: give arguments by name, as in Then(first=..., second=MRMTL(lam=1.0))",
        ),
        (
            lambda: ct.methods.Then(first=ct.methods.FedAvg()),
            "Then: missing a required argument: 'second'",
        ),
        (lambda: ct.methods.Local(1), "Local: 1 argument(s) were given, but it takes none: leave out 1"),
        (lambda: ct.methods.Local(lam=1), "Local: unknown argument 'lam'; it takes none"),
        (lambda: ct.Privacy(eps=3), "Privacy: unknown argument 'eps'; did you mean 'epsilon'?"),
        (lambda: ct.Training(round=1), "Training: unknown argument 'round'; did you mean 'rounds'?"),
        (lambda: ct.Partition(nam="iid"), "Partition: unknown argument 'nam'; did you mean 'name'?"),
        (NoRecord, "NoRecord is not a dataclass: write @dataclass(frozen=True, kw_only=True) above it"),
        (Unfinished, "Unfinished cannot be made: it has no `personal`"),
    ],
)
def test_constructors_say_how_they_are_called(make, said):
    with refused(said):
        make()


def test_plain_constructors_stay_dataclasses():
    """Copies, pickles, signatures and errors within a constructor are as they were."""
    chain = ct.methods.Then(first=ct.methods.FedAvg(), second=ct.methods.MRMTL(lam=0.5))
    for each in (chain, PRIVACY, ct.Training(rounds=3), ct.Partition("iid")):
        assert pickle.loads(pickle.dumps(each)) == each == copy.deepcopy(each)
    assert list(inspect.signature(ct.methods.Ditto).parameters) == ["lam"]
    assert list(inspect.signature(ct.Privacy).parameters)[:2] == ["epsilon", "delta"]
    with refused("lam must be a number >= 0, got -1"):
        ct.methods.Ditto(lam=-1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ct.verify(), "verify: missing a required argument: 'path'"),
        (lambda: ct.advise(), "advise: missing a required argument: 'federation'"),
        (lambda: ct.advise(3, PRIVACY), "federation: expected what load returns, got 3"),
        (lambda: ct.advise(ct.load("digits"), 4), "privacy: expected Privacy(epsilon=..., delta=...), got 4"),
        (lambda: ct.set_budget(), "set_budget: missing a required argument: 'place'"),
        (lambda: ct.load_model(), "load_model: missing a required argument: 'path'"),
        (lambda: ct.make_task(), "make_task: missing a required argument: 'model'"),
        (lambda: ct.list_methods(3), "unknown method '3'; known: ditto"),
        (
            lambda: ct.list_data("x", "y"),
            "list_data: 2 argument(s) were given, but it takes 1: leave out 'y'",
        ),
        (lambda: ct.verify(3), "path: expected a path, got 3"),
        (
            lambda: ct.verify("x.json", ledgers="y"),
            "verify: unknown argument 'ledgers'; did you mean 'ledger'?",
        ),
        (lambda: ct.read_ledgers(3), "place: expected a path, got 3"),
        (lambda: ct.set_budget(None, 1, 1e-3), "place: expected a path, got None"),
        (lambda: ct.load_model(None), "path: expected a path, got None"),
        (lambda: ct.list_data(3), "data_dir: expected a path, got 3"),
        (lambda: ct.verify({"a": 1}), "this file is not a statement"),
        (lambda: ct.verify({"a": math.nan}), "this dict is not a statement"),
        (
            lambda: ct.testing.check_method(ct.methods.Ditto),
            "got the class Ditto: give an instance, as in Ditto()",
        ),
        (lambda: ct.testing.check_method("ditto"), "give an instance, as in Ditto()"),
        (lambda: ct.testing.check_method(3), "check_method: expected a method, got 3"),
        (lambda: ct.testing.check_method(ct.methods.Ditto(), unit="row"), "unknown unit 'row'"),
        (lambda: ct.draw_tradeoff(1.0), "draw_tradeoff: missing a required argument: 'rate'"),
    ],
)
def test_functions_say_how_they_are_called(call, said):
    with refused(said):
        call()


def test_results_say_how_they_are_called(clinics):
    result = ct.run(clinics, "local", PRIVACY, rounds=1)
    with refused("plot: 1 argument(s) were given, but it takes none: leave out 'x.png'"):
        result.plot("x.png")
    with refused("to_frame: 1 argument(s) were given"):
        result.to_frame("north")
    with refused("folder: expected a path, got 3"):
        result.save(3)
    with refused("path: expected a path, got None"):
        result.save_model("north", None)
    with refused("cannot save the model as 'no/such/x': there is no folder 'no/such'"):
        result.save_model("north", "no/such/x")
    with refused("cannot save the model as '.'"):
        result.save_model("north", ".")
    with refused("statement: missing a required argument: 'silo'"):
        result.statement()


def test_a_type_error_within_a_function_is_not_taken_for_a_wrong_call():
    @plainly
    def adds(one, *, two=0):
        return one + two

    assert adds(1, two=2) == 3
    with pytest.raises(TypeError, match="unsupported operand"):
        adds(1, two="2")
    with refused("adds: give arguments by name, as in adds(..., two=2)"):
        adds(1, 2)
    with refused("adds: missing a required argument: 'one'"):
        adds(two=2)
    check_call("adds", inspect.signature(adds), (1,), {})


def test_hints_fold_case_and_take_anything():
    assert nearest(3, ["3a", "b"]) == "did you mean '3a'?"
    assert nearest("MRMTL", ["local", "mr-mtl"]) == "did you mean 'mr-mtl'?"
    assert nearest("x", []) == "there are none"
    assert shown(ct.Problem) == "the class Problem"


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match=r"no attribute 'Ditto'; it is coterie\.methods\.Ditto"):
        _ = ct.Ditto
    with pytest.raises(AttributeError, match="no attribute 'laod'; did you mean 'load'"):
        _ = ct.laod
    with pytest.raises(AttributeError, match="no attribute 'Dito'; did you mean 'Ditto'"):
        _ = ct.methods.Dito
    assert not hasattr(ct, "_nothing")
    assert not hasattr(ct.methods, "__nothing__")


# Methods of one's own.

WRONG_METHODS = {
    "none": (lambda self, sent, own, oracle: None, None, "local must return two things, the upload and the"),
    "one": (lambda self, sent, own, oracle: oracle.descend(sent), None, "the new own state, got one tensor"),
    "three": (lambda self, sent, own, oracle: (own, own, own), None, "the new own state, got 3"),
    "door": (
        lambda self, sent, own, oracle: (oracle.decend(sent), own),
        None,
        "local fails on made-up vectors: AttributeError: the oracle has no 'decend'; did you mean 'descend'?",
    ),
    "length": (
        lambda self, sent, own, oracle: ((oracle.descend(sent) - sent)[..., :3], own),
        None,
        "so an upload must be [runs, silos,",
    ),
    "numpy": (
        lambda self, sent, own, oracle: (np.zeros((1, 3, 6)), own),
        None,
        "local must return torch tensors: a tree holds tensors",
    ),
    "places": (
        lambda self, sent, own, oracle: (oracle.descend(sent, own, 0.1) - sent, own),
        None,
        "oracle.descend() takes 2 positional arguments but 4 were given; give all but `start` by name",
    ),
    "error": (lambda self, sent, own, oracle: {}["x"], None, "local fails on made-up vectors: KeyError: 'x'"),
    "no model": (None, lambda self, sent, own: None, "personal must return vectors [runs, silos,"),
    "short model": (None, lambda self, sent, own: own[..., :2], "personal must return [runs, silos,"),
}


@pytest.mark.parametrize("kind", WRONG_METHODS)
def test_a_wrong_method_is_one_sentence(clinics, kind):
    local, personal, said = WRONG_METHODS[kind]
    with refused(said):
        ct.testing.check_method(make_method(local, personal))
    with refused(said):
        ct.plan(clinics, make_method(local, personal), PRIVACY, rounds=1)
    ct.testing.check_method(make_method())


# Data.


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (frame(), with_columns(partition="iid"), "the silos are those of the column 'clinic'; leave out one"),
        (frame(), with_columns(target_column="clinic"), "'clinic' is the column to predict too"),
        (frame(), with_columns(drop=["clinic"]), "data.drop: 'clinic' is the silo_column"),
        (frame(), with_columns(drop=["outcome"]), "data.drop: 'outcome' is the target_column"),
        (frame(), with_columns(drop=3), "data.drop: expected a list, got 3"),
        (frame(), with_columns(data_dir="."), "data_dir: data in memory needs no folder"),
        (frame().assign(age=1j), with_columns(), "column 'age' of 'the frame' holds complex numbers"),
        (frame().assign(age=[[1]] * 120), with_columns(), "holds cells of several values, such as a list"),
        (
            frame().assign(outcome="well"),
            with_columns(),
            "the target of 'the frame' has only one value, 'well'",
        ),
        (frame()[:0], with_columns(), "data: 'the frame' has no rows"),
        (
            frame().assign(sex=["f", "m"] * 60),
            with_columns(feature_range={"sex": (0, 1)}),
            "data.feature_range: 'sex' is a column of text",
        ),
        (
            frame(),
            with_columns(feature_range={"agee": (0, 1)}),
            "'the frame' has no column 'agee'; did you mean",
        ),
        ({"x": np.ones((4, 2)) * 1j, "y": [0, 1] * 2}, {}, "the features of 'the dict' are complex numbers"),
        (
            {"x": np.ones((4, 2)), "y": np.array([1j, 0] * 2)},
            {},
            "the target of 'the dict' is a complex number",
        ),
        ({"x": [[1.0, 2.0], [1.0]], "y": [0, 1]}, {}, "'x' must be an array with rows of equal length"),
        ({"x": [[1.0]] * 4, "y": [[0], [1]] * 2}, {}, "but y has shape (4, 1): use y.ravel()"),
        ({"x": np.zeros((4, 0)), "y": [0, 1] * 2}, {}, "'the dict' has no features"),
    ],
)
def test_wrong_data_is_one_sentence(source, options, said):
    with refused(said):
        ct.load(source, **options)


def test_data_that_looks_like_a_mistake_has_a_note():
    fed = ct.load(frame(), feature_range={"age": (10, 20)}, **with_columns())
    assert "no value of 1 column(s), such as 'age', lies within its bounds" in fed.notes[0]
    assert ct.plan(fed, "local", PRIVACY, rounds=1).notes[0] == fed.notes[0]
    arrays = {"x": np.full((40, 2), 5.0), "y": np.arange(40) % 2}
    assert "such as 'column 1'" in ct.load(arrays, silos=2, feature_range=(0, 1)).notes[0]
    assert not ct.load(arrays, silos=2, feature_range=(0, 5)).notes
    few = ct.load(frame(12), test=0.9, **with_columns())
    assert few.notes == ("3 silo(s), such as 'north', have a single training example: hold out fewer (test)",)
    assert not ct.load(frame(), **with_columns()).notes


def test_files_that_cannot_be_read_are_told_plainly(clinics):
    Path("codec.csv").write_bytes(b"\xff\xfe\x00a,b\n1,2\n")
    Path("empty.csv").write_bytes(b"")
    Path("sheet.xlsx").write_bytes(b"PK")
    Path("junk.safetensors").write_bytes(b"hello world and more and more and more")
    result = ct.run(clinics, "local", PRIVACY, rounds=1)
    said = {
        "none.csv": "cannot read 'none.csv': no such file or directory",
        "codec.csv": "cannot read 'codec.csv': it is not text",
        "empty.csv": "cannot read 'empty.csv': it is empty",
        "sheet.xlsx": "'sheet.xlsx' is an Excel file: save it as CSV",
    }
    for path, words in said.items():
        with refused(words):
            result.predict("north", path)
        if path != "none.csv":
            with refused(words):
                ct.load(path, **with_columns())
    with refused("cannot read the model 'junk.safetensors': it is no safetensors file, or damaged"):
        ct.load_model("junk.safetensors")


# Budgets.


def test_budgets_by_silo_in_every_form(clinics):
    def budgets(epsilon, fed=clinics):
        return ct.plan(fed, "local", ct.Privacy(epsilon=epsilon, delta=1e-3), rounds=1).to_frame()["budget"]

    series = pd.Series({"north": 1, "south": 2, "east": 3})
    assert list(budgets(series)) == list(budgets(series.to_dict())) == [1, 2, 3]
    assert list(budgets({"north": np.int64(1), "default": np.float32(4)})) == [1, 4, 4]
    numbered = ct.load(frame().assign(clinic=np.arange(120) % 3), **with_columns(name="numbered"))
    assert list(budgets({0: 1, 1: 2, 2: 3}, numbered)) == [1, 2, 3]
    assert list(budgets(pd.Series([1, 2, 3]), numbered)) == [1, 2, 3]
    with refused("privacy.epsilon: there is no silo '5'; known: 0, 1, 2"):
        budgets({0: 1, 1: 2, 5: 3}, numbered)
    lr = ct.plan(numbered, "local", PRIVACY, rounds=1, lr=pd.Series([0.1, 0.2, 0.3])).study.experiments[0].lr
    assert lr.tolist() == [[0.1, 0.2, 0.3]]
    ct.open_ledgers("ledgers", numbered, epsilon={0: 1, "default": 2}, delta=1e-3)
    assert [report.budgets["example"][0] for report in ct.read_ledgers("ledgers")] == [1, 2, 2]
    result = ct.run(numbered, "local", PRIVACY, rounds=1)
    assert torch.equal(result.vector(2), result.vector("2"))
    assert len(result.predict(np.int8(1), frame()[["age", "dose"]][:2])) == 2
    assert numbered.pick([2]).names == ("2",)


def test_a_list_as_long_as_the_silos_has_a_note(clinics):
    note = "privacy.epsilon: a list of 3 is one run per entry, and there are as many silos"
    listed = ct.plan(clinics, "local", ct.Privacy(epsilon=[1, 2, 3], delta=1e-3), rounds=1)
    assert any(each.startswith(note) for each in listed.notes)
    for epsilon in ([1, 2], {"each": [1, 2, 3]}, [{"each": [1, 2, 3]}, 2, 3]):
        plan = ct.plan(clinics, "local", ct.Privacy(epsilon=epsilon, delta=1e-3), rounds=1)
        assert not any(each.startswith(note) for each in plan.notes)


# Methods, models and losses by name.


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("MR-MTL", PRIVACY), {}, "unknown method 'MR-MTL'; did you mean 'mr-mtl'?"),
        (("MRMTL", PRIVACY), {}, "did you mean 'mr-mtl'?"),
        (("ditto lam=0.2", PRIVACY), {}, "write methods.Ditto(lam=0.2)"),
        (("local", None), {}, "to train without privacy, say so: Privacy(epsilon=math.inf)"),
        (("local", PRIVACY), {"model": nn.Linear}, "needs 'in_features', but what makes a module gets only"),
        (("local", PRIVACY), {"model": lambda x: x}, "needs 'x', but what makes a module gets only"),
        (("local", PRIVACY), {"model": F.relu}, "needs 'input', but what makes a module gets only"),
        (
            ("local", PRIVACY),
            {"model": "mlp", "model_options": {"hidden": "x"}},
            "'mlp' needs whole numbers hidden >= 1 and layers >= 0, got 'x' and 1",
        ),
        (
            ("local", PRIVACY),
            {"model": "cnn", "model_options": {"channels": 1.5}},
            "'cnn' needs a whole number channels >= 1, got 1.5",
        ),
        (
            ("local", PRIVACY),
            {"model": nn.Linear(2, 2), "model_options": {"bias": False}},
            "model_options: a module is made already",
        ),
        (
            ("local", PRIVACY),
            {"loss": "mse"},
            "unknown loss 'mse'; did you mean 'squared'? (all: squared, huber",
        ),
        (("local", PRIVACY), {"loss": "BCE"}, "unknown loss 'BCE'; did you mean 'logistic'?"),
        (
            ("local", PRIVACY),
            {"device": "cuda:77"},
            "train.device: 'cuda:77' cannot be used here, because torch",
        ),
    ],
)
def test_wrong_names_are_one_sentence(clinics, arguments, options, said):
    with refused(said):
        ct.plan(clinics, *arguments, **options)


def test_a_device_of_torch_is_taken(clinics):
    plan = ct.plan(clinics, "local", PRIVACY, rounds=1, device=torch.device("cpu"))
    assert plan.study.config.train.device == "cpu"


def test_no_privacy_is_trained_as_the_message_says(clinics):
    assert ct.run(clinics, "local", ct.Privacy(epsilon=math.inf), rounds=1).runs


def test_data_and_plans_in_place_of_a_configuration(clinics):
    with refused(
        "'clinics.csv' is not a configuration (a .toml file); load data first, as in load('clinics.csv'"
    ):
        ct.plan("clinics.csv", "ditto", PRIVACY)
    with refused("'clinics.csv' is not a configuration"):
        ct.run("clinics.csv")
    with refused("'digits' is not a configuration"):
        ct.plan("digits", "ditto", PRIVACY)
    with refused("the config file 'nothing' does not exist"):
        ct.plan("nothing")
    plan = ct.plan(clinics, "local", PRIVACY, rounds=1)
    for call in (ct.plan, ct.sweep):
        with refused("this is a plan already: give the federation, methods and budgets instead"):
            call(plan)


def test_a_model_without_a_name_cannot_be_pickled(clinics):
    local_class = type("<locals>.Net", (nn.Linear,), {})
    for model in (lambda input_shape, outputs: nn.Linear(*input_shape, outputs), local_class(2, 2)):
        result = ct.run(clinics, "local", PRIVACY, rounds=1, model=model)
        with refused("cannot be pickled: define its function or class at the top of a module"):
            pickle.dumps(result)


# Statements, ledgers and figures.


def test_statements_are_found_or_their_neighbours_named(clinics):
    result = ct.run(clinics, ct.methods.Ditto(lam=0.2), PRIVACY, rounds=1, out="study")
    checked = ct.verify(result.statement("north"))
    assert (checked.silo, checked.path) == ("north", None)
    folder = "study/statements/ditto-lam-0.2"
    with refused("; in 'study/statements', did you mean 'ditto-lam-0.2'?"):
        ct.verify("study/statements/ditto/north.json")
    with refused("; in 'study/statements/ditto-lam-0.2', did you mean 'north.json'?"):
        ct.verify(f"{folder}/nort.json")
    for place in ("study", "study/statements", folder):
        with refused(f"'{place}' is a folder: name the file of a statement, such as '{folder}/east.json'"):
            ct.verify(place)
    with refused("ledger: expected a path, got 3"):
        ct.verify(f"{folder}/north.json", ledger=3)
    changed = result.statement("north")
    changed["guarantee"]["epsilon"] /= 2
    with refused("its checksum does not match"):
        ct.verify(changed)


def test_messages_of_ledgers_and_folders_fit_python(clinics):
    ct.run(clinics, "local", PRIVACY, rounds=1, ledger="ledgers", out="study")
    with pytest.raises(Spent, match=r"use fewer rounds or a smaller epsilon, or raise the budget \(`coterie"):
        ct.run(clinics, "local", PRIVACY, rounds=1, ledger="ledgers")
    with refused("out: 'study' already holds this result; choose another folder"):
        ct.run(clinics, "local", PRIVACY, rounds=1, ledger="ledgers", out="study")
    with refused("raising it requires saying so and a reason (--raise --reason WHY, or higher=True"):
        ct.set_budget("ledgers", 9, 1e-2)
    with refused("epsilon: expected a number, got '9'"):
        ct.set_budget("ledgers", "9", 1e-2)
    with refused("use its folder, restore it, or begin with what it had spent by `coterie ledger recover"):
        ct.run(clinics, ["local", "fedavg"], PRIVACY, rounds=1, ledger="others")
    Path("fresh").mkdir()
    with refused("there is no ledger of 'north' in '"):
        ct.run(clinics, ["local", "fedavg"], PRIVACY, rounds=1, ledger="others", witness="fresh")


def test_figures_are_drawn_from_python():
    figure = ct.draw_tradeoff([0.8, 2.0], rate=0.05, steps=100, unit="one patient")
    assert isinstance(figure, Figure)
    assert "whether the data of one patient was used?" in figure.get_suptitle()
    assert len(ct.draw_tradeoff(1.0, 0.05, 100).axes) == 3
    tuning = ct.draw_tuning(epsilon=0.5, mean=4)
    assert "epsilon 0.5, 4 trials" in tuning.get_suptitle()
