"""What `coterie federate` prints of trainings; that it runs them in processes is tested elsewhere."""

from __future__ import annotations

import json

import pytest

from coterie.deploy.federate import Training
from tests.federations import Small
from tests.helpers import call

CONFIG = '[train]\nrounds = 3\n[privacy]\nepsilon = 4.0\ndelta = 1e-3\n[[method]]\nname = "fedavg"\n'


@pytest.fixture
def training(tmp_path) -> Training:
    small = Small(tmp_path)
    outcome = small.coordinator().run()
    place = "results", small.plan.training, "report.json"
    reports = {
        name: json.loads(tmp_path.joinpath(name, *place).read_text()) for name in small.federation.names
    }
    return Training("fedavg", small.plan, outcome, reports)


@pytest.mark.parametrize("as_json", [False, True])
def test_it_prints_the_mean_of_what_silos_report(monkeypatch, capsys, tmp_path, training, as_json):
    monkeypatch.setattr("coterie.cli.federate.federate", lambda *given, **options: [training])
    (tmp_path / "config.toml").write_text(CONFIG)
    words = ["federate", str(tmp_path / "config.toml"), "--out", str(tmp_path / "out"), *["--json"] * as_json]
    code, out, _ = call(monkeypatch, capsys, *words, columns=1000)
    assert code == 0
    if as_json:
        assert json.loads(out)[0]["reports"] == training.reports
        return
    mean = sum(report["accuracy"] for report in training.reports.values()) / 3
    assert f"fedavg: mean accuracy at home {mean:.4f} over 3 silos" in out
