"""What `coterie statement` prints; torch is not imported here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import Problem
from ..privacy.accountant import shown
from ..privacy.events import Event
from ..privacy.meaning import meaning_lines, meaning_of
from ..privacy.statement.checklist import GUIDELINE, UNCOVERED, checklist
from ..privacy.statement.delta_words import delta_warning, delta_words
from ..privacy.statement.file import Verified, find_statements, verify
from ..privacy.statement.grids import grid_lines
from ..privacy.statement.recheck import recheck_facts, recheck_lines
from .output import say


def verify_statements(
    places: Sequence[Path],
    folder: Path | None,
    as_json: bool,
    key: Path | None = None,
    at: str | None = None,
    witness: str | None = None,
) -> None:
    """Check the statements at these places; raise one `Problem` with all that is wrong.

    Each is recomputed and its signature checked; given a folder of ledgers, its run is also found there.
    """
    files = find_statements(places)
    rows: list[dict[str, Any]] = []
    problems = []
    for file in files:
        try:
            checked = verify(file, folder, key=key, at=at, witness=witness)
        except Problem as problem:
            problems.append(f"{file}: {problem}" if len(files) > 1 else str(problem))
            rows.append({"file": str(file), "verified": False, "problem": str(problem)})
            continue
        rows.append(_checked_facts(file, checked, key is not None))
        if not as_json:
            _say_checked(file, checked)
    if as_json:
        print(json.dumps(rows, indent=2))
    elif len(files) > 1 and not problems:
        say(f"All {len(files)} statements are right.")
    if problems:
        lines = "".join(f"\n  {problem}" for problem in problems)
        many = f"{len(problems)} of {len(files)} statements are wrong:{lines}"
        raise Problem(problems[0] if len(files) == 1 else many)


def _checked_facts(file: Path, checked: Verified, key_checked: bool) -> dict[str, Any]:
    """Return what was found of one statement as plain data."""
    return {
        "file": str(file), "silo": checked.silo, "epsilon": checked.epsilon, "delta": checked.delta,
        "verified": True, "ledger": checked.in_ledger, "not_checked": checked.not_checked,
        "kind": checked.content["kind"], "signature": checked.signature, "key_checked": key_checked,
        "recomputed": recheck_facts(checked.content),
    }  # fmt: skip


def _say_checked(file: Path, checked: Verified) -> None:
    """Print what was found of one statement."""
    words = "no privacy"
    if checked.epsilon is not None:
        words = f"epsilon {shown(checked.epsilon)} at delta {checked.delta:g}"
    words += ", found in its ledger" if checked.in_ledger else ""
    words += f"; not checked: {checked.not_checked}" if checked.not_checked else ""
    say(f"{file}: recomputed from its events: {words}")
    kind = "a simulation" if checked.content["kind"] == "simulation" else "a metered run"
    say(f"  {kind}, {checked.signature}")
    for line in recheck_lines(checked.content):
        say(f"  {line}")


def show_statement(file: Path, as_json: bool) -> None:
    """Print a statement for people, after recomputing it: what it promises, what that means, a checklist."""
    content = verify(file).content
    said, unit = content["guarantee"], content["guarantee"]["unit"]
    private = said["epsilon"] is not None
    events = [Event(**event) for event in content["events"]]
    meaning = meaning_of(said["epsilon"], said["delta"], events) if private else None
    lines = [] if meaning is None else meaning_lines(meaning, unit)
    if as_json:
        means = {
            key: None if meaning is None else getattr(meaning, key) for key in ("sure", "exception", "right")
        }
        facts = {
            "file": str(file), "silo": content["silo"], "epsilon": said["epsilon"], "delta": said["delta"],
            **means, "meaning": lines, "checklist": dict(checklist(content)),
            "rounding": None if content["grid"] is None else grid_lines(content["grid"]),
        }  # fmt: skip
        print(json.dumps(facts, indent=2))
        return
    promised = (
        f"epsilon at most {shown(said['epsilon'])} at delta {said['delta']:g}" if private else "no privacy"
    )
    print(f"Privacy statement for {content['silo']}, {content['method']}: {promised}, for one {unit}")
    if content["ledger"] is None:
        print("This is a simulation: anyone who knows its seed knows the noise.")
    bare = [entry["who"] for entry in content["adversaries"].values() if entry["epsilon"] is None]
    if private and bare:
        say(f"Nothing protects against {' or against '.join(bare)}.")
    for line in (*lines, delta_words(content), delta_warning(content)):
        if line:
            say(line)
    print("\nAgainst each adversary, epsilon is at most")
    for entry in content["adversaries"].values():
        bound = "none (no protection)" if entry["epsilon"] is None else shown(entry["epsilon"])
        print(f"  {entry['who']}: {bound}")
    print("\nChecklist")
    say(f"  {GUIDELINE}")
    for question, answer in checklist(content):
        say(f"  {question} {answer}")
    if content["grid"] is not None:
        print("\nRounding of what was released")
        for line in grid_lines(content["grid"]):
            say(f"  {line}")
    print(f"\n{UNCOVERED}")
    for line in content["not_covered"]:
        say(f"  - {line}")
