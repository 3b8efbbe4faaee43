"""What `coterie statement` prints; torch is not imported here."""

from __future__ import annotations

import json
from pathlib import Path

from ..privacy.accountant import shown
from ..privacy.statement.file import verify
from ..privacy.statement.recheck import recheck_facts, recheck_lines
from .output import say


def verify_statement(file: Path, folder: Path | None, as_json: bool) -> None:
    """Recompute a statement; given a folder of ledgers, also find its run there."""
    checked = verify(file, folder)
    if as_json:
        facts = {"file": str(file), "silo": checked.silo, "epsilon": checked.epsilon, "verified": True,
                 "ledger": checked.in_ledger, "not_checked": checked.not_checked,
                 "recomputed": recheck_facts(checked.content)}  # fmt: skip
        print(json.dumps(facts))
        return
    words = "no privacy"
    if checked.epsilon is not None:
        words = f"epsilon {shown(checked.epsilon)} at delta {checked.delta:g}"
    words += ", found in its ledger" if checked.in_ledger else ""
    words += f"; not checked: {checked.not_checked}" if checked.not_checked else ""
    say(f"{file}: recomputed from its events: {words}")
    for line in recheck_lines(checked.content):
        say(f"  {line}")
