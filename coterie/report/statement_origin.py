"""What a statement's page says about its origin: data, model, run, who issued it, and what stayed home."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from ..privacy.accountant import shown
from ..privacy.ledger.names import CUT
from ..privacy.statement.checklist import largest_total


def origin_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the table that says what a statement is about."""
    data, model, run, digests = (content[key] for key in ("data", "model", "run", "digests"))
    known = "" if data["fingerprint"] is None else f"; ledgers know it as {data['fingerprint']}"
    return [
        ("data set", f"{data['name'] or 'without a name'}{_source(data)}: {data['rows']} rows{known}"),
        ("model", f"{model['name'] or 'unknown'}, {model['parameters']:,} parameters{_start(model)}"),
        ("run", run["id"] or "unknown"),
        ("stayed with the silo", "; ".join(content["stayed_home"]) or "unknown"),
        ("digest of the configuration", digests["configuration"] or "none"),
        ("digest of the installed code", digests["code"]),
    ]


def _source(data: dict[str, Any]) -> str:
    """Return where a data set comes from, if its name does not say so; how silos were cut is put in words."""
    if data["source"] in (None, data["name"]):
        return ""
    name, _, cut = data["source"].partition(CUT)
    try:
        how = json.loads(cut)
        rows = [f"{how.pop('of')} rows in all"] if "of" in how else []
        parts = [*rows, *(f"{key} {value}" for key, value in how.items())]
    except (ValueError, TypeError, AttributeError):
        return f" ({data['source']})"
    return f" ({'' if name == data['name'] else f'{name}, '}cut into silos: {', '.join(parts)})"


def issuer_lines(content: dict[str, Any]) -> list[str]:
    """Return the lines of HTML that say who signed a statement, and when."""
    issuer = content["issuer"]
    if issuer is None:
        return ["<p class='small'>Nobody signed this statement.</p>"]
    until = "" if issuer["expires"] is None else f", valid until {issuer['expires']}"
    whose = content["silo"] if issuer["silo"] is None else issuer["silo"]
    return [
        f"<p class='small'>Signed on {escape(content['time'])} for {escape(whose)} with key"
        f" <code>{escape(issuer['id'])}</code>{escape(until)}. To check that, run <code>coterie statement"
        " verify FILE --key KEY.pub</code> with the silo's public key, from a source you trust.</p>"
    ]


def budget_words(content: dict[str, Any]) -> str:
    """Return what the run, and all runs together, may spend; "" if the budget is what was spent."""
    said, ledger = content["guarantee"], content["ledger"]
    # If the noise was given, the budget is just the epsilon that follows from it.
    words, given = "", said["budget"] is not None and said["budget"] != said["epsilon"]
    if given:
        words = f"The budget of this run is {said['budget']:g}. "
    if isinstance(content["tuning"], dict) and said["budget"] is not None:
        words = f"The budget of the chosen model is {said['budget']:g}, for anyone who sees no other trial. "
    if ledger is None:
        return words
    whole, again = ledger["budget"], ledger["recovered"]
    words += f"All runs on this data set may spend {whole['epsilon']:g} at delta {whole['delta']:g}. "
    if raised := ledger.get("raised"):
        words += f"That budget had been raised {raised} time(s); its ledger says when and why. "
    bare = any(total["epsilon"] is None for total in ledger["total"].values())
    but = ", leaving aside those against whom nothing protects" if bare else ""
    if ledger["total"] and (spent := largest_total(ledger, leave_aside=True)) is not None:
        words += f"So far they have spent at most {shown(spent[0])} at delta {spent[1]:g}{but}. "
    return words + (f"Its ledger was recovered {again} time(s) after a loss. " if again else "")


def _start(model: dict[str, Any]) -> str:
    """Return from which public numbers a model started, if it did."""
    return f", from the public start {model['start'][:16]}" if model.get("start") else ""
