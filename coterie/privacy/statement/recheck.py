"""Recompute the epsilons of a statement with dp-accounting (see `coterie.privacy.recheck`)."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from ..._json import finite
from ..accountant import ADJACENCY, shown
from ..events import Event, grouped
from ..merges import MergeEvents
from ..recheck import VERDICTS, Recheck, recheck

OURS = "recomputed with Coterie's own accountant only, because dp-accounting does not cover it"


def recheck_statement(content: dict[str, Any]) -> dict[str, Recheck]:
    """Return what dp-accounting says of each epsilon that a statement states, by the name of its field.

    The epsilon of the best of several trials is not among them; dp-accounting has no comparable bound for it.
    """
    said = content["guarantee"]
    if said["epsilon"] is None:
        return {}
    events, delta = grouped(Event(**event) for event in content["events"]), said["delta"]
    found = {"guarantee.epsilon": recheck(events, delta, said["epsilon"], ADJACENCY)}
    replaced = math.inf if said["replace_one"] is None else said["replace_one"]
    found["guarantee.replace_one"] = recheck(events, delta, replaced, "replace-one")
    if content["merges"] is not None:
        releases = MergeEvents(**content["merges"]).releases()
        for name, seen in releases.items():
            stated = content["adversaries"][name]["epsilon"]
            if seen and stated is not None:
                # A holder of a model never knows more than all other silos together, so either bound will do.
                bounds = [recheck(grouped(each), delta, stated) for each in (seen, releases["silos"]) if each]
                found[f"adversaries.{name}"] = min(bounds, key=lambda one: VERDICTS.index(one.verdict))
    return found


def recheck_facts(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what dp-accounting says of a statement as plain data."""
    rows = [{"field": name, **asdict(one)} for name, one in recheck_statement(content).items()]
    tuning = content["tuning"]
    if isinstance(tuning, dict):
        rows.append({"field": "tuning.epsilon", "verdict": "undecided", "stated": tuning["epsilon"]})
    facts: list[dict[str, Any]] = finite(rows)
    return facts


def recheck_lines(content: dict[str, Any]) -> list[str]:
    """Return a sentence for each epsilon of a statement: who confirms it."""
    lines = []
    for row in recheck_facts(content):
        if row["verdict"] == "confirmed":
            given = "".join(f", given the curve of a {name}" for name in row["curves"])
            bound = f"at most {shown(row['epsilon'])} by {row['by']}{given}"
            lines.append(f"{row['field']}: dp-accounting confirms it ({bound})")
        else:
            lines.append(f"{row['field']}: {OURS}")
    return lines
