"""A statement by questions that a reader should ask of any guarantee.

The questions are ours. They follow topics of NIST SP 800-226, Guidelines for Evaluating Differential Privacy
Guarantees (2025), which has no list of questions of its own: the unit, the parameters, trust, composition,
the implementation, and what no guarantee covers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..accountant import shown
from .grids import cells

UNCOVERED = "What this statement does not cover"  # the title of that list
ANYONE = "Anyone who has the JSON file: `coterie statement verify` recomputes every number."
INDEPENDENT = "Epsilons are recomputed by dp-accounting, whose arithmetic is its own, wherever it can."
NO_OTHER = (
    "But examples were drawn in passes, which dp-accounting does not know. Only Coterie's own accountant"
    " recomputes what they cost, so there is no independent check of this epsilon."
)
WHY_LARGER = (
    "It is so much larger because no bound for replaced examples counts on the passes: each pass counts as"
    " one release of all examples"
)
CLIPPED = "each contribution is clipped, which bounds its sensitivity"
GUIDELINE = (
    "Our questions, on topics of NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees."
    " NIST has neither written nor reviewed them."
)
BESIDE = (
    "How accurate and how fair the models are; side channels, such as how long a computation takes; and how"
    " the silo collects, stores and guards its data. This statement says nothing about them."
)


def checklist(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Return questions that a reader should ask of any guarantee, with this statement's answers."""
    said = content["guarantee"]
    return [
        ("What is one unit of privacy?", _unit(content)),
        ("How large are epsilon and delta?", _parameters(said)),
        ("Whom must one trust?", _trust(content)),
        ("What does it cover?", f"{said['holds_for'][:1].upper()}{said['holds_for'][1:]}."),
        ("What does it not cover?", f"The {len(content['not_covered'])} points under '{UNCOVERED}'."),
        ("What else must one judge?", BESIDE),
        ("Which mechanisms were used?", _mechanisms(content)),
        ("Does it include other uses of the same data?", _composition(content)),
        ("Was anything tuned?", _tuning(content["tuning"])),
        ("Where does the randomness come from?", _sentence(content["randomness"])),
        ("Can rounding errors leak information?", _rounding(content)),
        ("Who can check it?", f"{ANYONE} {NO_OTHER if in_passes(content) else INDEPENDENT}"),
    ]


def in_passes(content: dict[str, Any]) -> bool:
    """Return whether examples were drawn in whole passes over the data."""
    return any(_is_passes(event) for event in content["events"])


def _is_passes(event: dict[str, Any]) -> bool:
    return bool(event["sampler"] == "allocation" and event["rate"] < 1)


def _unit(content: dict[str, Any]) -> str:
    said = content["guarantee"]
    unit = said["unit"]
    what = {
        "example": "one training example, which is one row of the silo's data",
        "person": "one person, with all of their rows in this silo",
        "silo": "a whole silo",
    }[unit]
    known = said["replace_one"] is not None
    other = f"epsilon is at most {shown(said['replace_one'])}" if known else "no bound is known"
    why = f" {WHY_LARGER}." if known and in_passes(content) else ""
    several = " A person with several rows is protected less." if unit == "example" else ""
    return (
        f"{what[:1].upper()}{what[1:]}: it is replaced by a null {unit} that contributes nothing"
        f" ({said['adjacency']}). If it is replaced by any other, {other}.{why}{several}"
    )


def _parameters(said: dict[str, Any]) -> str:
    if said["epsilon"] is None:
        return "There is no guarantee: nothing protects the data."
    return f"Epsilon is at most {shown(said['epsilon'])} at delta {said['delta']:g} ({said['bound']})."


def _trust(content: dict[str, Any]) -> str:
    bare = [entry["who"] for entry in content["adversaries"].values() if entry["epsilon"] is None]
    kept = [entry["who"] for entry in content["adversaries"].values() if entry["epsilon"] is not None]
    merges = content["merges"]
    where = "The silo itself adds the noise"
    if merges is not None and merges["noise_by"] == "server":
        where = "The server adds the noise to the sum of the uploads"
    if bare:
        return f"{where}. Nothing protects against {_listed(bare)}, so one must trust them."
    return f"{where}. The guarantee holds against {_listed(kept)}; one must trust the silo's own computer."


def _mechanisms(content: dict[str, Any]) -> str:
    if not content["events"]:
        return "None: nothing was released."
    counts = Counter[str]()
    for event in content["events"]:
        each = 1 if event["sampler"] != "allocation" else round(1 / event["rate"])
        counts[event["mechanism"]] += event["count"] * each
    parts = [f"{mechanism} ({count:,} releases)" for mechanism, count in counts.items()]
    passes = [counted(event) for event in content["events"] if _is_passes(event)]
    many = "persons" if content["guarantee"]["unit"] == "person" else "examples"
    drawn = f"; {many} were drawn in passes ({_listed(passes)})" if passes else ""
    return f"{_sentence(_listed(parts))[:-1]}{drawn}; {CLIPPED}."


def counted(event: dict[str, Any]) -> str:
    """Return how many releases an event has, as text."""
    if event["sampler"] == "allocation":
        return f"{event['count']:,} passes of {round(1 / event['rate']):,} releases"
    return f"{event['count']:,} releases"


def _composition(content: dict[str, Any]) -> str:
    ledger = content["ledger"]
    if ledger is None:
        return "No: only this run, because no ledger was kept."
    total = largest_total(ledger)
    together = "its totals are on this statement, and nothing protects against some adversaries"
    if total is not None:
        together = f"together at most {shown(total[0])} at delta {total[1]:g}"
    return f"Only those charged to the silo's ledger: {together}. Uses outside the ledger are not included."


def largest_total(ledger: dict[str, Any], leave_aside: bool = False) -> tuple[float, float] | None:
    """Return the largest epsilon of all runs in a ledger, at a delta that is enough for every adversary.

    Without protection against some of them it is None, unless they are left aside.
    """
    totals = list(ledger["total"].values())
    kept = [total for total in totals if total["epsilon"] is not None]
    if len(kept) < len(totals) and not (leave_aside and kept):
        return None
    return (
        max((total["epsilon"] for total in kept), default=0.0),
        max((total["delta"] for total in kept), default=0.0),
    )


def _tuning(tuning: str | dict[str, Any]) -> str:
    if isinstance(tuning, str):
        return _sentence(tuning)
    return f"Yes, and it is accounted for: this is the best of {tuning['ran']} trials."


def _rounding(content: dict[str, Any]) -> str:
    grid = content["grid"]
    if grid is None:
        return "Yes: a simulation's noise is float32, so some values cannot occur, and that betrays others."
    return f"Not that of the noise, which is drawn exactly. What is released is rounded to {cells(grid)}."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
