"""What a [data] table says about the columns of a file: how missing values, words and dates become numbers.

All of it is public: it is written down before anybody looks at the data. So the columns that a model gets
depend on the rules and on the names of the columns, not on which values some silo happens to have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import Problem, nearest, shown
from .dates import Dates, dates_of

REFUSE, INDICATOR, MEDIAN = "refuse", "indicator", "public-median"
WORDS = (REFUSE, INDICATOR, MEDIAN)
DEFAULT = "default"  # the key of a table that stands for all columns that it does not name
RULES = ("keep", "missing", "medians", "categories", "unknown", "dates")  # the keys of a [data] table
UNKNOWN = ("other", "refuse")
# What pandas takes for a missing value in a CSV file, unless a vocabulary names it.
MISSING_WORDS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A",
    "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """The rules of a [data] table; `rules_of` makes them from its keys.

    `missing` says what a missing value becomes, for each column or by default: "refuse", "indicator", a value
    or "public-median", which stands for the column's number in `medians`. `categories` are public
    vocabularies, and `unknown` says what a value outside them becomes. `dates` are columns of dates. `keep`
    are columns that are features although they look like ids; so are those `wanted` with public bounds.
    """

    keep: tuple[str, ...] = ()
    missing: Mapping[str, str | float] = field(default_factory=dict)
    medians: Mapping[str, float] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: str = "other"
    dates: Mapping[str, Dates] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    with_ids: bool = False

    @property
    def as_written(self) -> dict[str, tuple[str, ...]]:
        """The columns whose text is taken as it is written in a file, each with its vocabulary."""
        return {**self.categories, **dict.fromkeys(self.dates, ())}

    def names(self) -> Iterable[tuple[str, str]]:
        """Return every column that the rules name, after the key that names it."""
        for key in ("keep", "missing", "medians", "categories", "dates"):
            yield from ((key, name) for name in getattr(self, key) if (key, name) != ("missing", DEFAULT))

    def check_unused(self, what: str) -> None:
        """Raise `Problem` if there are rules for columns, for data without names of columns."""
        keys = list(dict.fromkeys(key for key, _ in self.names()))
        if self.missing.get(DEFAULT, REFUSE) != REFUSE:
            keys.append("missing")
        if keys:
            raise Problem(f"data.{keys[0]}: '{what}' has no columns with names: leave it out")

    def asked(self, bounds: Any, scales: Any, features: Any) -> Rules:
        """Return the rules for the bounds, the scales and the kind of features that are asked for, too.

        Columns with bounds or scales of their own are no ids; where features are ids, all are wanted.
        """
        tables = [each for each in (bounds, scales) if isinstance(each, Mapping)]
        named = tuple(str(name) for each in tables for name in each)
        return replace(self, wanted=named, with_ids=features == "ids")

    def missing_in(self, name: str, number: bool) -> tuple[str, float | str | None]:
        """Return the rule for missing values of one column, and the value they become if there is one."""
        rule = self.missing.get(name, self.missing.get(DEFAULT, REFUSE))
        if rule == MEDIAN:
            return (MEDIAN, self.medians.get(name)) if number else (REFUSE, None)
        if rule == INDICATOR:
            return INDICATOR, self.medians.get(name) if number else None
        if rule == REFUSE:
            return REFUSE, None
        if name in self.missing or number:
            return "value", rule
        return REFUSE, None  # a number for all columns is no word


def rules_of(
    keep: Any = (),
    missing: Any = REFUSE,
    medians: Any = None,
    categories: Any = None,
    unknown: Any = "other",
    dates: Any = None,
) -> Rules:
    """Return checked rules; raise one `Problem` that names everything wrong with them."""
    problems: list[str] = []
    if isinstance(keep, str) or not isinstance(keep, Sequence) or not all(isinstance(k, str) for k in keep):
        problems.append(f"data.keep: expected a list of columns, got {shown(keep)}")
        keep = ()
    if unknown not in UNKNOWN:
        problems.append(f"data.unknown: expected 'other' or 'refuse', got {shown(unknown)}")
    rules = Rules(
        tuple(keep),
        _missing(missing, problems),
        _medians({} if medians is None else medians, problems),
        _categories({} if categories is None else categories, problems),
        str(unknown),
        dates_of({} if dates is None else dates, problems),
    )
    for name in sorted(set(rules.categories) & set(rules.dates)):
        problems.append(f"data.dates: '{name}' has data.categories too: leave out one of the two")
    if problems:
        raise Problem("\n".join(problems))
    return rules


def _missing(given: Any, problems: list[str]) -> dict[str, str | float]:
    """Return the rule of each column named, and that of all others as `DEFAULT`."""
    rules = given if isinstance(given, Mapping) else {DEFAULT: given}
    for name, rule in rules.items():
        where = "data.missing" if not isinstance(given, Mapping) else f"data.missing.{name}"
        if isinstance(rule, str) and (name != DEFAULT or rule in WORDS):
            continue
        if isinstance(rule, str):
            problems.append(f"{where}: unknown choice '{rule}'; {nearest(rule, WORDS)}")
        elif not _is_number(rule):
            problems.append(
                f"{where}: expected 'refuse', 'indicator', 'public-median' or a value, got {rule!r}"
            )
    return {str(name): rule for name, rule in rules.items()}


def _medians(given: Any, problems: list[str]) -> dict[str, float]:
    if not isinstance(given, Mapping):
        problems.append(f"data.medians: expected a table, a number for each column, got {shown(given)}")
        return {}
    for name, value in given.items():
        if not _is_number(value):
            problems.append(f"data.medians.{name}: expected a finite number, got {value!r}")
    return {str(name): float(value) for name, value in given.items() if _is_number(value)}


def _categories(given: Any, problems: list[str]) -> dict[str, tuple[str, ...]]:
    if not isinstance(given, Mapping):
        problems.append(
            f"data.categories: expected a table, a list of values for each column, got {shown(given)}"
        )
        return {}
    found = {}
    for name, values in given.items():
        where = f"data.categories.{name}"
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            problems.append(f"{where}: expected a list with at least one value, got {shown(values)}")
            continue
        words = tuple(str(value) for value in values)
        if not all(isinstance(value, str | int) for value in values):
            problems.append(f"{where}: expected texts or whole numbers, got {shown(list(values))}")
        if twice := next((word for word in words if words.count(word) > 1), None):
            problems.append(f"{where}: '{twice}' is listed twice")
        found[str(name)] = words
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
