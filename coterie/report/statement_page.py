"""A statement as one page that a person can read and sign."""

from __future__ import annotations

from html import escape
from typing import Any

from ..privacy.accountant import shown
from ..privacy.statement.checklist import UNCOVERED
from .meaning_section import checklist_section, meaning_section
from .statement_doors import door_row, event_row, rounding_lines
from .statement_numbers import adversary_section, headline
from .statement_origin import budget_words, issuer_lines, origin_rows

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
color: #1a1a1a }
h1 { font-size: 1.4rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.4rem 0 .3rem; break-after: avoid }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; break-after: avoid }
.experts { font-size: 1.2rem; margin-top: 2.5rem; border-top: 3px solid #1a1a1a; padding-top: .6rem }
.number { font-size: 2rem; line-height: 1.2; font-weight: 600; margin: .8rem 0 0 }
.second { font-size: 1.25rem; line-height: 1.3; margin: .2rem 0 0 } .small { color: #555; font-size: .9rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .2rem .6rem .2rem 0;
border-bottom: 1px solid #ddd; vertical-align: top }
.facts td { overflow-wrap: anywhere } .facts td:first-child, .facts th:first-child { width: 30% }
tr, li, figure { break-inside: avoid }
.important { font-weight: 600; border-left: 4px solid #1a1a1a; padding-left: .7rem }
figure { margin: 1rem 0; display: flex; flex-wrap: wrap; align-items: center; gap: .5rem 1.5rem }
svg { flex: 1 1 20rem; min-width: 0; max-width: 27rem; height: auto } figcaption { flex: 1 1 13rem }
.numbers td:first-child { width: 45% } .whole { white-space: nowrap }
code { font-size: .85em; word-break: break-all }
.sign { margin-top: 4rem; border-top: 1px solid #888; width: 60% }
@media print { body { margin: 0 } }
"""


def page(content: dict[str, Any]) -> str:
    """Return the page of a statement as HTML: what it means for people first, details for experts last."""
    title = f"Privacy statement for {content['silo']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='small'>Method: {escape(_method(content))}. {content['declared_size']} training"
        f" {'persons' if content['guarantee']['unit'] == 'person' else 'examples'}."
        "</p>",
        *_simulated(content),
        *headline(content),
        *_unprotected(content),
        *meaning_section(content),
        *_budget(budget_words(content)),
        *adversary_section(content),
        f"<h2 id='not-covered'>{UNCOVERED}</h2>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in content["not_covered"]) + "</ul>",
        f"<p>Tuning: {_tuning(content['tuning'])}<br>Randomness: {escape(content['randomness'])}.</p>",
        *checklist_section(content),
        *issuer_lines(content),
        "<h2 class='experts'>For experts</h2>",
        *_definition(content["guarantee"]),
        *_details(content),
        *_ledger(content["ledger"]),
        *_published(content),
        "<h3>Software</h3>",
        f"<p class='small'>{escape(', '.join(f'{k} {v}' for k, v in content['software'].items()))}<br>"
        f"Checksum: <code>{escape(content['checksum'])}</code><br>To check the JSON file next to this page,"
        " run <code>coterie statement verify FILE</code>.</p>",
        *([] if content["ledger"] is None else ["<p class='sign small'>Name, signature by hand</p>"]),
    ]
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n"
        f"<meta name='viewport' content='width=device-width'>\n<title>{escape(title)}</title>\n"
        f"<style>{STYLE}</style>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _budget(words: str) -> list[str]:
    """Return the section about budgets, if there is anything to say."""
    return [f"<h2>Budget</h2><p>{escape(words.strip())}</p>"] if words else []


def _definition(guarantee: dict[str, Any]) -> list[str]:
    """Return how epsilon is defined, and how far the bound may be from the truth."""
    if guarantee["epsilon"] is None:
        return []
    unit = escape(guarantee["unit"])
    lower = f" The true epsilon is at least {_floor(guarantee['lower'])}." if guarantee["lower"] else ""
    return [
        "<h3>What epsilon bounds</h3>",
        f"<p>Epsilon bounds how much anything released can depend on one {unit}, compared with a null {unit}"
        f" in its place that contributes nothing ({escape(guarantee['adjacency'])} adjacency). The second"
        f" line above compares with any other {unit} in its place (replace-one adjacency). The bound of"
        f" the first line: {escape(guarantee['bound'])}.{lower}</p>",
    ]


def _details(content: dict[str, Any]) -> list[str]:
    """Return what experts need to recompute the number: the run, its doors, and what they released."""
    one = "person" if content["guarantee"]["unit"] == "person" else "example"
    doors = [door_row(door, content["merges"], one) for door in content["doors"]]
    events = [event_row(event) for event in content["events"]]
    return [
        "<h3>What it is about</h3>",
        _table(origin_rows(content), kind="facts"),
        "<h3>How the data was used</h3>",
        _table(doors or [("none", "no door was opened")], ("door", "use"), "facts"),
        "<h3>What was released</h3>",
        _table(events or [("none", "nothing was released")], ("mechanism", "releases"), "facts"),
        *rounding_lines(content["grid"]),
    ]


def _simulated(content: dict[str, Any]) -> list[str]:
    """Return the notice, shown above the number, that a simulation protects nobody."""
    if content["ledger"] is not None:
        return []
    return [
        "<p class='important'>This is a simulation: anyone who knows its seed knows the noise. The guarantee"
        " below would hold only for noise that nobody knows. Do not release these results, and do not sign"
        " this page.</p>"
    ]


def _unprotected(content: dict[str, Any]) -> list[str]:
    """Return the notice that names the adversaries against whom the number does not hold."""
    bare = [entry["who"] for entry in content["adversaries"].values() if entry["epsilon"] is None]
    if content["guarantee"]["epsilon"] is None or not bare:
        return []
    return [f"<p class='important'>Nothing protects against {escape(' or against '.join(bare))}.</p>"]


def _floor(value: float) -> str:
    return f"{int(value * 1000) / 1000:.3f}"


def _tuning(tuning: str | dict[str, Any]) -> str:
    if isinstance(tuning, str):
        return f"{escape(tuning)}."
    shape = "" if tuning["shape"] is None else f"shape {tuning['shape']:g} and "
    lines = "".join(f"<li>{escape(line)}</li>" for line in tuning["notes"])
    return (
        f"this model is the best of {tuning['ran']} trials, chosen by scores that are"
        f" {escape(tuning['score'])}. The number of trials was drawn from a {escape(tuning['distribution'])}"
        f" distribution with {shape}mean {tuning['mean']:g}. For anyone who sees only this model, epsilon is"
        f" at most {shown(tuning['epsilon'])}."
        f"<ul>{lines}</ul>"
    )


def _ledger(ledger: dict[str, Any] | None) -> list[str]:
    """Return where the run is in the silo's ledger."""
    if ledger is None:
        return []
    return [
        "<h3>Ledger</h3>",
        f"<p class='small'>File {escape(ledger['file'])}, row {ledger['run']}, head"
        f" <code>{escape(ledger['head'])}</code>.</p>",
    ]


def _published(content: dict[str, Any]) -> list[str]:
    """Return the section about published formulas, which names those below the lower bound."""
    if not content["published"]:
        return []
    rows = [
        (f"{number['formula']} ({number['paper']})", _reported(number["epsilon"]))
        for number in content["published"]
    ]
    return [
        "<h3>What published formulas would report</h3>",
        "<p class='small'>For comparison only: these numbers are not certified.</p>",
        _table(rows, ("formula", "epsilon")),
        *(f"<p class='small'>{escape(line[:1].upper() + line[1:])}.</p>" for line in content["warnings"]),
    ]


def _reported(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else shown(epsilon)


def _table(rows: list[tuple[str, str]], head: tuple[str, str] | None = None, kind: str = "numbers") -> str:
    """Return a table of "numbers", or of "facts", whose second column is wider."""
    top = "" if head is None else "<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table class='{kind}'>{top}{body}</table>"


def _method(content: dict[str, Any]) -> str:
    settings = (f"{key} = {value}" for key, value in content["settings"].items())
    return ", ".join((content["method"], *settings))
