"""Build the statement of what one silo spent in one run, so that anyone with the file can check it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from ..._json import finite
from ..accountant import ADJACENCY, epsilon_of, quick_lower, upper_of
from ..adversaries import ADVERSARIES, table
from ..cache import Cache
from ..events import Event, grouped, joined
from ..keys import Key
from ..merges import MergeEvents
from ..published.dual import published_dual
from ..published.formulas import Published, published_for, warning
from ..published.merges import merge_warnings, published_for_merges
from ..trials import Trials
from ..tuning import COVERED, chosen_epsilon
from .grids import grid_facts
from .origin import METERED_RUN, SIMULATION, Origin, data_facts, issuer_facts, signature_of
from .secure_words import secure_words

SCHEMA = "coterie-statement/5"
SEES_UPLOADS = ("server", "silos", "shared")
CHOSEN = ("shared", "personal")  # the adversaries who see only the chosen trial of a sweep
TEST_SCORES = (
    "scores on test examples, which have no noise, if they are shared; choosing a setting by them is tuning"
)
TEST_PART = (
    "which of the silo's examples are for tests, which is assumed to be public; every example is charged for"
    " the training and for the noised scores, as if it were in both parts"
)
ALWAYS_UNCOVERED = (
    TEST_SCORES,
    "the silo's number of examples, the classes and the shape of the data, which are assumed to be public",
)
FAST_NOISE = "the rounding of floating-point noise: a simulation's noise is float32"
HOLDS = {
    "example": "everything that leaves the silo: uploads, shared models and personal models",
    "person": "everything that leaves the silo: uploads, shared models and personal models",
    "silo": "the merges that everybody sees and everything that others derive from them (joint privacy by"
    " the billboard lemma); the silo's own personal model is meant for the silo alone",
}
HIDDEN = "knowledge of who took part in which round: epsilon holds only if this stays secret"
SEES_ALL = "the server, which sees the raw uploads unless secure aggregation adds them up"
SAMPLES = ("poisson", "allocation", "all examples", "all test examples")
BOUNDS = {
    "pld": "upper, by privacy-loss distributions",
    "rdp": "upper, by Renyi privacy",
    "exact": "upper, by the closed form of the Gaussian mechanism",
    "nothing": "none",
}
WITHOUT_LEDGER = "other runs on the same data: their budgets add up, and only a ledger keeps the total"
LEAVING = "the fact that a silo left early, which reveals something about earlier spending on its data"
SIMULATED = "simulated: anyone who knows the seed knows the noise, so do not release the results"
EXAMPLES_APART = (
    "runs on the same data under the unit 'example': they protect single examples but not the whole silo, so"
    " totals in the unit 'silo' do not include them"
)
ROWS_APART = (
    "runs on the same data under the unit 'example': they protect a person's rows only one at a time, so"
    " totals in the unit 'person' do not include them"
)
ONE_NUMBER = "rows of one person that are recorded as those of several: each of these counts as a person"
ELSEWHERE_TOO = (
    "rows of the same person in other silos: each silo's budget is for its own rows, and budgets add up"
)
SEVERAL = (2, 3)  # silos that a person may be in, for which a statement has a total
METERED = (
    "an AES-256 keystream, keyed by the operating system's entropy, the silo's secret and the ledger's"
    " row; what is released is exactly a sum plus Gaussian noise, rounded to a grid (2^-20 to 2^-21 of the"
    " deviation of the noise)"
)
UNTUNED = "not accounted for: if this run was chosen among several by its score, its true epsilon is larger"


@dataclass(frozen=True)
class OpenedDoor:
    """A door and how it was used: `calls` times, with `steps` noisy sums per call.

    `noise` is the multiplier of its sums, or the scale of its choices.
    """

    door: str
    calls: int
    steps: int
    sampler: str
    rate: float
    expected_batch: float
    clip: float
    noise: float


@functools.cache
def software() -> dict[str, str]:
    """Return the versions of the packages that the numbers depend on."""
    return {name: version(name) for name in ("coterie", "dp-accounting", "torch", "numpy", "scipy")}


def unit_of(content: dict[str, Any], merges: MergeEvents | None) -> str:
    """Return the unit that a statement must be about: without merges, it may be about examples or persons."""
    if merges is not None:
        return "silo"
    return "person" if content["guarantee"]["unit"] == "person" else "example"


def in_several_silos(events: Sequence[Event], delta: float) -> dict[str, float]:
    """Return epsilon for a person with rows in several silos that all release what this one does."""
    return {
        str(silos): epsilon_of(tuple(replace(event, count=silos * event.count) for event in events), delta)
        for silos in SEVERAL
    }


def always_uncovered(merges: MergeEvents | None, metered: bool, unit: str = "example") -> tuple[str, ...]:
    """Return the sentences about what a statement never covers."""
    rounding = () if metered else (FAST_NOISE,)
    sees_all = merges is not None and merges.releases()["server"] is None
    hidden = merges is not None and merges.hidden and merges.merges > 0
    apart = merges is not None and merges.metered
    return (
        *ALWAYS_UNCOVERED,
        *rounding,
        *[SEES_ALL] * sees_all,
        *[HIDDEN] * hidden,
        *[EXAMPLES_APART] * apart,
        *[ROWS_APART] * (unit == "person" and metered),
        *[ONE_NUMBER, ELSEWHERE_TOO] * (unit == "person"),
        *(() if merges is None else secure_words(merges)),
    )


def statement_cache() -> Cache:
    """Open the cache of what published formulas reported in earlier statements."""
    return Cache("statements", f"{ADJACENCY}/{SCHEMA}/3")


def numbers(events: tuple[Event, ...], delta: float, cache: Cache | None = None) -> dict[str, Any]:
    """Return all numbers that follow from events: bounds, replace-one, and published formulas.

    Only the published formulas may come from the cache; what is certified is computed anew.
    """
    found = _certified(events, delta)
    beside = _published(events, delta, cache) if math.isfinite(found["epsilon"]) else ()
    return {
        **found,
        "published": [asdict(published) for published in beside],
        "warnings": [line for line in (warning(published, found["lower"]) for published in beside) if line],
    }


@functools.lru_cache(maxsize=4096)
def _certified(events: tuple[Event, ...], delta: float) -> dict[str, Any]:
    upper, by = upper_of(events, delta, ADJACENCY)
    return {
        "epsilon": upper,
        "by": by,
        "lower": min(quick_lower(events, delta), upper),
        "replace_one": epsilon_of(events, delta, "replace-one"),
    }


def _published(events: tuple[Event, ...], delta: float, cache: Cache | None) -> tuple[Published, ...]:
    """Return what published formulas report for sampled Gaussian steps; there are none for other events."""
    whole = joined(events)
    if len(whole) != 1 or whole[0].mechanism != "gaussian" or whole[0].in_passes:
        return ()
    one, question = whole[0], repr((events, delta))
    if cache is not None:
        try:
            return tuple(
                Published(paper, formula, math.inf if value is None else float(value))
                for paper, formula, value in cache.get(question)
            )
        except (TypeError, ValueError):
            pass  # it is not there, or is something else
    found = published_for(one.noise, one.rate, one.count, delta, quick=True)
    if cache is not None:
        cache.put(question, finite([list(vars(published).values()) for published in found]))
    return found


def build_statement(
    *,
    silo: str,
    method: str,
    settings: dict[str, Any],
    size: int,
    doors: Sequence[OpenedDoor],
    events: Sequence[Event],
    seen: tuple[str, ...],
    budget: float,
    delta: float,
    not_covered: Sequence[str],
    charged: float = 0.0,
    ledger: dict[str, Any] | None = None,
    tuning: dict[str, Any] | None = None,
    cache: Cache | None = None,
    merges: MergeEvents | None = None,
    origin: Origin | None = None,
    key: Key | None = None,
    unit: str = "example",
    asked: Sequence[Event] | None = None,
) -> dict[str, Any]:
    """Return the statement of one silo as plain data, signed with `key` if there is one.

    `budget` is that of the run; `ledger` has the budget of all runs. `origin` says on which data and model it
    ran.
    `charged` is what the ledger charged, if that is more than what was released. `tuning` describes a
    sweep: how the number of trials was drawn, and what one trial releases; `events` are then those of
    all trials. `cache` holds the numbers of earlier statements. With `merges`, the unit is the whole silo.
    `asked` is what the run was charged for, if that is more than `events`: a run that stops early, perhaps
    because of its results, has spent what was planned.
    """
    whole, opened = grouped(events), finite([asdict(door) for door in doors])
    found = with_published_dual(numbers(whole, delta, cache), settings, opened, whole, delta)
    private = math.isfinite(found["epsilon"])
    certified = max(found["epsilon"], charged)
    unit = unit if merges is None else "silo"
    uncovered = [*not_covered, *always_uncovered(merges, ledger is not None, unit)]
    uncovered.append(WITHOUT_LEDGER if ledger is None else LEAVING)
    against = table(certified, seen) if merges is None else epsilon_against(merges, delta, certified)
    if tuning is not None:
        best = best_trial(tuning)
        against |= {name: best if math.isfinite(best) else None for name in CHOSEN}
        tuning = {**tuning, "epsilon": best, "notes": list(COVERED)}
    several = {}
    if unit == "person" and private:
        totals = in_several_silos(whole if asked is None else grouped(asked), delta)
        several = {"several_silos": {silos: max(total, certified) for silos, total in totals.items()}}
    made = origin or Origin(data_facts("", None, size), {"name": "", "parameters": 0}, {"id": ""})
    content = {
        "schema": SCHEMA,
        "kind": SIMULATION if ledger is None else METERED_RUN,
        **issuer_facts(key),
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
            **several,
        },
        "adversaries": {
            name: {"who": ADVERSARIES[name], "epsilon": value} for name, value in against.items()
        },
        **published_beside(found, merges, delta),
        "tuning": UNTUNED if tuning is None else tuning,
        "declared_size": size,
        "doors": opened,
        "merges": None if merges is None else asdict(merges),
        "events": [asdict(event) for event in whole],
        "randomness": SIMULATED if ledger is None else METERED,
        "grid": None if ledger is None else grid_facts(opened, merges),
        **made.facts(),
        "ledger": ledger,
        "not_covered": uncovered,
        "software": software(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(finite(content)))
    sum_of_all = checksum(plain)
    return {**plain, "checksum": sum_of_all, "signature": signature_of(key, sum_of_all)}


def epsilon_against(merges: MergeEvents, delta: float, certified: float) -> dict[str, float | None]:
    """Return epsilon against each adversary, from the merges or, in a metered run, as charged."""
    found = merges.against(delta)
    return {name: certified if value else value for name, value in found.items()} if merges.metered else found


def published_beside(found: dict[str, Any], merges: MergeEvents | None, delta: float) -> dict[str, Any]:
    """Return what published formulas report, and a sentence for each that is below the lower bound."""
    if merges is None:
        return {"published": found["published"], "warnings": found["warnings"]}
    published = [asdict(one) for one in published_for_merges(merges, delta)]
    return {"published": published, "warnings": merge_warnings(merges, delta)}


def with_published_dual(
    found: dict[str, Any],
    settings: dict[str, Any],
    doors: Sequence[dict[str, Any]],
    events: tuple[Event, ...],
    delta: float,
) -> dict[str, Any]:
    """Add what the paper on dual coordinates reports, if its doors were opened."""
    used = [(door["door"], door["calls"], door["steps"]) for door in doors]
    more = published_dual(settings, used, events, delta)
    lines = [line for line in (warning(one, found["lower"]) for one in more) if line]
    published = [*found["published"], *(asdict(one) for one in more)]
    return {**found, "published": published, "warnings": [*found["warnings"], *lines]}


def best_trial(tuning: dict[str, Any]) -> float:
    """Return the epsilon, at the trial's delta, against anyone who sees only a sweep's chosen trial."""
    trials = Trials(tuning["distribution"], tuning["mean"], tuning["shape"], tuning["most"])
    return chosen_epsilon(joined(Event(**event) for event in tuning["trial"]), trials, tuning["delta"])


def checksum(content: dict[str, Any]) -> str:
    """Return the hash of a statement, leaving out its checksum and its signature."""
    rest = {key: value for key, value in content.items() if key not in ("checksum", "signature")}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def text_of(content: dict[str, Any]) -> str:
    """Return the text of a statement's file."""
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def merge_door(merges: MergeEvents) -> list[OpenedDoor]:
    """Return the door through which a silo's uploads were merged, if any."""
    clip = math.inf if merges.noise == 0 else merges.clip
    door = OpenedDoor("merge", merges.came, 1, merges.sampler, merges.rate, merges.cohort, clip, merges.noise)
    return [door] if merges.came else []
