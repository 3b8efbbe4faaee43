"""The library leaves the process as it was, and keeps no silo's examples once a training has ended."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
import subprocess
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from coterie.cli.output import say
from coterie.cli.run import tell
from coterie.cohort.derived import derived
from coterie.data.federation import from_table
from coterie.data.sources.table import Table
from coterie.methods import IFCA, Dual, FedAvg, Then, Tune
from coterie.tasks.task import make_task
from tests.helpers import call, experiment, refused, task_for
from tests.test_silo_unit import protected

ROOT = Path(__file__).parents[1]
SILOS, SIZE = 3, 60
LARGE = 1500  # numbers: more than any model has, fewer than the examples of a silo


def many_examples():
    """Silos with far more numbers than a model has parameters."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, size=SILOS * SIZE)
    x = (generator.random((SILOS * SIZE, 8, 8)) + y[:, None, None] / 3).astype(np.float32)
    return from_table(Table("images", x, y, np.repeat(list("abc"), SIZE)))


def then_tuned(how: str) -> Then:
    return Then(first=FedAvg(), second=Tune(how=how), share=0.5)


# One training through each door, and each way that a door has: method, epsilon, model, and what is protected.
TRAININGS = {
    "clipped": (FedAvg(), 4.0, "linear", experiment),
    "without clips": (FedAvg(), math.inf, "linear", experiment),
    "compiled": (FedAvg(), math.inf, "cnn", experiment),
    "dual, sampled": (Dual(), 4.0, "linear", experiment),
    "dual, in turn": (Dual(form="upload"), 4.0, "linear", experiment),
    "dual, in turn, without privacy": (Dual(form="upload"), math.inf, "linear", experiment),
    "choices": (IFCA(clusters=2, choosing=0.7), 4.0, "linear", experiment),
    "imitation": (then_tuned("kl"), 4.0, "linear", experiment),
    "fisher": (then_tuned("ewc"), 4.0, "linear", protected),
}


def train(name: str, federation):
    """Train by a name of `TRAININGS`; the models have few parameters."""
    method, epsilon, model, make = TRAININGS[name]
    options = {"channels": 1} if model == "cnn" else {}
    task = None if method.linear else task_for(federation, model, **options)
    return make(federation, method, task=task, epsilon=epsilon, rounds=2).train()


def large_arrays() -> list[object]:
    """Every tensor and array that can be reached and has as many numbers as a silo's examples."""
    gc.collect()
    tracked = gc.get_objects()
    seen = {id(each): each for holder in (tracked, gc.get_referents(*tracked)) for each in holder}
    tensors = [each for each in seen.values() if issubclass(type(each), torch.Tensor)]
    arrays = [each for each in seen.values() if issubclass(type(each), np.ndarray)]
    return [each for each in (*tensors, *arrays) if math.prod(each.shape) > LARGE]


@pytest.fixture(scope="module")
def before() -> dict[int, object]:
    """What was there before, by its address, so that no address is given away again."""
    for name in TRAININGS:  # what is imported, compiled and kept for models is no example
        train(name, many_examples())
    return {id(each): each for each in large_arrays()}


@pytest.mark.parametrize("name", TRAININGS)
def test_no_example_is_kept_after_a_training(name, before):
    """Nor anything as large that was made of them, although the result is kept."""
    federation = many_examples()
    parts = ("x", "y", "test_x", "test_y")
    own = [weakref.ref(getattr(silo, part)) for silo in federation.silos for part in parts]
    result = train(name, federation)
    del federation
    assert [each.shape for each in large_arrays() if id(each) not in before] == []
    assert [part() for part in own] == [None] * len(own)
    assert all(math.isfinite(run.score) for run in result.runs)


def test_examples_that_are_kept_are_noticed(before):
    held = [many_examples(), torch.zeros(LARGE + 1), np.zeros(LARGE + 1)]
    assert len([each for each in large_arrays() if id(each) not in before]) == SILOS + 2
    assert len(held) == 3


STATE = """
import logging, os, random, sys, threading, warnings
import numpy, pandas, pyarrow, scipy.stats, sklearn.datasets, sympy, torch, torch.func, threadpoolctl
import torch.utils._python_dispatch
from absl import logging as absl_logging
from pathlib import Path

torch.set_num_threads(2)
random.seed(1)
numpy.random.seed(2)
torch.manual_seed(3)

def in_a_new_thread(function):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(function()))
    thread.start()
    thread.join()
    return seen[0]

def loggers():
    known = {name: each for name, each in logging.root.manager.loggerDict.items() if hasattr(each, "level")}
    return {name: (each.level, len(each.handlers), len(each.filters)) for name, each in known.items()}

def state():
    pools = {pool["filepath"]: pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    return {
        "sys.path": list(sys.path),
        "torch threads": (torch.get_num_threads(), in_a_new_thread(torch.get_num_threads)),
        "other threads": pools,
        "logging": (logging.root.level, len(logging.root.handlers), logging.root.manager.disable),
        "random": random.getstate(),
        "numpy": str(numpy.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "warnings": list(warnings.filters),
        "numpy errors": numpy.geterr(),
        "default type": (torch.get_default_dtype(), str(torch.get_default_device())),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "gradients": torch.is_grad_enabled(),
        "recursion": sys.getrecursionlimit(),
        "hook": sys.excepthook,
    }

mallopt = []
import ctypes
real = ctypes.CDLL.__getattr__
def watched(library, name):
    mallopt.append(name)
    return real(library, name)
ctypes.CDLL.__getattr__ = watched

before, levels = state(), loggers()
from tests.test_manners import TRAININGS, many_examples, train
for name in TRAININGS:
    train(name, many_examples())
    after = state()
    for key, value in before.items():
        if key == "other threads":
            after[key] = {path: after[key][path] for path in value}
        assert after[key] == value, (name, key, value, after[key])
    known = loggers()
    assert {key: known[key] for key in levels} == levels, name
assert "mallopt" not in mallopt
print("unchanged")
"""


def test_importing_and_training_leaves_the_process_as_it_was():
    """Search path, threads, loggers, random states, environment: one training of each kind changes none."""
    command = [sys.executable, "-c", STATE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stdout.strip(), done.returncode) == ("unchanged", 0), done.stderr[-2000:]


@dataclass(frozen=True)
class Holder:
    """An object that others derive values from."""

    name: str


@derived
def numbered(holder: Holder, start: int) -> list[Holder]:
    """A value that refers to its object, as a closure over a task does."""
    return [holder] * start


def test_what_is_derived_lives_as_long_as_its_object():
    holder = Holder("first")
    assert numbered(holder, 2) is numbered(holder, 2)
    assert numbered(holder, 2) is not numbered(holder, 3)
    assert numbered(Holder("first"), 2) is not numbered(holder, 2)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_leave_what_was_derived_behind(again):
    holder = Holder("first")
    assert numbered(holder, 1)[0] is holder
    other = again(holder)
    assert other == holder
    assert numbered(other, 1)[0] is other


def test_a_model_beside_no_script_is_refused_in_a_sentence_that_says_why(monkeypatch, tmp_path):
    """The library does not look into the current folder; the command line does."""
    (tmp_path / "a_model_of_mine.py").write_text("import nowhere_to_be_found")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    with refused("No module named 'a_model_of_mine'; its folder must be on Python's search path (sys.path)"):
        make_task("a_model_of_mine:net", shape=(3,), classes=2)
    monkeypatch.syspath_prepend(tmp_path)
    with refused("cannot import 'a_model_of_mine:net': No module named 'nowhere_to_be_found'") as refusal:
        make_task("a_model_of_mine:net", shape=(3,), classes=2)
    assert "search path" not in str(refusal.value)


@pytest.mark.parametrize("command", [["--help"], ["data", "list"], ["epsilon", "--help"]])
def test_commands_that_need_no_torch_do_not_import_it(command):
    code = f"""
import sys
from coterie.cli.main import main
sys.argv = {["coterie", *command]!r}
try:
    main()
except SystemExit:
    pass
print([name for name in ("torch", "sklearn", "scipy", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("beside", [True, False], ids=["beside the configuration", "in the current folder"])
def test_the_command_line_finds_models_of_ones_own(config, tmp_path, monkeypatch, capsys, beside):
    name = f"a_model_{beside}".lower()
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" if not beside else tmp_path).joinpath(f"{name}.py").write_text(
        "from torch import nn\n\ndef net(input_shape, outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    allow = [] if beside else ["--allow", name]
    code, _, err = call(monkeypatch, capsys, "plan", config, "--set", f"model.name={name}:net", *allow)
    assert (code, "cannot import" in err) == (0, False)


class Terminal(io.StringIO):
    """What is printed on a terminal."""

    def isatty(self) -> bool:
        return True


def test_lines_are_wrapped_for_a_terminal_and_nowhere_else(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    text = "a sentence that is longer than thirty letters\n  and /one/path/that/has/no/place/to/be/cut"
    terminal, pipe = Terminal(), io.StringIO()
    say(text, terminal)
    say(text, pipe)
    assert pipe.getvalue() == text + "\n"
    assert terminal.getvalue().splitlines() == [
        "a sentence that is longer than",
        "  thirty letters",
        "  and",
        "    /one/path/that/has/no/place/to/be/cut",
    ]
    terminal, pipe = Terminal(), io.StringIO()
    tell(Console(file=terminal, width=30, no_color=True), text.partition("\n")[0])
    tell(Console(file=pipe, width=30), text.partition("\n")[0])
    assert pipe.getvalue() == text.partition("\n")[0] + "\n"
    assert max(len(line.rstrip()) for line in terminal.getvalue().splitlines()) <= 30
