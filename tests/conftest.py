from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, settings

from coterie.data.federation import Federation, from_table
from coterie.data.sources.table import Table

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of commands that tests start: two busy pools on two cores crawl
settings.register_profile(
    "coterie", derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate], database=None
)
settings.load_profile("coterie")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
SMALL = """
[data]
silos = 3
[train]
rounds = 2
seeds = 2
lr = 0.5
[privacy]
epsilon = { each = [1, 4] }
delta = 1e-3
[[method]]
name = "fedavg"
[[method]]
name = "mr-mtl"
lam = [0.1, 1.0]
"""


@pytest.fixture(autouse=True)
def no_guard_stays_open(monkeypatch: pytest.MonkeyPatch):
    """Close the guards that a test made: each has several open files, and there are thousands of tests."""
    module, made = sys.modules.get("coterie.deploy.guard"), []
    if module is not None:
        real = module.Guard.__init__

        def remembered(self, *given, **named):
            real(self, *given, **named)
            made.append(self)

        monkeypatch.setattr(module.Guard, "__init__", remembered)
    yield
    for guard in made:
        guard.close()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Calibrations are searched afresh, whatever the machine remembers."""
    os.environ["COTERIE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ.pop("COTERIE_DATA", None)


@pytest.fixture(autouse=True)
def witness(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Heads of ledgers are kept in a folder of the test, never in the home folder."""
    folder = tmp_path_factory.mktemp("witness")
    monkeypatch.setenv("COTERIE_WITNESS", str(folder))
    return folder


@pytest.fixture
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the shared data sets are not beside this checkout")
    return SHARED


def regression_table(sizes=(20, 12, 30), features: int = 3, seed: int = 0) -> Table:
    generator = np.random.default_rng(seed)
    rows = sum(sizes)
    x = generator.normal(size=(rows, features)).astype(np.float32)
    y = (x @ generator.normal(size=features) + generator.normal(size=rows)).astype(np.float32)
    silo = np.concatenate([[f"silo-{k}"] * n for k, n in enumerate(sizes)])
    return Table("made", x, y, silo)


@pytest.fixture
def federation() -> Federation:
    """Three silos of different sizes, a numeric target."""
    return from_table(regression_table())


@pytest.fixture
def classes() -> Federation:
    """Four silos of small images, three classes."""
    generator = np.random.default_rng(1)
    y = generator.integers(0, 3, size=80)
    x = (generator.random((80, 6, 6)) + y[:, None, None] / 3).astype(np.float32)
    return from_table(Table("images", x, y, np.repeat(["a", "b", "c", "d"], 20)))


@pytest.fixture
def config(tmp_path, monkeypatch) -> Path:
    """A small configuration, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path
