"""Whatever the cache on disk says, the epsilon that is shown was certified anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.privacy import calibration
from coterie.privacy.cache import _checksum
from coterie.privacy.calibration import Target, calibrate
from coterie.privacy.statement.build import statement_cache
from coterie.privacy.statement.verify import verify
from tests.conftest import SMALL
from tests.helpers import call

TARGET = Target(2.0, 1e-5, 0.1, 20)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def poison(file: Path, answer) -> int:
    """Replace every answer of a cache, with a checksum that fits; return how many there were."""
    content = json.loads(file.read_text())
    content["entries"] = dict.fromkeys(content["entries"], answer)
    content["sum"] = _checksum(content["entries"])
    file.write_text(json.dumps(content))
    return len(content["entries"])


@pytest.mark.parametrize("noise", [0.01, 1e-9, 0.0, 900.0, 1e300, -1.0, "1", None, [0.01, 1.99], True, {}])
def test_calibration_does_not_believe_its_cache(folder, noise):
    """A noise that spends more than the budget, or far less, is searched anew."""
    honest = calibrate([TARGET])
    assert poison(folder / "calibration.json", noise) == 1
    assert calibrate([TARGET]) == honest


def test_the_cache_saves_the_search_but_not_the_certificate(folder, monkeypatch):
    certified, real = [], calibration._certify
    first = calibrate([TARGET])
    monkeypatch.setattr(calibration, "_certify", lambda n, t: certified.append(n) or real(n, t))
    assert calibrate([TARGET]) == first
    assert certified == [first[TARGET].noise]


@pytest.mark.parametrize("noise", [0.05, [0.05, 1.994]])
def test_plans_results_and_statements_do_not_believe_it(folder, monkeypatch, capsys, noise):
    """A result once claimed 1.994 for a true 300.6."""
    Path("small.toml").write_text(SMALL.replace("{ each = [1, 4] }", "2"))
    honest = json.loads(call(monkeypatch, capsys, "plan", "small.toml", "--json")[1])["plans"]
    assert poison(folder / "calibration.json", noise) >= 1
    again = json.loads(call(monkeypatch, capsys, "plan", "small.toml", "--json")[1])["plans"]
    assert [plan["variants"] for plan in again] == [plan["variants"] for plan in honest]
    poison(folder / "calibration.json", noise)
    assert call(monkeypatch, capsys, "run", "small.toml", "--out", "out")[0] == 0
    results = json.loads(Path("out/result.json").read_text())["runs"]
    planned = honest[0]["variants"][0]["silos"]
    assert {name: silo["epsilon"] for name, silo in results[0]["silos"].items()} == {
        name: silo["epsilon"] for name, silo in planned.items()
    }
    statements = list(Path("out/statements").rglob("*.json"))
    assert len(statements) >= 3
    for file in statements:
        verify(file.read_text())


@pytest.mark.parametrize("answer", [{"epsilon": 0.5}, [["a", "b"]], [3], 7, [["a", "b", "c"]], None])
def test_statements_take_nothing_certified_from_their_cache(folder, answer):
    from tests.test_statement import make

    cache = statement_cache()
    honest = make(cache=cache)
    cache.save()
    assert make(cache=statement_cache()) == honest == make()
    assert poison(folder / "statements.json", answer) == 1
    assert make(cache=statement_cache()) == honest


def test_a_forged_formula_is_found(folder):
    from coterie.errors import Problem
    from coterie.privacy.statement.build import text_of
    from tests.test_statement import make

    cache = statement_cache()
    honest = make(cache=cache)
    cache.save()
    poison(folder / "statements.json", [["Somebody 2020", "a formula", 0.1]])
    forged = make(cache=statement_cache())
    assert forged["guarantee"] == honest["guarantee"]
    with pytest.raises(Problem, match="published"):
        verify(text_of(forged))
