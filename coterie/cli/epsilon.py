"""What `coterie epsilon` prints; torch is not imported here."""

from __future__ import annotations

import json
import math
import sys

from .._json import finite
from ..privacy.accountant import Bounds, bounds, epsilon_of, shown
from ..privacy.events import Event
from ..privacy.published.formulas import published_for, warning
from .output import say


def show_epsilon(event: Event, delta: float, adjacency: str, tight: bool, as_json: bool) -> None:
    """Print the certified epsilon of an event; if `tight`, also a lower bound and what papers report."""
    facts = {
        "noise": event.noise, "rate": event.rate, "steps": event.count, "sampler": event.sampler,
        "delta": delta, "adjacency": adjacency,
    }  # fmt: skip
    if not tight:
        certified = epsilon_of((event,), delta, adjacency)
        print(json.dumps(finite({"epsilon": certified, **facts})) if as_json else _words(certified))
        return
    both = bounds((event,), delta, adjacency, tight=True)
    beside = () if event.in_passes else published_for(event.noise, event.rate, event.count, delta)
    warnings = [line for line in (warning(published, both.lower) for published in beside) if line]
    if as_json:
        published = [{"paper": p.paper, "formula": p.formula, "epsilon": p.epsilon} for p in beside]
        known = {"epsilon": both.upper, "lower": both.lower, "rdp": both.rdp, "by": both.by}
        print(json.dumps(finite({**known, **facts, "published": published, "warnings": warnings})))
        return
    say(_sentence(both))
    if event.in_passes:
        say("  published: no formula of a paper covers passes")
    for each in beside:
        say(f"  published: {_words(each.epsilon)}  {each.formula} ({each.paper})")
    for line in warnings:
        say(f"warning: {line}", sys.stderr)


def _words(value: float) -> str:
    return "infinite" if math.isinf(value) else shown(value, 4)


def _sentence(both: Bounds) -> str:
    least = math.floor(both.lower * 10_000) / 10_000
    source = {"exact": "closed form", "pld": "privacy-loss distribution", "rdp": "Renyi privacy"}
    return (
        f"{_words(both.upper)} at most, {least:.4f} at least"
        f" ({source.get(both.by, 'no finite bound is known')}; Renyi privacy alone: {_words(both.rdp)})"
    )
