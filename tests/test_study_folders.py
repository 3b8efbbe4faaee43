"""The folder of a study: nothing is overwritten, it resumes on its own examples, and gives none away."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.errors import Problem
from coterie.experiment.digest import examples_digest
from tests.helpers import refused

NORTH, SOUTH = "university hospital north", "university hospital south"
COLUMNS = {"silo_column": "h", "target_column": "y"}
BUDGET = ct.Privacy(epsilon=2, delta=1e-5)


def frame(seed=0, names=(NORTH, SOUTH)) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(80, 2))
    y = generator.choice(["u", "v"], 80)
    return pd.DataFrame({"h": np.tile(names, 40), "a": x[:, 0], "b": x[:, 1], "y": y})


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def stop(_method, number, _score):
    if number == 2:
        raise RuntimeError("crash")


def test_no_method_overwrites_another_whose_label_begins_alike():
    """Each of two methods has two long labels, which were cut to the same names."""
    epsilon = [{NORTH: 1.0, SOUTH: 2.0}, {NORTH: 2.0, SOUTH: 4.0}]
    methods = ["fedavg", {"name": "fedavg", "budgets": "minimum"}]
    data = ct.load(frame(), name="c", **COLUMNS)
    result = ct.run(data, methods, ct.Privacy(epsilon=epsilon, delta=1e-5), rounds=1, out="o")
    assert len(list(Path("o/models").iterdir())) == 4
    stated = [json.loads(path.read_text()) for path in Path("o/statements").rglob("*.json")]
    spent = sorted(content["guarantee"]["epsilon"] for content in stated)
    assert spent == sorted(silo.epsilon for run in result.runs for silo in run.silos.values())
    result.save("again")
    files = [sorted(path.relative_to(place) for path in Path(place).rglob("*")) for place in ("o", "again")]
    assert files[0] == files[1]


def test_a_silo_with_a_long_name_is_saved():
    """It spent its budget, and then its files could not be written."""
    data = ct.load(frame(names=("\U00020000" * 80, "q")), name="c", **COLUMNS)
    ct.run(data, "local", BUDGET, rounds=1, ledger="kept", out="o")
    assert len(list(Path("o/models").rglob("*.safetensors"))) == 2


def test_a_training_resumes_on_its_own_examples_only():
    frame().to_csv("c.csv", index=False)
    how = {"rounds": 4, "checkpoint": 1, "out": "o"}
    with pytest.raises(RuntimeError):
        ct.run(ct.load("c.csv", **COLUMNS), "fedavg", BUDGET, on_round=stop, **how)
    kept = Path("o/.fingerprint")
    assert kept.stat().st_mode & 0o077 == 0
    frame(seed=1).to_csv("c.csv", index=False)
    with refused("'o' holds a study that began with other examples"):
        ct.run(ct.load("c.csv", **COLUMNS), "fedavg", BUDGET, **how)
    text = kept.read_text()
    kept.unlink()
    with pytest.raises(Problem, match="belongs to another training"):
        ct.run(ct.load("c.csv", **COLUMNS), "fedavg", BUDGET, **how)
    kept.write_text("damaged")
    with refused("began with other examples"):
        ct.run(ct.load("c.csv", **COLUMNS), "fedavg", BUDGET, **how)
    kept.write_text(text)
    frame().to_csv("c.csv", index=False)
    assert ct.run(ct.load("c.csv", **COLUMNS), "fedavg", BUDGET, **how).runs
    assert not kept.exists()


def test_a_result_holds_no_digest_of_the_examples():
    """A digest without a secret lets anyone test guesses about one example."""
    data = ct.load(frame(), name="c", **COLUMNS)
    result = ct.run(data, "fedavg", BUDGET, rounds=1, out="o")
    study = ct.plan(data, "fedavg", BUDGET, rounds=1).study
    digests = [examples_digest(study, salt) for salt in (b"", b"one", b"one", b"other")]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3
    rows = b"".join(values.numpy().tobytes() for s in data.silos for values in (s.x, s.y, s.test_x, s.test_y))
    shared = pickle.dumps(result) + b"".join(p.read_bytes() for p in Path("o").rglob("*") if p.is_file())
    for digest in (*digests, hashlib.blake2b(rows, digest_size=32).hexdigest()):
        assert digest.encode() not in shared
        assert bytes.fromhex(digest) not in shared
    assert not hasattr(result.study, "fingerprint")


def test_a_sweep_that_chose_nothing_leaves_no_digest():
    asked = {"lr": [0.1, 0.2], "trials": "poisson", "mean": 1.0}
    data = ct.load(frame(), name="c", **COLUMNS)
    outcomes = set()
    for seed in range(30):
        result = ct.sweep(data, "local", BUDGET, rounds=1, seeds=[seed], out=f"o{seed}", **asked)
        outcomes.add(bool(result.runs))
        assert not Path(f"o{seed}/.fingerprint").exists()
        if len(outcomes) == 2:
            return
    pytest.fail("both outcomes should have happened")


def test_a_result_is_not_saved_over_another_study():
    data = ct.load(frame(), name="c", **COLUMNS)
    with pytest.raises(RuntimeError):
        ct.run(data, "fedavg", BUDGET, rounds=4, checkpoint=1, out="o", on_round=stop)
    result = ct.run(data, "fedavg", BUDGET, rounds=4, checkpoint=1)
    with refused("'o' holds something else"):
        result.save("o")
    result.save("new")
    result.save("new")
