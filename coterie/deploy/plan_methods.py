"""The [[method]] tables of a plan: they hold what a method needs, never the name of a file.

A guard must not open a file because a plan names it: what it says about the file would tell others what the
file holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import Problem
from ..methods import METHODS
from ..protocol.settings import settings_of


def _readable(methods: Any) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield each (table, key, setting) whose value is read from a file or a table."""
    tables = [table for table in methods if isinstance(table, dict)] if isinstance(methods, list) else []
    tables += [table["after"] for table in tables if isinstance(table.get("after"), dict)]
    for table in tables:
        kind = METHODS.get(str(table.get("name")))
        for key, field in settings_of(kind).items() if kind is not None else ():
            if key in table and "read" in field.metadata:
                yield table, key, field


def with_contents(methods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tables with the contents of the files that they name."""
    tables = [
        {**table, "after": dict(table["after"])} if "after" in table else dict(table) for table in methods
    ]
    for table, key, field in list(_readable(tables)):
        if isinstance(table[key], list):
            raise Problem("a plan is one run: one method, one value for every setting, and one seed")
        table[key] = field.metadata["plain"](field.metadata["read"](table[key]))
    return tables


def check_contents(methods: Any) -> None:
    """Raise `Problem` if a plan names a file where it must hold the contents."""
    for table, key, _ in _readable(methods):
        if not isinstance(table[key], dict):
            raise Problem(
                f"the plan: method.{key}: expected a table, because a guard opens no file that a plan names"
            )
