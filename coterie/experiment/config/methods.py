"""What is wrong with the [[method]] tables of a configuration."""

from __future__ import annotations

from typing import Any

from ...errors import nearest

ORDINALS = ("first", "second", "third")


def method_problems(k: int, table: Any) -> list[str]:
    """Return what is wrong with one table, each problem with its key."""
    if isinstance(table, dict) and "name" not in table:
        which = ORDINALS[k] if k < len(ORDINALS) else f"{k + 1}th"
        return [f'method: the {which} [[method]] has no name; add one, such as name = "local"']
    return [f"method[{k}].{problem}" for problem in _problems_of(table)]


def _problems_of(table: Any) -> list[str]:
    """Return what is wrong with the table of a method, or with the table of the method it comes `after`."""
    from ...methods import METHODS
    from ...protocol.settings import check_setting, settings_of
    from ..notes import BUDGETS

    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        return [f"name: expected the name of a method, got {table!r}"]
    name = table["name"]
    if name not in METHODS:
        return [f"name: unknown method '{name}'; {nearest(name, METHODS)}"]
    settings = settings_of(METHODS[name])
    problems = []
    for key, value in table.items():
        if key == "name":
            continue
        if key == "after":
            problems += [f"after.{problem}" for problem in _problems_of_first(value)]
            continue
        if key == "budgets":
            if not isinstance(value, str) or value not in BUDGETS:
                problems.append(f"budgets: expected one of {', '.join(BUDGETS)}, got {value!r}")
            continue
        if key not in settings:
            known = ", ".join(settings) or "none"
            problems.append(f"{key}: '{name}' has no such setting (it has: {known})")
            continue
        if value == []:
            problems.append(f"{key}: expected at least one value, got an empty list")
        for one in value if isinstance(value, list) else [value]:
            problem = check_setting(key, one, settings[key])
            if problem:
                problems.append(f"{key}: expected {problem.removeprefix(key + ' must be ')}")
    return problems


def _problems_of_first(table: Any) -> list[str]:
    if not isinstance(table, dict):
        return [
            f"name: expected the table of a method, such as {{ name = 'ifca', share = 0.1 }}, got {table!r}"
        ]
    share = table.get("share", 0.1)
    good = isinstance(share, int | float) and not isinstance(share, bool) and 0 < share < 1
    wrong = [] if good else [f"share: expected a share of rounds in (0, 1), got {share!r}"]
    for key in ("after", "budgets"):
        if key in table:
            wrong.append(f"{key}: not allowed here; it belongs to the method that runs after this one")
    rest = {key: value for key, value in table.items() if key not in ("share", "after", "budgets")}
    wrong += [f"{key}: a list is not allowed here" for key, value in rest.items() if isinstance(value, list)]
    return wrong + _problems_of(rest)
