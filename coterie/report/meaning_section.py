"""The part of a statement's page that says what epsilon means: in odds, as a picture, and as a checklist."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from ..privacy.events import Event
from ..privacy.meaning import Meaning, meaning_lines, meaning_of
from ..privacy.statement.checklist import GUIDELINE, checklist
from ..privacy.tradeoff import TradeOff

SIZE = 240  # of the picture, in pixels, without its margins
LEFT, TOP, BELOW = 58, 14, 46
CAPTION = {
    unit: f"How often anyone who tries to tell whether {what} must err. A false alarm says yes although the"
    " truth is no; a miss says no although the truth is yes. The solid line is the best that anyone can do."
    for unit, what in (("example", "your record was used"), ("silo", "your silo took part"))
}


def statement_meaning(content: dict[str, Any]) -> Meaning | None:
    """Return what a statement's guarantee means, or None if there is no guarantee."""
    said = content["guarantee"]
    if said["epsilon"] is None:
        return None
    return meaning_of(said["epsilon"], said["delta"], [Event(**event) for event in content["events"]])


def meaning_section(content: dict[str, Any]) -> list[str]:
    """Return the sentences about odds and the picture, as HTML; nothing without a guarantee."""
    meaning = statement_meaning(content)
    if meaning is None:
        return []
    lines = meaning_lines(meaning, content["guarantee"]["unit"])
    return [
        "<h2>What this means</h2>",
        f"<p class='important'>{_text(lines[0])}</p>",
        *(f"<p>{_text(line)}</p>" for line in lines[1:]),
        picture(meaning.curve),
        f"<p class='small'>{_text(CAPTION[content['guarantee']['unit']])}</p>",
    ]


def _text(line: str) -> str:
    """Return a sentence as HTML in which no line begins with a percent sign."""
    return escape(line).replace(" %", "&nbsp;%")


def checklist_section(content: dict[str, Any]) -> list[str]:
    """Return the questions and answers, as HTML."""
    rows = "".join(
        f"<tr><td>{escape(question)}</td><td>{_code(answer)}</td></tr>"
        for question, answer in checklist(content)
    )
    return [
        "<h2>Checklist</h2>",
        f"<p class='small'>{escape(GUIDELINE)}</p>",
        f"<table class='facts'>{rows}</table>",
    ]


def _code(answer: str) -> str:
    """Return an answer as HTML, with commands set as such."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(answer))


def picture(curve: TradeOff) -> str:
    """Return a trade-off curve as SVG: the misses of an attacker at each share of false alarms, at least."""

    def place(x: float, y: float) -> str:
        return f"{LEFT + SIZE * x:.1f},{TOP + SIZE * (1 - y):.1f}"

    points = " ".join(map(place, curve.type_one.tolist(), curve.type_two.tolist()))
    below = f"{place(0, 0)} {points} {place(1, 0)}"
    ticks = "".join(
        f"<text x='{LEFT + SIZE * share:.0f}' y='{TOP + SIZE + 16}' text-anchor='middle'>{share:.0%}</text>"
        f"<text x='{LEFT - 6}' y='{TOP + SIZE * (1 - share) + 4:.0f}' text-anchor='end'>{share:.0%}</text>"
        for share in (0.0, 0.5, 1.0)
    )
    middle = TOP + SIZE / 2
    return (
        f"<svg role='img' viewBox='0 0 {LEFT + SIZE + 250} {TOP + SIZE + BELOW}' width='{LEFT + SIZE + 250}'"
        f" height='{TOP + SIZE + BELOW}' font-size='12'"
        " font-family='system-ui, sans-serif' fill='#333'>"
        "<title>How often any attacker must err</title>"
        f"<polygon points='{below}' fill='#dce7ee'/>"
        f"<polyline points='{points}' fill='none' stroke='#2a6f97' stroke-width='2.5'/>"
        f"<polyline points='{place(0, 1)} {place(1, 0)}' fill='none' stroke='#333' stroke-dasharray='2 4'/>"
        f"<polyline points='{place(0, 1)} {place(0, 0)} {place(1, 0)}' fill='none' stroke='#888'/>{ticks}"
        f"<text x='{LEFT + SIZE / 2:.0f}' y='{TOP + SIZE + 36}' text-anchor='middle'>false alarms</text>"
        f"<text x='14' y='{middle:.0f}' text-anchor='middle' transform='rotate(-90 14 {middle:.0f})'>"
        "misses</text>"
        f"<text x='{LEFT + SIZE + 12}' y='{TOP + 30}'>dotted: blind guessing</text>"
        f"<text x='{LEFT + SIZE + 12}' y='{TOP + 52}' fill='#2a6f97'>solid: no attacker does better</text>"
        f"<text x='{LEFT + SIZE + 12}' y='{TOP + 74}'>shaded: impossible</text></svg>"
    )
