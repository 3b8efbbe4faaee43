"""Facts of a run that its ledger cannot recompute: names, settings, clip, budget, what is not covered.

They are fixed before the run begins, and its row in the ledger holds a digest of each. So nobody, not even
the holder of the silo's key, can change them in a statement later on: the row is chained, signed and
witnessed. A digest binds; it hides nothing, since a fact such as a clip is easily guessed. The rows of older
versions have no facts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..._json import finite
from ...errors import Problem
from ..ledger.claim import Claim
from ..merges import MergeEvents
from .build import LEAVING, TEST_PART, always_uncovered
from .grids import CHOICE

UNCLIPPED = (CHOICE, "score")  # doors whose sums and choices are bounded by 1, whatever the clip
CLIP = "doors.clip"
COUNTED = ("merges", "came", "metered")  # what merges count in the rounds that happened; the ledger knows it


def digests_of(facts: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return a digest of each fact, sorted by name; equal facts give equal digests."""
    return tuple((name, _digest(facts[name])) for name in sorted(facts))


def _digest(fact: Any) -> str:
    return hashlib.sha256(json.dumps(finite(fact), sort_keys=True).encode()).hexdigest()


def merging_facts(merges: Mapping[str, Any]) -> dict[str, Any]:
    """Return how uploads are merged, without what only the rounds that happen decide."""
    return {name: value for name, value in merges.items() if name not in COUNTED}


def facts_in(content: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that a statement says, by where it says them; no clip, if no door had one."""
    merges = None if content["merges"] is None else MergeEvents(**content["merges"])
    always = {*always_uncovered(merges, True), LEAVING, TEST_PART}
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
        "run.seed": content["run"].get("seed"),
        "settings": content["settings"],
        "stayed_home": content["stayed_home"],
    }
    clips = {door["clip"] for door in content["doors"] if door["door"] not in UNCLIPPED}
    if merges is not None:
        facts["merges"] = merging_facts(content["merges"])
    elif clips:
        facts[CLIP] = clip_fact(clips)
    return facts


def clip_fact(clips: Any) -> list[float | None]:
    """Return the clips of a run, each once: several only if it is a sweep."""
    return sorted(finite(list(set(clips))), key=lambda clip: (clip is None, clip))


def check_facts(content: dict[str, Any], claim: Claim) -> None:
    """Raise one `Problem` that names every fact of a statement that differs from its claim."""
    if any(door["clip"] != 1 for door in content["doors"] if door["door"] in UNCLIPPED):
        raise Problem("statement: doors: the clip of a choice or a score is always 1")
    said = facts_in(content)
    known = {name: digest for name, digest in claim.facts if name != CLIP or CLIP in said}
    wrong = [name for name, digest in known.items() if name not in said or _digest(said[name]) != digest]
    if wrong:
        raise Problem(f"statement: {', '.join(wrong)}: differs from what its ledger's claim says")
