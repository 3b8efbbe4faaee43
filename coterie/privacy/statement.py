"""What one silo spent in one run, said so that it can be checked by anybody who has the file."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from ..errors import Problem
from ..jsonable import finite
from .accountant import ADJACENCY, ELSEWHERE, ROUNDING, epsilon_of, least_of, quick_lower, upper_of
from .adversaries import ADVERSARIES, table
from .events import Event, grouped, joined
from .kept import Kept
from .published import Published, published_for, warning
from .published_dual import published_dual
from .published_merges import merge_warnings, published_for_merges
from .trials import Trials
from .tuning import COVERED, chosen_epsilon
from .whole_silo import Merges

SCHEMA = "coterie-statement/3"
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
HOLDS = {
    "example": "everything that leaves the silo: uploads, shared and personal models",
    "silo": "the merges that everybody sees and all that others make of them (billboard, hence joint,"
    " privacy); this silo's own personal model is for itself",
}
HIDDEN = "who took part in which round: that must stay secret, epsilon rests on it"
SEES_ALL = "the server, which sees uploads as they are unless they are added up by secure aggregation"
SAMPLES = ("poisson", "all examples", "all test examples")
BOUNDS = {
    "pld": "upper, by privacy-loss distributions",
    "rdp": "upper, by Renyi privacy",
    "exact": "upper, by the closed form of the Gaussian mechanism",
    "nothing": "none",
}
WITHOUT_LEDGER = "other runs on the same data: budgets of several runs add up; a ledger would add them"
LEAVING = "that a silo left early, which shows what else was spent of its data set"
SIMULATED = "simulated: whoever knows the seed knows the noise; not for release"
EXAMPLES_APART = (
    "runs on the same data under the unit 'example': they protect its examples, and no whole silo; totals in"
    " the unit 'silo' are without them"
)
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


@functools.cache
def software() -> dict[str, str]:
    """Give the versions of what the numbers rest on."""
    return {name: version(name) for name in ("coterie", "dp-accounting", "torch", "numpy", "scipy")}


def always_uncovered(merges: Merges | None) -> tuple[str, ...]:
    """Give the sentences about what no statement of a unit covers."""
    sees_all = merges is not None and merges.releases()["server"] is None
    hidden = merges is not None and merges.hidden and merges.merges > 0
    apart = merges is not None and merges.metered
    return (*ALWAYS_UNCOVERED, *[SEES_ALL] * sees_all, *[HIDDEN] * hidden, *[EXAMPLES_APART] * apart)


def kept_numbers() -> Kept:
    """Open the numbers of earlier statements."""
    return Kept("statements", f"{ADJACENCY}/{SCHEMA}")


@functools.lru_cache(maxsize=4096)
def numbers(events: tuple[Event, ...], delta: float) -> dict[str, Any]:
    """Find all numbers that follow from events: bounds, replace-one, what papers would report."""
    upper, by = upper_of(events, delta, ADJACENCY)
    lower = min(quick_lower(events, delta), upper)
    beside: tuple[Published, ...] = ()
    whole = joined(events)
    if len(whole) == 1 and whole[0].mechanism == "gaussian" and math.isfinite(upper):
        one = whole[0]
        beside = published_for(one.noise, one.rate, one.count, delta, quick=True)
    return {
        "epsilon": upper,
        "by": by,
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
    merges: Merges | None = None,
) -> dict[str, Any]:
    """Give the statement of one silo as plain data.

    `charged` is what the ledger charged, where that is more than what was released. `tuning` tells of
    a sweep, of which `events` are all trials: how their number was drawn, and what one trial releases.
    `kept` are numbers of earlier statements, not found again. With `merges` the unit is the whole silo.
    """
    whole = grouped(events)
    found = _beside_dual(_found(whole, delta, kept), settings, [asdict(door) for door in doors], whole, delta)
    private = math.isfinite(found["epsilon"])
    certified = max(found["epsilon"], charged)
    unit = "example" if merges is None else "silo"
    uncovered = [*not_covered, *always_uncovered(merges), WITHOUT_LEDGER if ledger is None else LEAVING]
    against = table(certified, seen) if merges is None else _against(merges, delta, certified)
    if tuning is not None:
        best = best_trial(tuning)
        against |= {name: best if math.isfinite(best) else None for name in CHOSEN}
        tuning = {**tuning, "epsilon": best, "notes": list(COVERED)}
    content = {
        "schema": SCHEMA,
        "silo": silo,
        "method": method,
        "settings": settings,
        "guarantee": {
            "unit": unit,
            "adjacency": ADJACENCY,
            "epsilon": certified if private else None,
            "lower": (0.0 if merges is not None and merges.mixed else found["lower"]) if private else None,
            "delta": delta if private else None,
            "budget": budget if private else None,
            "replace_one": found["replace_one"] if private else None,
            "bound": BOUNDS[found["by"]],
            "holds_for": HOLDS[unit],
        },
        "adversaries": {
            name: {"who": ADVERSARIES[name], "epsilon": value} for name, value in against.items()
        },
        **_beside(found, merges, delta),
        "tuning": UNTUNED if tuning is None else tuning,
        "declared_size": size,
        "doors": [asdict(door) for door in doors],
        "merges": None if merges is None else asdict(merges),
        "events": [asdict(event) for event in whole],
        "randomness": SIMULATED if ledger is None else METERED,
        "ledger": ledger,
        "not_covered": uncovered,
        "software": software(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(finite(content)))
    return {**plain, "checksum": checksum(plain)}


def _against(merges: Merges, delta: float, certified: float) -> dict[str, float | None]:
    """Give epsilon against each adversary: what merges give or, in a metered run, what was charged."""
    found = merges.against(delta)
    return {name: certified if value else value for name, value in found.items()} if merges.metered else found


def _beside(found: dict[str, Any], merges: Merges | None, delta: float) -> dict[str, Any]:
    """Give what papers report, and where it is too little."""
    if merges is None:
        return {"published": found["published"], "warnings": found["warnings"]}
    published = [asdict(one) for one in published_for_merges(merges, delta)]
    return {"published": published, "warnings": merge_warnings(merges, delta)}


def _beside_dual(
    found: dict[str, Any],
    settings: dict[str, Any],
    doors: Sequence[dict[str, Any]],
    events: tuple[Event, ...],
    delta: float,
) -> dict[str, Any]:
    """Add what the paper on dual coordinates reports, where its doors were opened."""
    used = [(door["door"], door["calls"], door["steps"]) for door in doors]
    more = published_dual(settings, used, events, delta)
    lines = [line for line in (warning(one, found["lower"]) for one in more) if line]
    published = [*found["published"], *(asdict(one) for one in more)]
    return {**found, "published": published, "warnings": [*found["warnings"], *lines]}


def _found(events: tuple[Event, ...], delta: float, kept: Kept | None) -> dict[str, Any]:
    if kept is None:
        return numbers(events, delta)
    question = repr((events, delta))
    found = kept.get(question)
    if found is None:
        found = finite(numbers(events, delta))
        kept.put(question, found)
    return {key: math.inf if value is None else value for key, value in found.items()}


def best_trial(tuning: dict[str, Any]) -> float:
    """Give the epsilon, at the trial's delta, against whoever sees only the chosen trial of a sweep."""
    trials = Trials(tuning["distribution"], tuning["mean"], tuning["shape"], tuning["most"])
    return chosen_epsilon(joined(Event(**event) for event in tuning["trial"]), trials, tuning["delta"])


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
    if text.lstrip().startswith("<"):
        raise Problem("statement: this is the page, which is to be read; check the JSON file beside it")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Problem(f"statement: not readable: {error}") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise Problem("statement: this is not a statement")
    if content["schema"] != SCHEMA:
        raise Problem(
            f"statement: schema {content['schema']!r} is not {SCHEMA}: use the version that wrote it"
        )
    try:
        written = text_of(content)
    except (ValueError, RecursionError) as error:
        raise Problem(f"statement: not readable: {error}") from error
    if text != written:
        raise Problem("statement: the file was changed: its text is not as it was written")
    if content.get("checksum") != checksum(content):
        raise Problem("statement: the file was changed: its checksum does not fit")
    from .schema import check_shape

    check_shape(content)
    try:
        _recompute(content)
    except (TypeError, OverflowError, MemoryError, ArithmeticError) as error:
        raise Problem(f"statement: its numbers cannot be recomputed: {error}") from error
    return content


def _recompute(content: dict[str, Any]) -> None:
    said = content["guarantee"]
    events = tuple(Event(**event) for event in content["events"])
    try:
        merges = None if content["merges"] is None else Merges(**content["merges"])
    except Problem as problem:
        raise Problem(f"statement: {problem}") from None
    _check_words(content, merges)
    if said["unit"] != ("example" if merges is None else "silo"):
        raise Problem("statement: guarantee.unit: not that of what was merged")
    if merges is not None and merges.metered != (content["ledger"] is not None):
        raise Problem("statement: merges.metered: a run is metered if it names a ledger")
    if merges is not None and grouped(events) != grouped(merges.strongest()):
        raise Problem("statement: events: not what its merges give")
    if said["epsilon"] is None:
        if any(entry["epsilon"] for entry in content["adversaries"].values()):
            raise Problem("statement: adversaries: an epsilon is stated where nothing protects")
        return
    if said["delta"] is None or said["budget"] is None:
        raise Problem("statement: guarantee.delta and guarantee.budget must be stated where epsilon is")
    found = numbers(events, said["delta"])
    found = _beside_dual(found, content["settings"], content["doors"], grouped(events), said["delta"])
    for key in ("epsilon", "replace_one", "lower"):
        true, value = found[key], math.inf if said[key] is None else said[key]
        if _is_too_good(key, value, true, events, said["delta"]):
            raise Problem(f"statement: guarantee.{key}: {value:.6g} is stated, the events give {true:.6g}")
    true, tuning = dict.fromkeys(ADVERSARIES, said["epsilon"]), content["tuning"]
    if isinstance(tuning, dict):
        _check_trials(events, tuning)
        if tuning["delta"] > said["delta"]:
            both = f"{tuning['delta']:g} is above guarantee.delta, {said['delta']:g}"
            raise Problem(f"statement: tuning.delta: {both}")
        true |= dict.fromkeys(CHOSEN, best_trial(tuning))
    spent = true["personal"]
    if merges is not None:
        _check_merges(content, merges)
    if content["ledger"] is None and spent > said["budget"] * (1 + 1e-9):
        raise Problem(f"statement: guarantee.budget: {spent:.6g} is spent of {said['budget']:.6g}")
    stated = {name: entry["epsilon"] for name, entry in content["adversaries"].items()}
    nothing_sent = all(stated[name] == 0 for name in SEES_UPLOADS)
    for name, epsilon in (true if merges is None else {}).items():
        if stated[name] != epsilon and not (nothing_sent and name in SEES_UPLOADS):
            raise Problem(f"statement: adversaries.{name}: {stated[name]} is not what the events give")
    if merges is None:
        _check_doors(content["doors"], events)
    beside = _beside(found, merges, said["delta"])
    rows = [[p["paper"], p["formula"], p["epsilon"]] for p in content["published"]]
    if rows != finite([[p["paper"], p["formula"], p["epsilon"]] for p in beside["published"]]):
        raise Problem("statement: published: not what the formulas give for these events")
    bound = said["bound"].removesuffix(" (dp-accounting)")  # which found it in older versions
    if content["warnings"] != beside["warnings"] or bound not in (BOUNDS[found["by"]], BOUNDS["rdp"]):
        raise Problem("statement: warnings or guarantee.bound: not what the events give")


def _is_too_good(key: str, value: float, true: float, events: tuple[Event, ...], delta: float) -> bool:
    """Whether a stated bound is tighter than any machine or version can have found it."""
    if key == "lower":
        most = (
            max(true, quick_lower(events, delta, aside=ELSEWHERE)) if value > true * (1 + ROUNDING) else true
        )
        return value > most * (1 + ROUNDING)
    adjacency = ADJACENCY if key == "epsilon" else "replace-one"
    return value < true * (1 - ROUNDING) and value < least_of(events, delta, adjacency)


def merge_door(merges: Merges) -> list[Door]:
    """Give the door of a silo's uploads."""
    clip = math.inf if merges.noise == 0 else merges.clip
    door = Door("merge", merges.came, 1, merges.sampler, merges.rate, merges.cohort, clip)
    return [door] if merges.came else []


def _check_merges(content: dict[str, Any], merges: Merges) -> None:
    """What is said against whom is what the merges give, and so are the doors."""
    true = _against(merges, content["guarantee"]["delta"], content["guarantee"]["epsilon"])
    for name, entry in content["adversaries"].items():
        said, least = entry["epsilon"], true[name]
        if (said is None) != (least is None) or abs((said or 0) - (least or 0)) > ROUNDING * (least or 1):
            raise Problem(f"statement: adversaries.{name}: {said} is not what the merges give")
    if content["doors"] != finite([asdict(door) for door in merge_door(merges)]):
        raise Problem("statement: doors: not those of the merges")


def _check_words(content: dict[str, Any], merges: Merges | None) -> None:
    """Check the sentences that every statement has."""
    metered = content["ledger"] is not None
    always = always_uncovered(merges)
    missing = {*always, LEAVING if metered else WITHOUT_LEDGER} - set(content["not_covered"])
    if missing:
        raise Problem(f"statement: not_covered: it lacks '{sorted(missing)[0]}'")
    if content["randomness"] != (METERED if metered else SIMULATED):
        raise Problem("statement: randomness: not what it must say")
    if isinstance(content["tuning"], str) and content["tuning"] != UNTUNED:
        raise Problem("statement: tuning: not what it must say")


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


def _check_trials(events: tuple[Event, ...], tuning: dict[str, Any]) -> None:
    """The events are those of the trials that ran, or more where rounds were repeated."""
    one = grouped(Event(**event) for event in tuning["trial"])
    least = {replace(event, count=1): event.count * tuning["ran"] for event in one}
    found = {replace(event, count=1): event.count for event in grouped(events)}
    if set(least) != set(found) or any(found[event] < count for event, count in least.items()):
        raise Problem(f"statement: tuning.trial: {tuning['ran']} of these trials are not what was released")
    if tuning["epsilon"] != best_trial(tuning) or tuning["notes"] != list(COVERED):
        raise Problem("statement: tuning.epsilon: not what the trials give")
