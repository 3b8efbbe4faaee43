"""What one silo spent in one run, said so that it can be checked by anybody who has the file."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from ..errors import Problem
from ..jsonable import finite
from .accountant import ADJACENCY, epsilon_of, quick_lower
from .adversaries import ADVERSARIES, table
from .events import Event, grouped, joined
from .kept import Kept
from .published import Published, published_for, warning
from .tuning import COVERED, Trials, chosen_epsilon, server_epsilon

SCHEMA = "coterie-statement/2"
SEES_UPLOADS = ("server", "silos", "shared")
CHOSEN = ("shared", "personal")  # who sees only the chosen one of a sweep's trials
TEST_SCORES = (
    "scores on test examples without noise, if they are shared; choosing a setting by them is tuning"
)
ALWAYS_UNCOVERED = (
    TEST_SCORES,
    "the number of examples of the silo, the classes and the shape of the data, taken as public",
    "rounding of floating-point noise",
)
SAMPLES = ("poisson", "all examples", "all test examples")
WITHOUT_LEDGER = "other runs on the same data: budgets of several runs add up; a ledger would add them"
LEAVING = "that a silo left early, which shows what else was spent of its data set"
SIMULATED = "simulated: whoever knows the seed knows the noise; not for release"
METERED = (
    "the operating system's entropy, keyed by the silo's secret and the ledger's row, seeds numpy's SFC64"
    " (not a cryptographic generator)"
)
UNTUNED = "not accounted: if this run was chosen among several by their scores, its epsilon is larger"


@dataclass(frozen=True)
class Door:
    """A door and how it was used: `calls` times, `steps` noisy sums a call."""

    door: str
    calls: int
    steps: int
    sampler: str
    rate: float
    expected_batch: float
    clip: float


def kept_numbers() -> Kept:
    """Open the numbers of earlier statements."""
    return Kept("statements", f"{ADJACENCY}/{SCHEMA}")


@functools.lru_cache(maxsize=4096)
def numbers(events: tuple[Event, ...], delta: float) -> dict[str, Any]:
    """Find all numbers that follow from events: bounds, replace-one, what papers would report."""
    upper = epsilon_of(events, delta)
    lower = min(quick_lower(events, delta), upper)
    beside: tuple[Published, ...] = ()
    whole = joined(events)
    if len(whole) == 1 and whole[0].mechanism == "gaussian" and math.isfinite(upper):
        one = whole[0]
        beside = published_for(one.noise, one.rate, one.count, delta, quick=True)
    return {
        "epsilon": upper,
        "lower": lower,
        "replace_one": epsilon_of(events, delta, "replace-one"),
        "published": [asdict(published) for published in beside],
        "warnings": [line for line in (warning(published, lower) for published in beside) if line],
    }


def statement(
    *,
    silo: str,
    method: str,
    settings: dict[str, Any],
    size: int,
    doors: Sequence[Door],
    events: Sequence[Event],
    seen: tuple[str, ...],
    budget: float,
    delta: float,
    not_covered: Sequence[str],
    charged: float = 0.0,
    ledger: dict[str, Any] | None = None,
    tuning: dict[str, Any] | None = None,
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Give the statement of one silo as plain data.

    `charged` is what the ledger charged, where that is more than what was released. `tuning` tells of
    a sweep, of which `events` are all trials: how their number was drawn, and what one trial releases.
    `kept` are numbers of earlier statements, not found again.
    """
    whole = grouped(events)
    found = _found(whole, delta, kept)
    private = math.isfinite(found["epsilon"])
    certified = max(found["epsilon"], charged)
    uncovered = [*not_covered, *ALWAYS_UNCOVERED, WITHOUT_LEDGER if ledger is None else LEAVING]
    against = table(certified, seen)
    if tuning is not None:
        best = best_trial(tuning, delta)
        against |= {name: best if math.isfinite(best) else None for name in CHOSEN}
        tuning = {**tuning, "epsilon": best, "notes": list(COVERED)}
    content = {
        "schema": SCHEMA,
        "silo": silo,
        "method": method,
        "settings": settings,
        "guarantee": {
            "unit": "example",
            "adjacency": ADJACENCY,
            "epsilon": certified if private else None,
            "lower": found["lower"] if private else None,
            "delta": delta if private else None,
            "budget": budget if private else None,
            "replace_one": found["replace_one"] if private else None,
            "bound": "upper, by privacy-loss distributions (dp-accounting)" if private else "none",
            "holds_for": "everything that leaves the silo: uploads, shared and personal models",
        },
        "adversaries": {
            name: {"who": ADVERSARIES[name], "epsilon": value} for name, value in against.items()
        },
        "published": found["published"],
        "warnings": found["warnings"],
        "tuning": UNTUNED if tuning is None else tuning,
        "declared_size": size,
        "doors": [asdict(door) for door in doors],
        "events": [asdict(event) for event in whole],
        "randomness": SIMULATED if ledger is None else METERED,
        "ledger": ledger,
        "not_covered": uncovered,
        "software": {name: version(name) for name in ("coterie", "dp-accounting", "torch", "numpy", "scipy")},
    }
    plain: dict[str, Any] = json.loads(json.dumps(finite(content)))
    return {**plain, "checksum": checksum(plain)}


def _found(events: tuple[Event, ...], delta: float, kept: Kept | None) -> dict[str, Any]:
    if kept is None:
        return numbers(events, delta)
    question = repr((events, delta))
    found = kept.get(question)
    if found is None:
        found = finite(numbers(events, delta))
        kept.put(question, found)
    return {key: math.inf if value is None else value for key, value in found.items()}


def best_trial(tuning: dict[str, Any], delta: float) -> float:
    """Give the epsilon against whoever sees the chosen one of a sweep's trials only."""
    trials = Trials(tuning["distribution"], tuning["mean"], tuning["shape"], tuning["most"])
    return chosen_epsilon(joined(Event(**event) for event in tuning["trial"]), trials, delta)


def checksum(content: dict[str, Any]) -> str:
    """Give the hash of a statement without its checksum."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def text_of(content: dict[str, Any]) -> str:
    """Give the text of a statement's file."""
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def verify(text: str) -> dict[str, Any]:
    """Recompute a statement from its events; refuse it, naming the field, if anything differs.

    The checksum finds damage. Who forges a statement can make a new checksum, but not a smaller
    epsilon for the same events; what events there were is what the ledger proves.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise Problem(f"statement: not readable: {error}") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise Problem("statement: this is not a statement")
    if content["schema"] != SCHEMA:
        raise Problem(
            f"statement: schema {content['schema']!r} is not {SCHEMA}: use the version that wrote it"
        )
    if text != text_of(content):
        raise Problem("statement: the file was changed: its text is not as it was written")
    if content.get("checksum") != checksum(content):
        raise Problem("statement: the file was changed: its checksum does not fit")
    from .schema import check_shape

    check_shape(content)
    _recompute(content)
    return content


def _recompute(content: dict[str, Any]) -> None:
    said = content["guarantee"]
    events = tuple(Event(**event) for event in content["events"])
    if said["epsilon"] is None:
        if any(entry["epsilon"] for entry in content["adversaries"].values()):
            raise Problem("statement: adversaries: an epsilon is stated where nothing protects")
        return
    found = numbers(events, said["delta"])
    for key, true, least in (
        ("epsilon", found["epsilon"], True),
        ("replace_one", found["replace_one"], True),
        ("lower", found["lower"], False),
    ):
        wrong = said[key] < true * (1 - 1e-9) if least else said[key] > true * (1 + 1e-9)
        if wrong:
            raise Problem(
                f"statement: guarantee.{key}: {said[key]:.6g} is stated, the events give {true:.6g}"
            )
    true, tuning = dict.fromkeys(ADVERSARIES, said["epsilon"]), content["tuning"]
    if isinstance(tuning, dict):
        _check_trials(said, tuning)
        true |= dict.fromkeys(CHOSEN, best_trial(tuning, said["delta"]))
    spent = true["personal"]
    if content["ledger"] is None and spent > said["budget"] * (1 + 1e-9):
        raise Problem(f"statement: guarantee.budget: {spent:.6g} is spent of {said['budget']:.6g}")
    stated = {name: entry["epsilon"] for name, entry in content["adversaries"].items()}
    nothing_sent = all(stated[name] == 0 for name in SEES_UPLOADS)
    for name, epsilon in true.items():
        if stated[name] != epsilon and not (nothing_sent and name in SEES_UPLOADS):
            raise Problem(f"statement: adversaries.{name}: {stated[name]} is not what the events give")
    _check_doors(content["doors"], events)
    beside = [(p["paper"], p["epsilon"]) for p in content["published"]]
    expected = json.loads(json.dumps(finite([(p["paper"], p["epsilon"]) for p in found["published"]])))
    if [list(pair) for pair in beside] != expected:
        raise Problem("statement: published: not what the formulas give for these events")


def _check_doors(doors: list[dict[str, Any]], events: tuple[Event, ...]) -> None:
    """As many noisy sums as doors were asked for are accounted for, at the rates of their samples."""
    opened, charged = Counter[float](), Counter[float]()
    for door in doors:
        if door["sampler"] not in SAMPLES:
            raise Problem(f"statement: doors: nothing is accounted for the sampler '{door['sampler']}'")
        opened[door["rate"]] += door["calls"] * door["steps"]
    for event in events:
        charged[event.rate] += event.count
    for rate in sorted({*opened, *charged}):
        if opened[rate] != charged[rate]:
            made, paid = opened[rate], charged[rate]
            raise Problem(f"statement: doors: {made} noisy sums at rate {rate:g}, the events have {paid}")


def _check_trials(said: dict[str, Any], tuning: dict[str, Any]) -> None:
    """What is stated is at least what the trials that ran spend together."""
    true = server_epsilon(joined(Event(**event) for event in tuning["trial"]), tuning["ran"], said["delta"])
    if said["epsilon"] < true * (1 - 1e-9):
        raise Problem(
            f"statement: tuning.ran: {tuning['ran']} trials spend {true:.6g}, not {said['epsilon']:.6g}"
        )
