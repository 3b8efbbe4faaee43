"""Deployments that protect persons: guards know whose rows are whose, and others only how many there are."""

from __future__ import annotations

import pytest

from coterie.deploy.facts import facts_of, federation_of
from coterie.deploy.guard_folder import GuardFolder, make_guard
from coterie.deploy.make_plan import make_plan
from coterie.deploy.policy import policy_text
from coterie.errors import Problem
from coterie.privacy.keys import draw_key
from tests.federations import BUDGET
from tests.helpers import refused
from tests.parities import PLACES, check_parity, configured, every_table, federation, title

SOME = ("local", "fedavg", "mr-mtl", "ditto", "ifca", "mocha", "pfa+", "heads", "tune-ewc")
CASES = [table for table in every_table() if title(table).split("-after")[0] in SOME]


@pytest.mark.parametrize("table", CASES, ids=title)
def test_a_deployment_is_the_simulation(tmp_path, table):
    check_parity(tmp_path, table, "person")


def guards(tmp_path, persons=True, coordinator=None):
    coordinator = coordinator or draw_key("coordinator")
    data = federation(persons)
    return coordinator, [
        make_guard(
            tmp_path / silo.name, silo, data.classes, "records", coordinator.public, BUDGET,
            policy_text(20.0, 50.0), "person" if persons else "example",
        )
        for silo in data.silos
    ]  # fmt: skip


def test_facts_say_how_many_persons_there_are(tmp_path):
    coordinator, folders = guards(tmp_path)
    facts = [facts_of(GuardFolder(folder.path)) for folder in folders]
    blank, data = federation_of(facts, "records"), federation(True)
    assert [silo.persons for silo in blank.silos] == [silo.persons for silo in data.silos]
    assert blank.silos[0].person is None
    config = configured({"name": "fedavg"}, PLACES["person"])
    plan = make_plan(config, blank, coordinator.public, {each.name: each.public for each in facts})
    assert plan.blank.sizes == data.protected_sizes("person")
    assert plan.blank.rows_each == 2


def test_a_guard_refuses_other_numbers_of_persons(tmp_path):
    from coterie.deploy.guard import Guard
    from coterie.deploy.plan_file import read_plan

    coordinator, folders = guards(tmp_path)
    facts = [facts_of(GuardFolder(folder.path)) for folder in folders]
    config = configured({"name": "fedavg"}, PLACES["person"])
    plan = make_plan(
        config, federation_of(facts, "records"), coordinator.public, {f.name: f.public for f in facts}
    )
    guard = Guard(GuardFolder(folders[0].path))
    try:
        assert guard.prepare(plan).plan.unit.name == "person"
        content = {**plan.content, "facts": {**plan.content["facts"]}}
        silos = [dict(silo) for silo in content["facts"]["silos"]]
        silos[0]["persons"] = {**silos[0]["persons"], "train": 3}
        content["facts"]["silos"] = silos
        with refused("the plan says that 'silo-0' has 3 persons in training"):
            guard.prepare(read_plan(content))
    finally:
        guard.close()


def test_a_plan_cannot_make_a_guard_take_all_its_memory(tmp_path):
    """One person with very many rows: all others would need room for so many, too."""
    from coterie.deploy.plan_file import read_plan

    coordinator, folders = guards(tmp_path)
    facts = [facts_of(GuardFolder(folder.path)) for folder in folders]
    config = configured({"name": "fedavg"}, {"unit": "person", "delta": 1e-6})
    plan = make_plan(
        config, federation_of(facts, "records"), coordinator.public, {f.name: f.public for f in facts}
    )
    silos = [dict(silo) for silo in plan.content["facts"]["silos"]]
    silos[1] = {**silos[1], "train": 10**6, "persons": {"train": 10**5, "test": 1, "largest": 10**5}}
    facts = {**plan.content["facts"], "silos": silos}

    def asking(rows):
        config = {**plan.content["config"], "data": {"source": "made", "rows_per_person": rows}}
        return read_plan({**plan.content, "facts": facts, "config": config})

    asking(8).blank.check()
    with refused("data.rows_per_person: room for 10,000 rows of each of 100,000 persons takes 30,518 MB"):
        asking(10_000).blank.check()


def test_a_plan_cannot_raise_the_memory_that_a_policy_allows(tmp_path):
    from coterie.deploy.guard import Guard
    from coterie.deploy.guard_plans import check_policy

    coordinator, folders = guards(tmp_path)
    facts = [facts_of(GuardFolder(folder.path)) for folder in folders]
    guard = Guard(GuardFolder(folders[0].path))

    def check(memory):
        config = configured({"name": "fedavg"}, PLACES["person"], memory=memory)
        keys = {each.name: each.public for each in facts}
        check_policy(
            guard, guard.prepare(make_plan(config, federation_of(facts, "records"), coordinator.public, keys))
        )

    try:
        check(2**32)
        with refused(
            "memory: the plan's train.memory is 4,294,967,297 bytes, and the policy allows 4,294,967,296"
        ):
            check(2**32 + 1)
    finally:
        guard.close()


def test_without_persons_there_is_no_such_plan(tmp_path):
    coordinator, folders = guards(tmp_path, persons=False)
    facts = [facts_of(GuardFolder(folder.path)) for folder in folders]
    assert facts[0].persons is None
    config = configured({"name": "fedavg"}, PLACES["person"])
    keys = {each.name: each.public for each in facts}
    with pytest.raises(Problem, match="'person' needs to know whose rows are whose"):
        make_plan(config, federation_of(facts, "records"), coordinator.public, keys)
