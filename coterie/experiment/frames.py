"""Results and plans as pandas frames, and as small tables of text and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class Row(NamedTuple):
    """One row of a frame: the run it belongs to, and its facts."""

    run: int
    method: str
    settings: dict[str, Any]
    seed: int
    facts: dict[str, Any]


def make_frame(rows: Sequence[Row], columns: Sequence[str]) -> pd.DataFrame:
    """Return a frame with the run, its method, its settings and its seed, then the `columns` of facts.

    A setting with the name of another column is called "NAME (setting)".
    """
    import pandas as pd

    taken = ("run", "method", "seed", *columns)
    names = dict.fromkeys(key for row in rows for key in row.settings)
    called = {key: f"{key} (setting)" if key in taken else key for key in names}
    cells = [
        [
            row.run,
            row.method,
            *(row.settings.get(key) for key in names),
            row.seed,
            *(row.facts[c] for c in columns),
        ]
        for row in rows
    ]
    return pd.DataFrame(cells, columns=["run", "method", *called.values(), "seed", *columns])


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first row is the header; numbers are right-aligned."""
    wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(w) if k else cell.ljust(w) for k, (cell, w) in enumerate(zip(row, wide, strict=True))
        )
        for row in rows
    ]


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the same table as HTML, for notebooks."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_page(title: str, rows: Sequence[Sequence[str]], remarks: Sequence[str]) -> str:
    """Return a title, a table and remarks below it as HTML, for notebooks."""
    below = "".join(f"<p><small>{escape(line)}</small></p>" for line in remarks)
    return f"<p><b>{escape(title)}</b></p>{html_table(rows)}{below}"


def counted(number: int, word: str) -> str:
    """Return a number with a word in the singular or plural.

    >>> counted(1, "run"), counted(3, "silo")
    ('1 run', '3 silos')
    """
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
