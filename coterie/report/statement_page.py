"""A statement as one page that a person can read and sign."""

from __future__ import annotations

from html import escape
from typing import Any

from ..privacy.accountant import shown
from ..protocol.doors import SOLVE_DUAL, SOLVE_DUAL_WHOLE

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
color: #1a1a1a }
h1 { font-size: 1.4rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.4rem 0 .3rem }
.number { font-size: 2rem; font-weight: 600; margin: .8rem 0 0 } .small { color: #555; font-size: .9rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .2rem .6rem .2rem 0;
border-bottom: 1px solid #ddd; vertical-align: top } .warning { color: #a11; font-weight: 600 }
code { font-size: .85em; word-break: break-all }
.sign { margin-top: 2rem; border-top: 1px solid #888; width: 60% }
@media print { body { margin: 0 } }
"""


def page(content: dict[str, Any]) -> str:
    """Give the page of a statement."""
    said = content["guarantee"]
    title = f"Privacy statement of {content['silo']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class='small'>method {escape(_method(content))}; {content['declared_size']} training examples"
        "</p>",
        *_simulated(content),
        *_headline(said),
        *_unprotected(content),
        "<h2>Against whom</h2>",
        _table(
            [(entry["who"], _epsilon(entry["epsilon"])) for entry in content["adversaries"].values()],
            ("who", "epsilon at most"),
        ),
        "<h2>What was done</h2>",
        _table(
            [_door(door, content["merges"]) for door in content["doors"]] or [("no door was opened", "")],
            ("door", "how"),
        ),
        "<h2>What was released</h2>",
        _table(
            [_event(event) for event in content["events"]] or [("nothing", "")], ("mechanism", "how often")
        ),
        "<h2>What papers would report</h2>",
        _table(
            [(f"{p['formula']} ({p['paper']})", _epsilon(p["epsilon"])) for p in content["published"]],
            ("formula", "epsilon"),
        )
        if content["published"]
        else "<p class='small'>No published formula applies.</p>",
        *(f"<p class='warning'>{escape(line)}</p>" for line in content["warnings"]),
        "<h2>Not covered</h2>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in content["not_covered"]) + "</ul>",
        f"<p>Tuning: {_tuning(content['tuning'])}<br>Randomness: {escape(content['randomness'])}.</p>",
        *_ledger(content["ledger"]),
        "<h2>Software</h2>",
        f"<p class='small'>{escape(', '.join(f'{k} {v}' for k, v in content['software'].items()))}<br>"
        f"checksum <code>{escape(content['checksum'])}</code>; check the JSON file with"
        " <code>coterie statement verify FILE</code></p>",
        *([] if content["ledger"] is None else ["<p class='sign small'>date, name, signature</p>"]),
    ]
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang='en'>\n<meta charset='utf-8'>\n<title>{escape(title)}</title>\n"
        f"<style>{STYLE}</style>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _simulated(content: dict[str, Any]) -> list[str]:
    """Say above the number that a simulation protects nobody."""
    if content["ledger"] is not None:
        return []
    return [
        "<p class='warning'>A simulation: whoever knows its seed knows the noise. What follows would hold for"
        " noise that nobody knows; it is not for release, nor to be signed.</p>"
    ]


def _headline(said: dict[str, Any]) -> list[str]:
    if said["epsilon"] is None:
        return ["<p class='number'>no privacy</p>", "<p>No noise that protects was added.</p>"]
    # of a noise that was given the budget is what it came to
    budget = f"of a budget of {said['budget']:g}. " if said["budget"] != said["epsilon"] else ""
    return [
        f"<p class='number'>epsilon ≤ {shown(said['epsilon'])} at delta {said['delta']:g}</p>",
        f"<p>{budget}No less than {_floor(said['lower'])} is true."
        f" The unit is one {escape(said['unit'])}; adjacency is {escape(said['adjacency'])}"
        f" ({'an' if said['unit'] == 'example' else 'a'} {escape(said['unit'])} replaced by a null one). For"
        " one replaced by any other the bound is"
        f" {_known(said['replace_one'])}. It holds for {escape(said['holds_for'])}.</p>",
    ]


def _unprotected(content: dict[str, Any]) -> list[str]:
    """Say beside the number against whom it does not hold."""
    bare = [entry["who"] for entry in content["adversaries"].values() if entry["epsilon"] is None]
    if content["guarantee"]["epsilon"] is None or not bare:
        return []
    return [f"<p class='warning'>Nothing protects against {escape('; nor against '.join(bare))}.</p>"]


def _known(value: float | None) -> str:
    return "not known" if value is None else shown(value)


def _floor(value: float) -> str:
    return f"{int(value * 1000) / 1000:.3f}"


def _epsilon(value: float | None) -> str:
    if value is None:
        return "none: nothing protects"
    return "0: sees nothing" if value == 0 else shown(value)


def _door(door: dict[str, Any], merges: dict[str, Any] | None) -> tuple[str, str]:
    if door["door"] == "score":
        tests = f"{door['expected_batch']:g} test examples"
        return "score", f"{door['calls']} noisy sums over all {tests}, each bounded to [0, 1]"
    if door["door"] == "merge" and merges is not None:
        return "merge", _merge(door, merges)
    if door["door"] == "select":
        return "select", f"{door['calls']} private choices by noisy numbers of errors of all examples"
    if door["door"] == SOLVE_DUAL_WHOLE.name and door["clip"] is not None:
        return door["door"], (
            f"{door['calls']} uploads, each clipped to {door['clip']:g} as a whole; one example may change"
            " all of it, so noise is a multiple of twice the clip"
        )
    what = "part in an upload" if door["door"] == SOLVE_DUAL.name else "gradient"
    clip = "not clipped" if door["clip"] is None else f"each example's {what} clipped to {door['clip']:g}"
    return (
        door["door"],
        f"{door['calls']} calls of {door['steps']} noisy steps; {door['sampler']} samples at rate"
        f" {door['rate']:.4g} (expected batch {door['expected_batch']:g}); {clip}",
    )


def _merge(door: dict[str, Any], merges: dict[str, Any]) -> str:
    """Say how uploads are merged."""
    clip = "not clipped" if door["clip"] is None else f"clipped to {door['clip']:g}"
    if merges["quantile"] is not None:
        clip += f" at first, then to a noisy {merges['quantile']:g}-quantile of their lengths"
    who = "the server adds noise to the sum" if merges["noise_by"] == "server" else "each silo adds noise"
    fixed = f"{door['expected_batch']:g} or all {merges['silos']}"
    rest = f"divided by a fixed number ({fixed}), however many come"
    if merges["mixed"]:
        rest = "mixed by a public matrix"
    drawn = "all silos, every time"
    if door["rate"] < 1:
        drawn = f"{door['sampler']} draws at rate {door['rate']:.4g}"
    return (
        f"{door['calls']} uploads at most, {clip}, each added to those of the round's silos ({drawn}); {who};"
        f" sums are {rest}"
    )


def _tuning(tuning: str | dict[str, Any]) -> str:
    if isinstance(tuning, str):
        return f"{escape(tuning)}."
    shape = "" if tuning["shape"] is None else f" of shape {tuning['shape']:g}"
    lines = "".join(f"<li>{escape(line)}</li>" for line in tuning["notes"])
    return (
        f"the best of {tuning['ran']} trials, their number drawn from a {escape(tuning['distribution'])}"
        f" distribution{shape} with mean {tuning['mean']:g}, chosen by scores that are"
        f" {escape(tuning['score'])}: epsilon at most {shown(tuning['epsilon'])} for the chosen model."
        f"<ul>{lines}</ul>"
    )


def _ledger(ledger: dict[str, Any] | None) -> list[str]:
    if ledger is None:
        return []
    parts = [
        "<h2>Ledger</h2>",
        f"<p class='small'>{escape(ledger['file'])}, row {ledger['run']}, head <code>{escape(ledger['head'])}"
        "</code>. Spent of this data set by all runs so far:</p>",
        _table(_totals(ledger["total"]), ("against", "epsilon at most")),
    ]
    if ledger.get("as_example") is not None:
        parts.append("<p class='small'>The same for each of its examples, other runs included:</p>")
        parts.append(_table(_totals(ledger["as_example"]), ("against", "epsilon at most")))
    return parts


def _totals(totals: dict[str, Any]) -> list[tuple[str, str]]:
    """Give the rows of a ledger's totals; where nothing protects there is none."""
    return [
        (name, "none" if total["epsilon"] is None else shown(total["epsilon"]))
        for name, total in totals.items()
    ]


def _table(rows: list[tuple[str, str]], head: tuple[str, str]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _event(event: dict[str, Any]) -> tuple[str, str]:
    what = {"gaussian": "multiplier", "laplace": "scale", "selection": "scale"}[event["mechanism"]]
    often = f"{event['count']:,} times at rate {event['rate']:.4g}"
    return event["mechanism"], f"{often}, noise {what} {event['noise']:.4g}"


def _method(content: dict[str, Any]) -> str:
    settings = (f"{key} = {value}" for key, value in content["settings"].items())
    return ", ".join((content["method"], *settings))
