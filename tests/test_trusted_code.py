"""What a configuration may run: nothing but models that lie beside it or that its reader allows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from coterie.experiment.config.schema import check, read
from coterie.experiment.from_config import make_experiments
from coterie.tasks.code import Allowed, find_code
from coterie.tasks.task import make_task
from tests.conftest import SMALL
from tests.helpers import call, refused

NET = """
from torch import nn

def net(input_shape, outputs, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, outputs))
"""


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Write a configuration with a model of some name; modules that a test imports are forgotten."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    monkeypatch.chdir(tmp_path)
    before, path = dict(sys.modules), list(sys.path)

    def write(name: str, files: dict[str, str] | None = None, **options: str) -> Path:
        for place, text in (files or {}).items():
            (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / place).write_text(text)
        lines = "".join(f"{key} = {value!r}\n" for key, value in options.items())
        config = tmp_path / "folder" / "small.toml"
        config.parent.mkdir(exist_ok=True)
        config.write_text(f"[model]\nname = {name!r}\n{lines}{SMALL}")
        return config

    yield write
    assert sys.path == path  # the library leaves the search path alone
    for name in set(sys.modules) - set(before):
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("os:system", {"command": "touch ran"}),
        ("subprocess:run", {"args": "touch ran", "shell": "yes"}),
        ("posix:system", {"command": "touch ran"}),
        ("builtins:exec", {"source": "open('ran', 'w')"}),
        ("os.path:exists", {"path": "."}),
        ("json:loads", {"s": "{}"}),
    ],
)
def test_a_configuration_cannot_run_the_standard_library(named, monkeypatch, capsys, name, options):
    """`coterie plan` ran the command that a configuration named."""
    code, _, err = call(monkeypatch, capsys, "plan", named(name, **options))
    assert not list(Path().rglob("ran"))
    assert (code, "part of Python's standard library" in err) == (2, True)
    assert len(err.strip().splitlines()) <= 2  # one sentence, wrapped


SPIES = {
    "from os import system": "neither a function nor a class",
    "from subprocess import run as system": "is defined in 'subprocess', which is never run as a model",
    "from functools import partial\nimport os\nsystem = partial(os.system)": "but a partial",
    "import subprocess\nclass A:\n    x = subprocess\nsystem = A()": "but a A",
    "from subprocess import Popen as system": "is defined in 'subprocess'",
    "from torch.nn import Flatten as system": "name it there, as 'torch.nn.modules.flatten:Flatten'",
    "system = len": "neither a function nor a class",
    "": "has no attribute 'system'",
    "raise ValueError('no\\nmore')": "ValueError: no",
    "1 +": "SyntaxError",
}


@pytest.mark.parametrize("text", SPIES, ids=range(len(SPIES)))
def test_a_module_beside_a_configuration_lends_only_what_it_defines(named, text):
    config = named("spy_beside:system", {"folder/spy_beside.py": text}, command="touch ran")
    with refused(SPIES[text]):
        coterie.plan(config)
    assert not list(Path().rglob("ran"))


@pytest.mark.parametrize("name", ["a:b.c", "a:", ":b", "a.:b", ".a:b", "a b:c", "a:b:c", "../a:b", "a:b()"])
def test_only_names_at_the_top_of_a_module_are_taken(named, name):
    with refused("does not name a function or class at the top of a module"):
        coterie.plan(named(name))


def test_a_module_elsewhere_runs_only_if_it_is_allowed(named, monkeypatch, capsys):
    """Being importable is not enough: the current folder and site-packages need a word."""
    ran = "from pathlib import Path\nPath('ran').touch()\n"
    config = named("in_current:net", {"in_current.py": ran + NET, "folder/beside_it.py": NET})
    with refused("put it there, or allow it with --allow in_current (in Python, allow=['in_current'])"):
        coterie.plan(config)
    code, _, err = call(monkeypatch, capsys, "plan", config)
    assert (code, "--allow in_current" in err, Path("ran").exists()) == (2, True, False)
    assert call(monkeypatch, capsys, "plan", config, "--allow", "in_current")[0] == 0
    assert Path("ran").exists()
    assert coterie.plan(config, allow=["in_current"]).plans
    assert coterie.plan(named("beside_it:net")).plans
    with refused("does not lie beside the configuration"):
        coterie.plan(named("torch.nn:Flatten"))
    with refused("name it there, as 'torch.nn.modules.flatten:Flatten'"):
        coterie.plan(named("torch.nn:Flatten"), allow=["torch"])
    with refused("has no trainable parameter"):  # it is made, and has none
        coterie.plan(named("torch.nn.modules.flatten:Flatten"), allow=["torch"])


def test_a_package_beside_a_configuration_may_import_its_neighbours(named):
    files = {
        "folder/a_package/__init__.py": "",
        "folder/a_package/nets.py": "from a_neighbour import net as made\n\ndef net(outputs):\n    return made((8, 8), outputs)\n",
        "folder/a_neighbour.py": NET,
    }
    assert coterie.plan(named("a_package.nets:net", files)).plans
    with refused("is defined in 'a_neighbour': name it there, as 'a_neighbour:net'"):
        coterie.plan(named("a_package.nets:made"))


def test_names_that_are_also_installed_are_refused(named):
    """A file beside the configuration neither hides an installed package nor is hidden by one."""
    files = {f"folder/{name}.py": f"open('ran', 'w')\n{NET}" for name in ("sklearn", "safetensors", "json")}
    for name in ("sklearn", "safetensors"):
        with refused(f"'{name}' lies beside the configuration and also at"):
            coterie.plan(named(f"{name}:net", files))
    with refused("standard library"):
        coterie.plan(named("json:net"))
    assert not list(Path().rglob("ran"))


def test_modules_beside_a_configuration_hide_nothing_from_the_command(named):
    """Commands used to put the configuration's folder in front of Python's search path."""
    spy = "open('ran', 'w')\nraise SystemExit('taken')\n"
    names = ("json", "scipy", "rich", "numba", "pandas", "sklearn", "matplotlib", "cupy", "torch")
    config = named("linear", {f"folder/{name}.py": spy for name in names})
    command = [sys.executable, "-m", "coterie.cli.main", "plan", "small.toml"]
    source = f"import sys; sys.path.insert(0, {str(Path(coterie.__file__).parents[1])!r})"
    code = f"{source}; sys.argv = {command[2:]!r}; from coterie.cli.main import main; main()"
    folder = {"cwd": config.parent, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-P", "-c", code], **folder)
    assert (done.returncode, "Nothing was trained" in done.stdout) == (0, True), done.stderr
    assert not list(Path().rglob("ran"))


def test_two_configurations_with_modules_of_one_name_are_not_confused(named):
    assert coterie.plan(named("twice_there:net", {"folder/twice_there.py": NET})).plans
    (Path("other")).mkdir()
    Path("other/twice_there.py").write_text(NET.replace("width=3", "width=4"))
    Path("other/small.toml").write_text(Path("folder/small.toml").read_text())
    with refused("'twice_there' lies beside the configuration and also at"):
        coterie.plan("other/small.toml")


@pytest.mark.parametrize("allow", ["os", "subprocess.run", "a-b", "", "a:b"])
def test_what_cannot_be_allowed_is_refused(named, monkeypatch, capsys, allow):
    config = named("linear")
    code, _, err = call(monkeypatch, capsys, "plan", config, "--allow", allow)
    assert code == 2
    assert err.startswith("coterie: allow: ")
    with refused("allow: "):
        read(config, allow=[allow])
    with refused("expected a list of names"):
        read(config, allow="os")


def test_allow_is_for_configuration_files(federation):
    with refused("allow: only a configuration file names modules"):
        coterie.plan(federation, "local", coterie.Privacy(epsilon=1, delta=1e-3), allow=["torch"])


def test_a_configuration_without_a_file_imports_nothing():
    content = {
        "model": {"name": "tests.networks:anything"},
        "privacy": {"epsilon": 1},
        "method": [{"name": "local"}],
    }
    with refused("does not lie beside the configuration"):
        make_experiments(check(content))


def test_a_name_given_in_python_is_allowed_but_not_the_standard_library():
    for name in ("os:system", "subprocess:run"):
        with refused("part of Python's standard library"):
            make_task(name, shape=(3,), classes=2, options={"command": "true"})
    assert find_code("tests.test_trusted_code:named_here") is named_here
    with refused("is defined in 'tests.helpers'"):
        find_code("tests.test_trusted_code:refused")


def named_here():
    """Something that a name can stand for."""


def test_a_package_that_is_allowed_is_allowed_with_what_it_contains():
    allowed = Allowed(modules=("a.b",))
    assert [allowed.names(name) for name in ("a.b", "a.b.c", "a", "a.bc")] == [True, True, False, False]
