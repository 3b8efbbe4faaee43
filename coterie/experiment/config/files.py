"""What a configuration file refers to, and changes of it from the command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ...errors import Problem
from ...privacy.preferences import read_budgets


def find_beside(content: dict[str, Any], folder: Path) -> None:
    """Let files be named from where one stands or from beside the configuration; keep the whole path."""
    methods = content.get("method")
    for table in methods if isinstance(methods, list) else []:
        named = table.get("relations") if isinstance(table, dict) else None
        if isinstance(named, list):
            table["relations"] = [_beside(one, folder) for one in named]
        elif named is not None:
            table["relations"] = _beside(named, folder)
    data = content.get("data")
    source = data.get("source") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(source, str):
        return
    if not (Path(source).suffix or "/" in source):
        return
    for place in (Path(source), folder / source):
        if place.exists():
            content["data"] = {**data, "source": str(place.resolve())}
            return


def _beside(named: Any, folder: Path) -> Any:
    if isinstance(named, str) and not Path(named).exists() and (folder / named).exists():
        return str((folder / named).resolve())
    return named


def read_budget_files(content: dict[str, Any], folder: Path) -> None:
    """Put the numbers of budget files in their place, so that the resolved configuration holds them.

    Deltas of the file are taken where the configuration gives none; both are refused.
    """
    privacy = content.get("privacy")
    if not isinstance(privacy, dict) or "epsilon" not in privacy:
        return
    deltas: list[dict[str, float]] = []

    def numbers(value: Any) -> Any:
        if isinstance(value, list):
            return [numbers(one) for one in value]
        if not isinstance(value, dict) or not isinstance(value.get("file"), str) or len(value) > 1:
            return value
        named = Path(value["file"])
        place = named if named.exists() else folder / named
        found = read_budgets(place, "delta")
        if found and found not in deltas:
            deltas.append(found)
        return read_budgets(place)

    content["privacy"] = privacy = {**privacy, "epsilon": numbers(privacy["epsilon"])}
    if deltas and ("delta" in privacy or len(deltas) > 1):
        raise Problem("privacy.delta: given more than once: keep one, in the configuration or a budget file")
    if deltas:
        privacy["delta"] = deltas[0]


def apply_change(content: dict[str, Any], change: str) -> None:
    """Apply one `key=value`; `method.KEY` goes to every method that has KEY."""
    key, equals, text = change.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) < 2 or not all(path):
        raise Problem(f"--set: expected key=value with a dotted key, as train.rounds=10, got '{change}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    if path[0] != "method":
        table = content
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise Problem(f"--set: '{key}' is not a key of a table")
        table[path[-1]] = value
        return
    from ...methods import METHODS
    from ...protocol.settings import settings_of

    tables = content.get("method", [])
    having = [
        table
        for table in tables
        if isinstance(table, dict)
        and table.get("name") in METHODS
        and path[-1] in ("budgets", *settings_of(METHODS[table["name"]]))
    ]
    if len(path) != 2 or not having:
        raise Problem(f"--set: no method of the file has a setting '{'.'.join(path[1:])}'")
    for table in having:
        table[path[1]] = value
