"""What a simulation trains and charges, a deployment trains and charges: every method, whole silos protected."""

from __future__ import annotations

import pytest

from coterie.deploy.plan_file import read_plan
from coterie.protocol.envelope import Envelope, seal, unseal
from tests.federations import Small
from tests.parities import PLACES, assert_same, both, check_parity, configured, every_table, federation, title


@pytest.mark.parametrize("place", [place for place in PLACES if place != "example"])
@pytest.mark.parametrize("table", every_table(), ids=title)
def test_a_deployment_is_the_simulation(tmp_path, table, place):
    check_parity(tmp_path, table, place)


def test_a_clip_that_follows_a_quantile(tmp_path):
    assert_same(*both(configured({"name": "mr-mtl"}, {"unit": "silo", "quantile": 0.5}), tmp_path))


@pytest.mark.parametrize("after", [False, True])
def test_a_plan_holds_relations_and_never_makes_a_guard_open_a_file(tmp_path, after):
    """What a guard says about a file would tell the coordinator what the file holds."""
    groups = tmp_path / "groups.csv"
    groups.write_text("silo,group\nsilo-0,a\nsilo-1,a\nsilo-2,b\n")
    table = {"name": "related", "relations": str(groups)}
    small = Small(tmp_path / "guards", configured(table, {}), federation())
    kept = small.plan.content["config"]["method"][0]["relations"]
    assert kept == {"silos": ["silo-0", "silo-1", "silo-2"], "groups": ["a", "a", "b"]}
    secret = tmp_path / "secret.csv"
    secret.write_text("a\nthe secret\n")
    method = {"name": "related", "relations": str(secret)}
    method = {"name": "local", "after": {**method, "share": 0.5}} if after else method
    hostile = read_plan(
        {**small.plan.content, "config": {**small.plan.content["config"], "method": [method]}}
    )
    request = Envelope(hostile.training, 0, 1, "plan", "coordinator", "silo-0", {}, hostile.text.encode())
    guard = small.guards()["silo-0"]
    answer = unseal(guard.answer(seal(request, small.key)), guard.key.public, 2**20)
    assert answer.kind == "refused"
    assert answer.facts["why"].endswith("because a guard opens no file that a plan names")
    assert "secret" not in answer.facts["why"]
    guard.close()
