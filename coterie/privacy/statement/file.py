"""Check a statement's file, and its run in the ledger that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import Problem, plainly, reason
from .build import SEES_UPLOADS
from .in_ledger import find_in_ledger
from .verify import verify as recompute


@dataclass(frozen=True)
class Verified:
    """A statement whose numbers were recomputed; `epsilon` is None if it promises no privacy.

    `in_ledger` says whether its run was found in a ledger. `not_checked` names what only a ledger can show.
    """

    path: Path
    silo: str
    method: str
    epsilon: float | None
    delta: float | None
    in_ledger: bool
    not_checked: str | None
    content: dict[str, Any]

    def __repr__(self) -> str:
        privacy = (
            "no privacy" if self.epsilon is None else f"epsilon {self.epsilon:.4g}, delta {self.delta:g}"
        )
        found = ", found in its ledger" if self.in_ledger else ""
        return f"Verified('{self.silo}', {self.method}: {privacy}{found})"


@plainly
def verify(path: str | Path, ledger: str | Path | None = None) -> Verified:
    """Recompute a statement from its events; with a ledger, or a folder of them, also find its run there.

    Raise `Problem` if anything differs.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"statement '{path}' cannot be read: {reason(error)}") from error
    content = recompute(text)
    if ledger is not None:
        find_in_ledger(content, Path(ledger))
    said, unchecked = content["guarantee"], None
    sent = any(content["adversaries"][who]["epsilon"] for who in SEES_UPLOADS)
    if ledger is None and said["epsilon"] and not sent:
        unchecked = "that nothing was sent; only its ledger shows this (--ledger)"
    return Verified(
        path,
        content["silo"],
        content["method"],
        said["epsilon"],
        said["delta"],
        ledger is not None,
        unchecked,
        content,
    )
