"""What a statement's page says about its origin: data, model, run, who issued it, and what stayed home."""

from __future__ import annotations

from html import escape
from typing import Any


def origin_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the table that says what a statement is about."""
    data, model, run, digests = (content[key] for key in ("data", "model", "run", "digests"))
    source = "" if data["source"] in (None, data["name"]) else f" ({data['source']})"
    known = "" if data["fingerprint"] is None else f", known to ledgers as {data['fingerprint']}"
    return [
        ("data set", f"{data['name'] or 'without a name'}{source}: {data['rows']} rows{known}"),
        ("model", f"{model['name'] or 'unknown'}, {model['parameters']:,} parameters"),
        ("run", run["id"] or "unknown"),
        ("stayed with the silo", "; ".join(content["stayed_home"]) or "unknown"),
        ("configuration", digests["configuration"] or "none"),
        ("installed code", digests["code"]),
    ]


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
    words = f"The budget of this run is {said['budget']:g}. " if said["budget"] != said["epsilon"] else ""
    if ledger is None:
        return words
    whole, again = ledger["budget"], ledger["recovered"]
    words += f"All runs on this data set may spend {whole['epsilon']:g} at delta {whole['delta']:g}. "
    return words + (f"Its ledger was recovered {again} time(s) after a loss. " if again else "")
