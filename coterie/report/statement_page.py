"""A statement as one page that a person can read and sign."""

from __future__ import annotations

from html import escape
from typing import Any

from ..privacy.accountant import shown
from ..privacy.adversaries import ADVERSARIES
from ..protocol.doors import SOLVE_DUAL, SOLVE_DUAL_WHOLE
from .meaning_section import checklist_section, meaning_section
from .statement_origin import budget_words, issuer_lines, origin_rows

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
color: #1a1a1a }
h1 { font-size: 1.4rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.4rem 0 .3rem }
.number { font-size: 2rem; font-weight: 600; margin: .8rem 0 0 } .small { color: #555; font-size: .9rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .2rem .6rem .2rem 0;
border-bottom: 1px solid #ddd; vertical-align: top }
.important { font-weight: 600; border-left: 4px solid #1a1a1a; padding-left: .7rem }
code { font-size: .85em; word-break: break-all }
.sign { margin-top: 2rem; border-top: 1px solid #888; width: 60% }
@media print { body { margin: 0 } }
"""


def page(content: dict[str, Any]) -> str:
    """Return the page of a statement as HTML."""
    guarantee = content["guarantee"]
    title = f"Privacy statement for {content['silo']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='small'>Method: {escape(_method(content))}. {content['declared_size']} training examples."
        "</p>",
        *_simulated(content),
        *_headline(guarantee, budget_words(content)),
        *_unprotected(content),
        *issuer_lines(content),
        *meaning_section(content),
        "<h2>What it is about</h2>",
        _table(origin_rows(content), ("", "")),
        "<h2>Epsilon against each adversary</h2>",
        _table(
            [(entry["who"], _epsilon(entry["epsilon"])) for entry in content["adversaries"].values()],
            ("adversary", "epsilon at most"),
        ),
        "<h2>How the data was used</h2>",
        _table(
            [_door(door, content["merges"]) for door in content["doors"]] or [("none", "no door was opened")],
            ("door", "use"),
        ),
        "<h2>What was released</h2>",
        _table(
            [_event(event) for event in content["events"]] or [("none", "nothing was released")],
            ("mechanism", "releases"),
        ),
        "<h2>What this statement does not cover</h2>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in content["not_covered"]) + "</ul>",
        f"<p>Tuning: {_tuning(content['tuning'])}<br>Randomness: {escape(content['randomness'])}.</p>",
        *_ledger(content["ledger"]),
        *checklist_section(content),
        *_published(content),
        "<h2>Software</h2>",
        f"<p class='small'>{escape(', '.join(f'{k} {v}' for k, v in content['software'].items()))}<br>"
        f"Checksum: <code>{escape(content['checksum'])}</code><br>To check the JSON file next to this page,"
        " run <code>coterie statement verify FILE</code>.</p>",
        *([] if content["ledger"] is None else ["<p class='sign small'>Name, signature by hand</p>"]),
    ]
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n<title>{escape(title)}</title>\n"
        f"<style>{STYLE}</style>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _simulated(content: dict[str, Any]) -> list[str]:
    """Return the notice, shown above the number, that a simulation protects nobody."""
    if content["ledger"] is not None:
        return []
    return [
        "<p class='important'>This is a simulation: anyone who knows its seed knows the noise. The guarantee"
        " below would hold only for noise that nobody knows. Do not release these results, and do not sign"
        " this page.</p>"
    ]


def _headline(guarantee: dict[str, Any], budget: str) -> list[str]:
    if guarantee["epsilon"] is None:
        return ["<p class='number'>no privacy</p>", "<p>No noise was added that would protect the data.</p>"]
    unit = escape(guarantee["unit"])
    lower = f"The true epsilon is at least {_floor(guarantee['lower'])}. " if guarantee["lower"] else ""
    known = guarantee["replace_one"] is not None
    other = f"epsilon is at most {shown(guarantee['replace_one'])}" if known else "no bound is known"
    return [
        f"<p class='number'>epsilon ≤ {shown(guarantee['epsilon'])} at delta {guarantee['delta']:g}</p>",
        f"<p>{escape(budget)}{lower}The protected unit is one {unit}: epsilon bounds how much the releases"
        f" change if one {unit} is replaced by a null {unit} ({escape(guarantee['adjacency'])} adjacency). If"
        f" one {unit} is replaced by any other, {other}. The guarantee covers"
        f" {escape(guarantee['holds_for'])}.</p>",
    ]


def _unprotected(content: dict[str, Any]) -> list[str]:
    """Return the notice that names the adversaries against whom the number does not hold."""
    bare = [entry["who"] for entry in content["adversaries"].values() if entry["epsilon"] is None]
    if content["guarantee"]["epsilon"] is None or not bare:
        return []
    return [f"<p class='important'>Nothing protects against {escape(' or against '.join(bare))}.</p>"]


def _floor(value: float) -> str:
    return f"{int(value * 1000) / 1000:.3f}"


def _epsilon(value: float | None) -> str:
    if value is None:
        return "none (no protection)"
    return "0 (sees nothing)" if value == 0 else shown(value)


def _door(door: dict[str, Any], merges: dict[str, Any] | None) -> tuple[str, str]:
    if door["door"] == "score":
        tests = f"{door['expected_batch']:g} test examples"
        return "score", f"{door['calls']} noisy sums over all {tests}, each term bounded to [0, 1]"
    if door["door"] == "merge" and merges is not None:
        return "merge", _merge(door, merges)
    if door["door"] == "select":
        return "select", f"{door['calls']} private choices by the noisy number of errors on all examples"
    if door["door"] == SOLVE_DUAL_WHOLE.name and door["clip"] is not None:
        return door["door"], (
            f"{door['calls']} uploads, each clipped to {door['clip']:g} as a whole; one example may change"
            " the whole upload, so the noise is a multiple of twice the clip"
        )
    what = "share of an upload" if door["door"] == SOLVE_DUAL.name else "gradient"
    clip = "not clipped" if door["clip"] is None else f"each example's {what} clipped to {door['clip']:g}"
    sample = f"on all {door['expected_batch']:g} examples"
    if door["sampler"] != "all examples":
        expected = f"expected batch {door['expected_batch']:g}"
        sample = f"{_sampler(door)} samples at rate {door['rate']:.4g} ({expected})"
    return door["door"], f"{door['calls']} calls with {door['steps']} noisy steps each; {sample}; {clip}"


def _sampler(door: dict[str, Any]) -> str:
    sampler: str = door["sampler"]
    return {"poisson": "Poisson", "fixed": "fixed-size"}.get(sampler, sampler)


def _merge(door: dict[str, Any], merges: dict[str, Any]) -> str:
    """Return how the uploads were merged."""
    clip = "not clipped" if door["clip"] is None else f"clipped to {door['clip']:g}"
    if merges["quantile"] is not None:
        clip += f" at first, then to a noisy {merges['quantile']:g}-quantile of their lengths"
    noise = {
        "server": "the server adds noise to the sum",
        "silos": "each silo adds noise",
        "secure": "each silo adds a part of the noise, and the server sees only the sum, of at least"
        f" {round(door['expected_batch']) - merges['dropouts']} uploads",
    }[merges["noise_by"]]
    fixed = f"{door['expected_batch']:g}, or all {merges['silos']}"
    rest = f"the sum is divided by a fixed number ({fixed}), however many silos take part"
    if merges["mixed"]:
        rest = "the sums are mixed by a public matrix"
    drawn = "all silos, every time"
    if door["rate"] < 1:
        drawn = f"{_sampler(door)} draws at rate {door['rate']:.4g}"
    return (
        f"at most {door['calls']} uploads, {clip}; each is added to those of the round's other silos"
        f" ({drawn}); {noise}; {rest}"
    )


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
    if ledger is None:
        return []
    head = ("adversary", "epsilon at most")
    parts = [
        "<h2>Ledger</h2>",
        f"<p class='small'>File {escape(ledger['file'])}, row {ledger['run']}, head"
        f" <code>{escape(ledger['head'])}</code>. All runs on this data set so far have spent:</p>",
        _table(_totals(ledger["total"]), head),
    ]
    if ledger.get("as_example") is not None:
        parts.append(
            "<p class='small'>For each single example, including runs that protect only examples:</p>"
        )
        parts.append(_table(_totals(ledger["as_example"]), head))
    return parts


def _totals(totals: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a ledger's totals."""
    return [
        (
            ADVERSARIES.get(name, name),
            "none (no protection)" if total["epsilon"] is None else shown(total["epsilon"]),
        )
        for name, total in totals.items()
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
        "<h2>What published formulas would report</h2>",
        "<p class='small'>For comparison only: these numbers are not certified.</p>",
        _table(rows, ("formula", "epsilon")),
        *(f"<p class='small'>{escape(line[:1].upper() + line[1:])}.</p>" for line in content["warnings"]),
    ]


def _reported(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else shown(epsilon)


def _table(rows: list[tuple[str, str]], head: tuple[str, str]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _event(event: dict[str, Any]) -> tuple[str, str]:
    scale = {"gaussian": "multiplier", "laplace": "scale", "selection": "scale"}[event["mechanism"]]
    often = f"{event['count']:,} at rate {event['rate']:.4g}"
    return event["mechanism"], f"{often}, with noise {scale} {event['noise']:.4g}"


def _method(content: dict[str, Any]) -> str:
    settings = (f"{key} = {value}" for key, value in content["settings"].items())
    return ", ".join((content["method"], *settings))
