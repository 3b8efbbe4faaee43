"""The part of a statement's page that says what epsilon means: in odds, as a picture, and as a checklist."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from ..privacy.accountant import shown
from ..privacy.events import Event
from ..privacy.meaning import Meaning, meaning_lines, meaning_of
from ..privacy.statement.checklist import GUIDELINE, UNCOVERED, checklist
from ..privacy.statement.delta_words import delta_warning, delta_words
from ..privacy.tradeoff import TradeOff

SIZE = 290  # of the picture, in pixels, without its margins
LEFT, TOP, RIGHT, BELOW = 52, 34, 18, 118
CAPTION = {
    unit: f"How often anyone must be wrong who tries to tell whether {what}. A false alarm says yes although"
    " the truth is no; a miss says no although the truth is yes. The solid line is the best anyone can do."
    for unit, what in (
        ("example", "your record was used"),
        ("person", "your records were used"),
        ("silo", "your silo took part"),
    )
}
TITLE = "How often any attacker must be wrong"
PROTECTS = {
    "example": "This statement protects single examples: each is one row of the silo's data. A person with"
    " several rows is protected less.",
    "person": "This statement protects persons: all rows of one person in this silo at once.",
    "silo": "This statement protects the whole silo: all of its data at once.",
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
    unit = content["guarantee"]["unit"]
    lines, warning = meaning_lines(meaning, unit), delta_warning(content)
    covered = f"The guarantee covers {content['guarantee']['holds_for']}."
    return [
        "<h2>What this means</h2>",
        f"<p class='important'>{_text(lines[0])}</p>",
        *(f"<p>{_text(line)}</p>" for line in lines[1:]),
        f"<p>{_text(PROTECTS[unit])} {_text(covered)}</p>",
        *_several(content["guarantee"]),
        f"<p>{_text(delta_words(content))}</p>",
        *([f"<p class='important'>{_text(warning)}</p>"] if warning else []),
        f"<figure>{picture(meaning.curve)}",
        f"<figcaption class='small'>{_text(CAPTION[unit])}</figcaption></figure>",
    ]


def _several(said: dict[str, Any]) -> list[str]:
    """Return what a person spends who has rows in several silos, as HTML; nothing in other units."""
    totals = said.get("several_silos") or {}
    if not totals:
        return []
    each = " and ".join(f"{shown(epsilon)} in {silos} silos" for silos, epsilon in totals.items())
    return [
        "<p>A person with rows in several silos is protected by each silo's noise, but what the silos release"
        f" adds up. If every silo releases what this one does, epsilon is at most {escape(each)}.</p>"
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
    """Return an answer as HTML, with commands set as such and the list of what is not covered linked."""
    linked = escape(answer).replace(
        escape(f"'{UNCOVERED}'"), f"<a href='#not-covered'>{escape(UNCOVERED)}</a>"
    )
    return re.sub("`([^`]*)`", r"<code>\1</code>", linked)


def picture(curve: TradeOff) -> str:
    """Return a trade-off curve as SVG: the misses of an attacker at each share of false alarms, at least."""
    points = " ".join(map(_place, curve.type_one.tolist(), curve.type_two.tolist()))
    below = f"{_place(0, 0)} {points} {_place(1, 0)}"
    ticks = "".join(
        f"<text x='{LEFT + SIZE * share:.0f}' y='{TOP + SIZE + 17}' text-anchor='middle'>{share:.0%}</text>"
        f"<text x='{LEFT - 6}' y='{TOP + SIZE * (1 - share) + 4:.0f}' text-anchor='end'>{share:.0%}</text>"
        for share in (0.0, 0.5, 1.0)
    )
    middle, wide, high = TOP + SIZE / 2, LEFT + SIZE + RIGHT, TOP + SIZE + BELOW
    return (
        f"<svg role='img' viewBox='0 0 {wide} {high}' font-size='13'"
        " font-family='system-ui, sans-serif' fill='#333'>"
        f"<title>{TITLE}</title>"
        f"<text x='4' y='18' font-size='15' font-weight='600'>{TITLE}</text>"
        f"<polygon points='{below}' fill='#dce7ee'/>"
        f"<polyline points='{points}' fill='none' stroke='#2a6f97' stroke-width='2.5'/>"
        f"<polyline points='{_place(0, 1)} {_place(1, 0)}' fill='none' stroke='#333' stroke-dasharray='2 4'/>"
        f"<polyline points='{_place(0, 1)} {_place(0, 0)} {_place(1, 0)}' fill='none' stroke='#888'/>{ticks}"
        f"<text x='{LEFT + SIZE / 2:.0f}' y='{TOP + SIZE + 36}' text-anchor='middle'>false alarms</text>"
        f"<text x='14' y='{middle:.0f}' text-anchor='middle' transform='rotate(-90 14 {middle:.0f})'>"
        f"misses</text>{_legend(TOP + SIZE + 62)}</svg>"
    )


def _place(x: float, y: float) -> str:
    """Return where a point of the unit square is in the picture."""
    return f"{LEFT + SIZE * x:.1f},{TOP + SIZE * (1 - y):.1f}"


def _legend(top: float) -> str:
    """Return three lines below the drawing that say what is drawn."""
    samples = (
        (
            "<line x1='{x}' y1='{y}' x2='{end}' y2='{y}' stroke='#2a6f97' stroke-width='2.5'/>",
            "no attack does better",
        ),
        (
            "<line x1='{x}' y1='{y}' x2='{end}' y2='{y}' stroke='#333' stroke-dasharray='2 4'/>",
            "blind guessing",
        ),
        ("<rect x='{x}' y='{box}' width='28' height='13' fill='#dce7ee'/>", "impossible for any attack"),
    )
    return "".join(
        sample.format(x=LEFT, end=LEFT + 28, y=y, box=y - 7)
        + f"<text x='{LEFT + 38}' y='{y + 4}'>{words}</text>"
        for (sample, words), y in zip(samples, (top, top + 20, top + 40), strict=True)
    )
