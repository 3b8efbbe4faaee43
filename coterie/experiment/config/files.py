"""Files that a configuration refers to, and changes to it from the command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ...errors import Problem
from ...privacy.preferences import read_budgets


def find_beside(content: dict[str, Any], folder: Path) -> None:
    """Resolve file names relative to the current directory or to the configuration's folder, in place."""
    methods = content.get("method")
    for table in methods if isinstance(methods, list) else []:
        named = table.get("relations") if isinstance(table, dict) else None
        if isinstance(named, list):
            table["relations"] = [_beside(name, folder) for name in named]
        elif named is not None:
            table["relations"] = _beside(named, folder)
    model = content.get("model")
    if isinstance(model, dict) and "start" in model:
        content["model"] = {**model, "start": _beside(model["start"], folder)}
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


def place_ledger(content: dict[str, Any], folder: Path) -> None:
    """Make the paths of ledgers, keys and witness absolute, in place; a relative one starts in a folder.

    Wherever a command is called from, the same file means the same ledgers.
    """
    privacy = content.get("privacy")
    for key in ("ledger", "keys", "witness"):
        named = privacy.get(key) if isinstance(privacy, dict) else None
        if isinstance(privacy, dict) and isinstance(named, str):
            content["privacy"] = privacy = {
                **privacy, key: str((folder / Path(named).expanduser()).absolute())
            }  # fmt: skip


def _beside(named: Any, folder: Path) -> Any:
    if isinstance(named, str) and not Path(named).exists() and (folder / named).exists():
        return str((folder / named).resolve())
    return named


def read_budget_files(content: dict[str, Any], folder: Path) -> None:
    """Replace references to budget files by their numbers, so that the resolved configuration holds them.

    Deltas come from the file if the configuration has none; raise `Problem` if both have them.
    """
    privacy = content.get("privacy")
    if not isinstance(privacy, dict) or "epsilon" not in privacy:
        return
    deltas: list[dict[str, float]] = []

    def numbers(value: Any) -> Any:
        if isinstance(value, list):
            return [numbers(each) for each in value]
        if not isinstance(value, dict) or not isinstance(value.get("file"), str) or len(value) > 1:
            return value
        named = Path(value["file"])
        place = named if named.exists() else folder / named
        from_file = read_budgets(place, "delta")
        if from_file and from_file not in deltas:
            deltas.append(from_file)
        return read_budgets(place)

    content["privacy"] = privacy = {**privacy, "epsilon": numbers(privacy["epsilon"])}
    if deltas and ("delta" in privacy or len(deltas) > 1):
        raise Problem(
            "privacy.delta: given more than once; keep one, in the configuration or in a budget file"
        )
    if deltas:
        privacy["delta"] = deltas[0]


def apply_change(content: dict[str, Any], change: str) -> None:
    """Apply one `key=value`, in place; `method.KEY` changes every method that has KEY."""
    key, equals, text = change.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) < 2 or not all(path):
        raise Problem(f"--set: expected key=value with a dotted key, such as train.rounds=10, got '{change}'")
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
        raise Problem(f"--set: no method in the file has a setting '{'.'.join(path[1:])}'")
    for table in having:
        table[path[1]] = value
