"""What `coterie statement` prints; torch is not imported here."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import Problem, reason
from ..privacy.accountant import shown
from ..privacy.statement.build import SEES_UPLOADS
from ..privacy.statement.in_ledger import find_in_ledger
from ..privacy.statement.verify import verify


def verify_statement(file: Path, folder: Path | None, as_json: bool) -> None:
    """Recompute a statement; with a folder of ledgers also find its run there."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"statement '{file}' cannot be read: {reason(error)}") from error
    content = verify(text)
    if folder is not None:
        find_in_ledger(content, folder)
    epsilon = content["guarantee"]["epsilon"]
    facts = {"file": str(file), "silo": content["silo"], "epsilon": epsilon, "verified": True,
             "ledger": folder is not None, "not_checked": None}  # fmt: skip
    if folder is None and epsilon and not any(content["adversaries"][who]["epsilon"] for who in SEES_UPLOADS):
        facts["not_checked"] = "that nothing was sent: its ledger would tell (--ledger)"
    words = (
        "no privacy"
        if epsilon is None
        else f"epsilon {shown(epsilon)} at delta {content['guarantee']['delta']:g}"
    )
    found = ", found in its ledger" if folder is not None else ""
    found += f"; not checked: {facts['not_checked']}" if facts["not_checked"] else ""
    print(json.dumps(facts) if as_json else f"{file}: recomputed from its events: {words}{found}")
