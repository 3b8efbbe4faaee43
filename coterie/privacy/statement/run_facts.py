"""Facts of a run that its ledger cannot recompute: names, settings, doors, budget, what is not covered.

They are fixed before the run begins, and its row in the ledger holds a digest of each. So nobody, not even
the holder of the silo's key, can change them in a statement later on: the row is chained, signed and
witnessed. A digest binds; it hides nothing, since a fact such as a clip is easily guessed. The rows of older
versions have no facts.

Of a *list* of facts, each item has its own digest, because a statement says only what happened: a run that
ended early opened fewer kinds of doors, and of a sweep's trials only one was chosen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ..._json import finite
from ...errors import Problem
from ..ledger.claim import Claim
from ..merges import MergeEvents
from .build import LEAVING, TEST_PART, OpenedDoor, always_uncovered, unit_of

DOORS, TRIALS = "doors", "trials"
LISTS = (DOORS, TRIALS)  # facts whose items have a digest each
COUNTED = ("merges", "came", "metered")  # what merges count in the rounds that happened; the ledger knows it
DERIVED = ("epsilon", "notes")  # of tuning


def digests_of(facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return a digest of each fact, and of each item of a list; equal facts give equal digests."""
    single = {name: fact for name, fact in facts.items() if name not in LISTS}
    items = {f"{name}.{n}": item for name in LISTS for n, item in enumerate(facts.get(name, ()))}
    return tuple(sorted((name, _digest(fact)) for name, fact in {**single, **items}.items()))


def _digest(fact: Any) -> str:
    return hashlib.sha256(json.dumps(finite(fact), sort_keys=True).encode()).hexdigest()


def merging_facts(merges: Mapping[str, Any]) -> dict[str, Any]:
    """Return how uploads are merged, without what only the rounds that happen decide."""
    return {name: value for name, value in merges.items() if name not in COUNTED}


def door_facts(doors: Iterable[OpenedDoor]) -> list[dict[str, Any]]:
    """Return the kinds of doors, each once, without how often they were opened."""
    return _kinds(asdict(door) for door in doors)


def tuning_facts(tuning: Any) -> Any:
    """Return what a statement says about tuning, without what follows from it."""
    if not isinstance(tuning, dict):
        return tuning
    return {name: value for name, value in tuning.items() if name not in DERIVED}


def _kinds(doors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    kinds: list[dict[str, Any]] = []
    for door in doors:
        kind = {name: value for name, value in door.items() if name != "calls"}
        kinds += [] if kind in kinds else [kind]
    return kinds


def facts_in(content: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that a statement says, by where it says them."""
    merges = None if content["merges"] is None else MergeEvents(**content["merges"])
    always = {*always_uncovered(merges, True, unit_of(content, merges)), LEAVING, TEST_PART}
    facts = {
        "guarantee.budget": content["guarantee"]["budget"],
        "digests.configuration": content["digests"]["configuration"],
        "data.name": content["data"]["name"],
        "declared_size": content["declared_size"],
        "run.id": content["run"]["id"],
        "method": content["method"],
        "model": content["model"],
        "not_covered": [line for line in content["not_covered"] if line not in always],
        "run.rounds": content["run"].get("rounds"),
        "stayed_home": content["stayed_home"],
        "tuning": tuning_facts(content["tuning"]),
    }
    settings, seed = content["settings"], content["run"].get("seed")
    if isinstance(content["tuning"], dict):
        facts[TRIALS] = [{"settings": settings, "seed": seed}]
    else:
        facts |= {"settings": settings, "run.seed": seed}
    if merges is not None:
        return {**facts, "merges": merging_facts(content["merges"])}
    return {**facts, DOORS: _kinds(content["doors"])}


def check_facts(content: dict[str, Any], claim: Claim, chosen: int | None = None) -> str | None:
    """Raise one `Problem` that names every fact of a statement that differs from its claim.

    `chosen` is the trial of a sweep that its ledger says was chosen, if it does. Return in words which facts
    the claim does not hold, if any.
    """
    said, known = facts_in(content), dict(claim.facts)
    if TRIALS in said and chosen is not None:
        only = f"{TRIALS}.{chosen}"
        known = {name: digest for name, digest in known.items() if name == only or _whole(name) != TRIALS}
    wrong = []
    for whole in sorted({_whole(name) for name in known}):
        held = {digest for name, digest in known.items() if _whole(name) == whole}
        items = said.get(whole) if whole in LISTS else [said[whole]] if whole in said else None
        if items is None or any(_digest(item) not in held for item in items):
            wrong.append(whole)
    if wrong:
        raise Problem(f"statement: {', '.join(wrong)}: differs from what its ledger's claim says")
    free = sorted({name for name in said if said[name] != []} - {"run.id"} - {_whole(name) for name in known})
    return f"{', '.join(free)}: the run's row in its ledger does not fix this" if free else None


def _whole(name: str) -> str:
    """Return the list that an item belongs to, or the name of a single fact."""
    before = name.partition(".")[0]
    return before if before in LISTS else name
