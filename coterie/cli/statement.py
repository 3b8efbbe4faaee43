"""What `coterie statement` prints; torch is not imported here."""

from __future__ import annotations

import json
from pathlib import Path

from ..privacy.accountant import shown
from ..privacy.statement.file import verify
from ..privacy.statement.recheck import recheck_facts, recheck_lines
from .output import say


def verify_statement(
    file: Path,
    folder: Path | None,
    as_json: bool,
    key: Path | None = None,
    at: str | None = None,
    witness: str | None = None,
) -> None:
    """Recompute a statement and check its signature; given a folder of ledgers, also find its run there."""
    checked = verify(file, folder, key=key, at=at, witness=witness)
    if as_json:
        facts = {"file": str(file), "silo": checked.silo, "epsilon": checked.epsilon, "verified": True,
                 "ledger": checked.in_ledger, "not_checked": checked.not_checked,
                 "kind": checked.content["kind"], "signature": checked.signature,
                 "key_checked": key is not None,
                 "recomputed": recheck_facts(checked.content)}  # fmt: skip
        print(json.dumps(facts))
        return
    words = "no privacy"
    if checked.epsilon is not None:
        words = f"epsilon {shown(checked.epsilon)} at delta {checked.delta:g}"
    words += ", found in its ledger" if checked.in_ledger else ""
    words += f"; not checked: {checked.not_checked}" if checked.not_checked else ""
    say(f"{file}: recomputed from its events: {words}")
    kind = "a simulation" if checked.content["kind"] == "simulation" else "a metered run"
    dated = "" if checked.content["time"] is None else f" on {checked.content['time']}"
    say(f"  {kind}, {checked.signature}{dated}")
    for line in recheck_lines(checked.content):
        say(f"  {line}")
