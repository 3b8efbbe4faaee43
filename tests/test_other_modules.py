"""A saved model is loaded into the module that was trained, and says if nothing protects it."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors import safe_open
from torch import nn

import coterie
from coterie.experiment.probes import differs, probe, read_probes
from coterie.tasks.task import make_task
from tests.helpers import refused
from tests.test_saved_models import saved, with_record


def test_the_file_chooses_no_argument_of_a_users_function(tmp_path):
    """A file from elsewhere could otherwise name a file to load, or a size that fills the memory."""
    heard = []

    def factory(outputs, weights=None, width=3):
        heard.append((weights, width))
        return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, outputs))

    path = saved(tmp_path, make_task(factory, shape=(8, 8), classes=10))
    with_record(path, lambda r: {**r, "model": {**r["model"], "settings": {"weights": "/tmp/evil.pt"}}})
    heard.clear()
    with refused("was trained with another 'weights' (\"/tmp/evil.pt\") than the module has"):
        coterie.load_model(path, factory)
    assert heard == []
    with_record(path, lambda r: {**r, "model": {**r["model"], "settings": {}}})
    with refused("was trained without 'width': leave it out"):
        coterie.load_model(path, factory, {"width": 3})
    with refused("options: they are for a class or function"):
        coterie.load_model(path, factory(10), {"width": 3})
    with refused("options: expected a dict"):
        coterie.load_model(path, factory, ["width"])
    assert coterie.load_model(path, factory).silo == "north"


class Clipped(nn.Module):
    """A module whose limit no file holds, and which matters for large numbers only."""

    def __init__(self, outputs=10, limit=1000.0):
        super().__init__()
        self.layer, self.limit = nn.Linear(64, outputs), limit

    def forward(self, x):
        return self.layer(x.flatten(1).clamp(-self.limit, self.limit))


def test_a_module_that_differs_for_large_numbers_only_is_noticed(tmp_path):
    path = saved(tmp_path, make_task(Clipped, shape=(8, 8), classes=10))
    assert coterie.load_model(path, Clipped(limit=1000.0)).silo == "north"
    for limit in (5.0, 300.0):
        with refused("computes something other than the one that was trained"):
            coterie.load_model(path, Clipped(limit=limit))
    with_record(
        path,
        lambda r: {**{k: v for k, v in r.items() if k != "probes"}, "made_up": r["probes"][0]["outputs"]},
    )
    assert coterie.load_model(path, Clipped).silo == "north"
    with_record(path, lambda r: {**r, "made_up": [[0.0] * 10] * 3})
    with refused("computes something other than the one that was trained"):
        coterie.load_model(path, Clipped)


def test_probes_tolerate_what_rounding_does_to_a_module():
    """Of large numbers the cosine is all rounding; a module that is rounded in another way is still the same."""

    def cosine(x):
        return torch.cos(37 * x.flatten(1).sum(1, keepdim=True))

    def rounded(x):
        return torch.cos(37 * x.flatten(1).double().sum(1, keepdim=True)).float()

    known = read_probes({"probes": probe(cosine, (8, 8))})
    assert not differs(rounded, (8, 8), known)
    assert differs(lambda x: cosine(x) + 0.01, (8, 8), known)
    assert differs(lambda x: cosine(x).expand(-1, 2), (8, 8), known)

    def small_only(x):
        if x.abs().max() > 1:
            raise IndexError("out of the table's range")
        return x.flatten(1)

    narrow = read_probes({"probes": probe(small_only, (8, 8))})
    assert [each is None for each in narrow] == [False, True, True]
    assert not differs(small_only, (8, 8), narrow)
    assert differs(lambda x: x.flatten(1), (8, 8), narrow)
    with pytest.raises(IndexError):
        differs(small_only, (8, 8), read_probes({"probes": probe(lambda x: x.flatten(1), (8, 8))}))


@pytest.mark.parametrize("unit", ["example", "silo"])
def test_a_model_that_nothing_protects_is_marked_and_for_its_owner(tmp_path, unit):
    epsilon = {"silo-0": math.inf, "silo-1": 4.0} if unit == "example" else 8.0
    federation = coterie.load("digits", silos=2, rows=200)
    result = coterie.run(
        federation,
        ["ditto", "fedavg"],
        coterie.Privacy(epsilon=epsilon, delta=1e-3, unit=unit),
        rounds=1,
        out=tmp_path / "o",
    )
    raw = {"example": {("ditto", 0), ("fedavg", 0)}, "silo": {("ditto", 0), ("ditto", 1)}}[unit]
    for run, method in enumerate(("ditto", "fedavg")):
        for k, silo in enumerate(federation.names):
            (path,) = (tmp_path / "o" / "models").glob(f"{method}*/{silo}.safetensors")
            again = tmp_path / "one.safetensors"
            again.unlink(missing_ok=True)
            result.save_model(silo, again, run=run)
            for file in (path, again):
                with safe_open(str(file), "pt") as opened:
                    notes = json.loads(opened.metadata()["coterie"])["notes"]
                assert any("no privacy protects this model" in note for note in notes) == ((method, k) in raw)
                if (method, k) in raw:
                    assert file.stat().st_mode & 0o077 == 0
