"""The floor plan: every module has a storey, and the contract notices one that has none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the import contracts on a checkout."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"]
    return subprocess.run(
        [*command, "--no-cache"], cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(folder)}
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package and its contracts."""
    shutil.copytree(ROOT / "coterie", tmp_path / "coterie", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(copy):
    done = lint(copy)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_a_stray_module_is_refused(copy):
    (copy / "coterie" / "helpers.py").write_text('"""Nobody knows where this belongs."""\n')
    done = lint(copy)
    assert done.returncode != 0
    assert "helpers" in done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("methods/local.py", "from ..cohort.examples import Examples"),
        ("privacy/events.py", "import torch"),
        ("engines/reference.py", "from .simulation import simulate"),
        ("cohort/sampling.py", "from ..planning.plan import Plan"),
        ("experiment/result.py", "from ..report.tables import summary_table"),
        ("planning/plan.py", "from ..methods import FedAvg"),
    ],
)
def test_a_storey_that_reaches_up_is_refused(copy, module, line):
    path = copy / "coterie" / module
    path.write_text(f"{path.read_text()}\n{line}\n")
    assert lint(copy).returncode != 0


def test_no_module_lies_flat_that_has_no_storey_of_its_own():
    flat = {path.stem for path in (ROOT / "coterie").glob("*.py")}
    assert flat == {
        "__init__",
        "__main__",
        "api",
        "testing",
        "errors",
        "_grid",
        "_inputs",
        "_json",
        "_seeds",
        "_threads",
    }


def test_the_package_runs_as_a_module():
    """Before, `python -m coterie` said that a package cannot be executed."""
    asked = [sys.executable, "-m", "coterie", "ledger", "verify", "nowhere"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (2, "coterie: there is no ledger 'nowhere'\n")
