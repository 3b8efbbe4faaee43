"""The numbers of a statement's page: epsilon for this run and for all runs, and against whom they hold."""

from __future__ import annotations

from html import escape
from typing import Any

from ..privacy.accountant import shown
from ..privacy.adversaries import ADVERSARIES
from ..privacy.statement.checklist import WHY_LARGER, in_passes

WHO = {
    "server": "It collects what the silos send, and combines it.",
    "silos": "The other members, if they put together all that they know.",
    "shared": "The model that the silos train together, if there is one.",
    "personal": "The model that was trained for this silo.",
}
QUESTIONS = {
    "example": ("whether a record was used at all", "what a record says, such as which of two values it has"),
    "person": ("whether a person's rows were used at all", "what these rows say, such as which illness"),
    "silo": (
        "whether the silo took part at all",
        "what the silo's data says, such as which of two sets it is",
    ),
}


def headline(content: dict[str, Any]) -> list[str]:
    """Return the two epsilons in large type, with one sentence on when to use which."""
    said = content["guarantee"]
    if said["epsilon"] is None:
        return ["<p class='number'>no privacy</p>", "<p>No noise was added that would protect the data.</p>"]
    first, second = QUESTIONS[said["unit"]]
    delta = f"at delta {said['delta']:g}"
    known = said["replace_one"] is not None
    other = f"epsilon ≤ {shown(said['replace_one'])} {delta}" if known else "no bound is known"
    why = f" {escape(WHY_LARGER)}." if known and in_passes(content) else ""
    return [
        f"<p class='number'>epsilon ≤ {shown(said['epsilon'])} {delta}</p>",
        f"<p class='second'>{other} if another {escape(said['unit'])} takes its place</p>",
        f"<p>Smaller is better. Use the first line if the secret is {first}, and the second line if it is"
        f" {second}.{why}</p>",
    ]


def adversary_section(content: dict[str, Any]) -> list[str]:
    """Return one table: epsilon against each adversary, for this run and, with a ledger, for all runs."""
    said, ledger = content["guarantee"], content["ledger"]
    totals = [] if ledger is None else [ledger["total"]]
    head = ["adversary", "this run", *["all runs"] * len(totals)]
    if ledger is not None and ledger.get("as_example") is not None:
        totals.append(ledger["as_example"])
        head.append("all runs, for each single example")
    rows = [
        [
            f"{escape(entry['who'])}<br><span class='small'>{escape(WHO[name])}</span>",
            _bound(entry["epsilon"], said["delta"]),
        ]
        + [_total(total.get(name)) for total in totals]
        for name, entry in content["adversaries"].items()
        if name in ADVERSARIES
    ]
    held = " All runs are those on this data set that the silo's ledger holds so far."
    note = f"Each number is an upper bound.{'' if ledger is None else held}"
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return [
        "<h2>Epsilon against each adversary</h2>",
        f"<p class='small'>{escape(note)}</p>",
        f"<table class='numbers'><tr>{top}</tr>{body}</table>",
    ]


def _total(total: dict[str, Any] | None) -> str:
    """Return what all runs spent against an adversary, as HTML."""
    return "unknown" if total is None else _bound(total["epsilon"], total["delta"])


def _bound(epsilon: float | None, delta: float | None) -> str:
    """Return an epsilon and its delta, as HTML."""
    if epsilon is None:
        return "none (no protection)"
    if epsilon == 0:
        return "0 (sees nothing)"
    return f"{shown(epsilon)} at <span class='whole'>delta {delta:g}</span>"
