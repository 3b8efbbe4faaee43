"""Check a statement by computing every number again from its events."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from ..._json import finite
from ...errors import Problem
from ..accountant import ADJACENCY, ELSEWHERE, MACHINE_TOLERANCE, least_of, quick_lower
from ..adversaries import ADVERSARIES
from ..events import Event, grouped
from ..keys import PublicKey
from ..merges import MergeEvents
from ..tuning import COVERED
from .build import (
    BOUNDS,
    CHOSEN,
    FAST_NOISE,
    HOLDS,
    LEAVING,
    METERED,
    SAMPLES,
    SCHEMA,
    SEES_UPLOADS,
    SIMULATED,
    TEST_PART,
    UNTUNED,
    WITHOUT_LEDGER,
    always_uncovered,
    best_trial,
    checksum,
    epsilon_against,
    in_several_silos,
    merge_door,
    numbers,
    published_beside,
    text_of,
    unit_of,
    with_published_dual,
)
from .grids import check_grid
from .origin import METERED_RUN, SIMULATION, check_issuer
from .recheck import recheck_statement


def verify(text: str, key: PublicKey | None = None, at: datetime | None = None) -> dict[str, Any]:
    """Recompute a statement from its events; raise `Problem`, naming the field, if anything differs.

    Its signature is checked with the key it names, which must be `key` if one is given, and its dates as of
    `at` (now, if that is not given).

    Epsilons are recomputed with dp-accounting, which shares no arithmetic with the accountant that stated
    them; `recheck_statement` says which of them it confirms. Our own accountant decides about the others.

    The checksum detects damage. Somebody without the key can compute a new checksum, but no signature. Even
    the holder of the key cannot make epsilon smaller for the same events. Which events really happened is
    what the ledger shows.
    """
    if text.lstrip().startswith("<"):
        raise Problem("statement: this is the page for people; check the JSON file next to it")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise Problem(
            f"statement: the file is not complete JSON (line {error.lineno}): it was cut off or changed; get"
            " it again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise Problem(f"statement: the file cannot be read: {error}") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise Problem("statement: this file is not a statement")
    if content["schema"] != SCHEMA:
        raise Problem(f"statement: expected the schema {SCHEMA}, got {content['schema']!r}{_age(content)}")
    try:
        written = text_of(content)
    except (ValueError, RecursionError) as error:
        raise Problem(f"statement: the file cannot be read: {error}") from error
    if text != written:
        raise Problem("statement: the file was changed: its text differs from what was written")
    if content.get("checksum") != checksum(content):
        raise Problem("statement: the file was changed: its checksum does not match")
    from .schema import check_shape

    check_shape(content)
    check_issuer(content, key, at)
    try:
        _recompute(content)
    except (TypeError, OverflowError, MemoryError, ArithmeticError) as error:
        raise Problem(f"statement: its numbers cannot be recomputed: {error}") from error
    return content


def _age(content: dict[str, Any]) -> str:
    """Return what to do about a statement of another version; "" if its schema names none."""
    name, _, number = str(content["schema"]).partition("/")
    ours, _, version = SCHEMA.partition("/")
    if name != ours or not number.isdecimal():
        return ""
    if int(number) > int(version):
        return ": it was written by a newer version; upgrade Coterie"
    return (
        f": statements before version {version} lack facts that this check needs; check them with the version"
        " that wrote them"
    )


def _recompute(content: dict[str, Any]) -> None:
    said = content["guarantee"]
    events = tuple(Event(**event) for event in content["events"])
    try:
        merges = None if content["merges"] is None else MergeEvents(**content["merges"])
    except Problem as problem:
        raise Problem(f"statement: {problem}") from None
    _check_words(content, merges)
    check_grid(content, merges)
    if said["unit"] != unit_of(content, merges):
        raise Problem("statement: guarantee.unit: does not match the merges")
    if merges is not None and merges.metered != (content["ledger"] is not None):
        raise Problem("statement: merges.metered: must be true exactly if the statement names a ledger")
    if merges is not None and grouped(events) != grouped(merges.strongest()):
        raise Problem("statement: events: do not match the merges")
    if said["epsilon"] is None:
        _check_unprotected(content, merges)
        return
    if said["delta"] is None or said["budget"] is None:
        raise Problem("statement: guarantee.delta and guarantee.budget: required if epsilon is stated")
    found = numbers(events, said["delta"])
    found = with_published_dual(found, content["settings"], content["doors"], grouped(events), said["delta"])
    checks = recheck_statement(content)
    for name, check in checks.items():
        if check.verdict == "refuted":
            raise Problem(
                f"statement: {name}: states {check.stated:.6g}, but the events give {check.epsilon:.6g}"
                " (dp-accounting)"
            )
    for key in ("epsilon", "replace_one", "lower"):
        if key != "lower" and checks[f"guarantee.{key}"].verdict == "confirmed":
            continue
        true, value = found[key], math.inf if said[key] is None else said[key]
        if _is_too_good(key, value, true, events, said["delta"]):
            raise Problem(f"statement: guarantee.{key}: states {value:.6g}, but the events give {true:.6g}")
    _check_several(said, events)
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
        raise Problem(f"statement: guarantee.budget: {spent:.6g} was spent of {said['budget']:.6g}")
    stated = {name: entry["epsilon"] for name, entry in content["adversaries"].items()}
    nothing_sent = all(stated[name] == 0 for name in SEES_UPLOADS)
    for name, epsilon in (true if merges is None else {}).items():
        if stated[name] != epsilon and not (nothing_sent and name in SEES_UPLOADS):
            raise Problem(f"statement: adversaries.{name}: {stated[name]} does not match the events")
    if merges is None:
        _check_doors(content, events)
    beside = published_beside(found, merges, said["delta"])
    rows = [[p["paper"], p["formula"], p["epsilon"]] for p in content["published"]]
    if rows != finite([[p["paper"], p["formula"], p["epsilon"]] for p in beside["published"]]):
        raise Problem("statement: published: does not match what the formulas give for these events")
    bound = said["bound"].removesuffix(" (dp-accounting)")  # an addition of older versions
    if content["warnings"] != beside["warnings"] or bound not in (BOUNDS[found["by"]], BOUNDS["rdp"]):
        raise Problem("statement: warnings or guarantee.bound: does not match the events")


def _check_several(said: dict[str, Any], events: tuple[Event, ...]) -> None:
    """Raise `Problem` unless the totals of a person in several silos cover the events of that many silos."""
    stated = said.get("several_silos")
    if said["unit"] != "person":
        if stated is not None:
            raise Problem("statement: guarantee.several_silos: only a statement about persons has it")
        return
    true = in_several_silos(grouped(events), said["delta"])
    if not isinstance(stated, dict) or stated.keys() != true.keys():
        raise Problem(f"statement: guarantee.several_silos: expected totals for {', '.join(true)} silos")
    for silos, epsilon in true.items():
        value = math.inf if stated[silos] is None else stated[silos]
        if value < epsilon * (1 - MACHINE_TOLERANCE):
            raise Problem(
                f"statement: guarantee.several_silos: states {value:.6g} for {silos} silos, but the events"
                f" give {epsilon:.6g}"
            )
        if value < said["epsilon"] * (1 - MACHINE_TOLERANCE):
            raise Problem(
                f"statement: guarantee.several_silos: states {value:.6g} for {silos} silos, but"
                f" {said['epsilon']:.6g} for one"
            )


def _check_unprotected(content: dict[str, Any], merges: MergeEvents | None) -> None:
    """Raise `Problem` unless a statement without an epsilon claims no protection, and describes its doors."""
    stated = {name: entry["epsilon"] for name, entry in content["adversaries"].items()}
    if any(stated.values()) or all(value == 0 for value in stated.values()):
        raise Problem("statement: adversaries: an epsilon is stated although nothing protects the data")
    if merges is None:
        if stated["personal"] is not None:
            raise Problem("statement: adversaries.personal: nothing protects the personal model")
        if events := content["events"]:
            _check_doors(content, tuple(Event(**event) for event in events))


def _is_too_good(key: str, value: float, true: float, events: tuple[Event, ...], delta: float) -> bool:
    """Return whether a stated bound is tighter than any machine or version could have found."""
    if key == "lower":
        most = (
            max(true, quick_lower(events, delta, aside=ELSEWHERE))
            if value > true * (1 + MACHINE_TOLERANCE)
            else true
        )
        return value > most * (1 + MACHINE_TOLERANCE)
    adjacency = ADJACENCY if key == "epsilon" else "replace-one"
    return value < true * (1 - MACHINE_TOLERANCE) and value < least_of(events, delta, adjacency)


def _check_merges(content: dict[str, Any], merges: MergeEvents) -> None:
    """Raise `Problem` unless the epsilon against each adversary and the doors match the merges."""
    true = epsilon_against(merges, content["guarantee"]["delta"], content["guarantee"]["epsilon"])
    for name, entry in content["adversaries"].items():
        said, least = entry["epsilon"], true[name]
        if (said is None) != (least is None) or abs((said or 0) - (least or 0)) > MACHINE_TOLERANCE * (
            least or 1
        ):
            raise Problem(f"statement: adversaries.{name}: {said} does not match the merges")
    if content["doors"] != finite([asdict(door) for door in merge_door(merges)]):
        raise Problem("statement: doors: do not match the merges")


def _check_words(content: dict[str, Any], merges: MergeEvents | None) -> None:
    """Raise `Problem` unless all required sentences are there."""
    metered = content["ledger"] is not None
    if content["kind"] != (METERED_RUN if metered else SIMULATION):
        raise Problem("statement: kind: must be 'metered' exactly if the statement names a ledger")
    unit = unit_of(content, merges)
    always = always_uncovered(merges, metered, unit)
    scored = [TEST_PART] * any(door["door"] == "score" for door in content["doors"])
    missing = {*always, *scored, LEAVING if metered else WITHOUT_LEDGER} - set(content["not_covered"])
    wrong = {FAST_NOISE, WITHOUT_LEDGER} & set(content["not_covered"]) if metered else set()
    if wrong:
        raise Problem(f"statement: not_covered: '{min(wrong)}' is not said of a metered run")
    if missing:
        raise Problem(f"statement: not_covered: the sentence '{sorted(missing)[0]}' is missing")
    if content["guarantee"]["holds_for"] != HOLDS[unit]:
        raise Problem("statement: guarantee.holds_for: not the required sentence")
    if any(entry["who"] != ADVERSARIES[name] for name, entry in content["adversaries"].items()):
        raise Problem("statement: adversaries: not the required words")
    if content["randomness"] != (METERED if metered else SIMULATED):
        raise Problem("statement: randomness: not the required sentence")
    if isinstance(content["tuning"], str) and content["tuning"] != UNTUNED:
        raise Problem("statement: tuning: not the required sentence")


def _check_doors(content: dict[str, Any], events: tuple[Event, ...]) -> None:
    """Raise `Problem` unless the events account for every noisy sum: by sampler, rate and noise.

    The expected batch of a door must be its rate of the declared examples.
    """
    opened, charged = Counter[tuple[float, float, bool]](), Counter[tuple[float, float, bool]]()
    for door in content["doors"]:
        if door["sampler"] not in SAMPLES:
            raise Problem(f"statement: doors: the sampler '{door['sampler']}' is not accounted for")
        batch = door["rate"] * content["declared_size"]
        if door["door"] != "score" and not math.isclose(door["expected_batch"], batch, rel_tol=1e-9):
            raise Problem(
                f"statement: doors: an expected batch of {door['expected_batch']:g} is not the rate"
                f" {door['rate']:g} of declared_size, {content['declared_size']}"
            )
        passes = door["sampler"] == "allocation"
        opened[door["rate"], door["noise"], passes] += door["calls"] * door["steps"]
    for event in events:
        charged[event.rate, event.noise, event.sampler == "allocation"] += event.releases
    for key in sorted({*opened, *charged}):
        if opened[key] != charged[key]:
            how = f"at rate {key[0]:g}{' in passes' if key[2] else ''} with noise {key[1]:g}"
            raise Problem(
                f"statement: doors: {opened[key]} noisy sums {how}, but the events have {charged[key]}"
            )


def _check_trials(events: tuple[Event, ...], tuning: dict[str, Any]) -> None:
    """Raise `Problem` unless the events are those of all trials, or more if rounds were repeated."""
    one = grouped(Event(**event) for event in tuning["trial"])
    least = {replace(event, count=1): event.count * tuning["ran"] for event in one}
    found = {replace(event, count=1): event.count for event in grouped(events)}
    if set(least) != set(found) or any(found[event] < count for event, count in least.items()):
        raise Problem(f"statement: tuning.trial: {tuning['ran']} of these trials do not match the events")
    if tuning["epsilon"] != best_trial(tuning) or tuning["notes"] != list(COVERED):
        raise Problem("statement: tuning.epsilon or tuning.notes: does not match the trials")
