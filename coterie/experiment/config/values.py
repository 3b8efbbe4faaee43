"""What values of a configuration's keys may be: each check fails with a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from ...data.sources.dates import written_dates
from ...data.sources.rules import rules_of
from ...errors import Problem
from ...measures.catalogue import KEY, unknown_metric
from ...privacy.preferences import check_preference
from ...tasks.losses import LOSSES
from ...tasks.settings import BALANCED, unknown_loss

MOST_SEEDS = 10_000
WHOLE = "coterie-whole"  # the kind of an error whose lines name their keys themselves


def _fail(text: str) -> PydanticCustomError:
    return PydanticCustomError("coterie", "{text}", {"text": text})


def _number(value: Any, low: float, high: float, finite: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return False
    return low < value < high or (value == math.inf and not finite)


def _swept(
    low: float, high: float, finite: bool, lists: bool, words: str, drawn: bool = False, auto: bool = False
) -> Any:
    """Return a validator that accepts a number, a table of numbers by silo or, with `lists`, a list of these.

    With `drawn`, it also accepts the name of a preference from which budgets are drawn, with `auto` "auto".
    """

    def check(value: Any, nested: bool = False) -> Any:
        if lists and not nested and isinstance(value, Sequence) and not isinstance(value, str):
            if not value:
                raise _fail("expected at least one value, got an empty list")
            return [check(v, True) for v in value]
        if auto and value == "auto":
            return value
        if drawn and isinstance(value, str):
            try:
                check_preference(value)
            except Problem as problem:
                raise _fail(str(problem)) from problem
            return value
        numbers = [value]
        if isinstance(value, Mapping):
            numbers = value["each"] if isinstance(value.get("each"), list) else list(value.values())
            if not numbers:
                raise _fail("expected a number for each silo, got an empty table")
        for number in numbers:
            if not _number(number, low, high, finite):
                raise _fail(f"expected {words}, got {number!r}")
        return value

    return AfterValidator(check)


Epsilon = Annotated[Any, _swept(0, math.inf, False, True, "a number > 0 (inf: no privacy)", drawn=True)]
Delta = Annotated[Any, _swept(0, 1, True, False, "a number between 0 and 1")]
Rate = Annotated[Any, _swept(0, math.inf, True, True, "a finite number > 0 or 'auto'", auto=True)]
Positive = Annotated[Any, _swept(0, math.inf, True, True, "a finite number > 0")]


def _chance(value: Any) -> Any:
    """Return a probability, or a table of them by silo; fail for anything else."""
    numbers = [value]
    if isinstance(value, Mapping):
        numbers = value["each"] if isinstance(value.get("each"), list) else list(value.values())
    for number in numbers:
        good = isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 1
        if not good:
            raise _fail(f"expected a number from 0 to 1, or one for each silo, got {number!r}")
    return value


Chance = Annotated[Any, AfterValidator(_chance)]


def bytes_of(value: Any) -> int:
    """Return a memory size in bytes, from a number or from text such as "512MB" or "2 GiB"."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmg]?)i?b?\s*", str(value).lower())
    if not match or isinstance(value, bool):
        raise _fail(f'expected a size such as "1GB", got {value!r}')
    power = {"": 0, "k": 1, "m": 2, "g": 3}[match[2]]
    return int(float(match[1]) * 1024**power)


def seeds(value: Any) -> list[int]:
    """Return a list of seeds, from their number (counted from 0) or from a list."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_SEEDS:
        return list(range(value))
    whole = isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)
    if not whole or not value or len(set(value)) != len(value):
        raise _fail(
            f"expected the number of seeds, or a list of different whole numbers >= 0 (at most {MOST_SEEDS}),"
            f" got {value!r}"
        )
    return list(value)


def share(value: Any) -> Any:
    """Return a share, or "official"; fail for anything else."""
    if value == "official" or _number(value, 0, 1, True):
        return value
    raise _fail(f"expected a share between 0 and 1 or 'official', got {value!r}")


def pair(value: Any) -> Any:
    """Return two bounds in order, or None; fail for anything else."""
    if value is None or (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(_number(v, -math.inf, math.inf, True) for v in value)
        and value[0] < value[1]
    ):
        return None if value is None else tuple(map(float, value))
    raise _fail(f"expected [lowest, highest], got {value!r}")


def participation(value: Any) -> Any:
    """Return a share of silos per round, {poisson = share} or {cohort = count}; fail for anything else."""
    how, share = next(iter(value.items())) if isinstance(value, Mapping) and len(value) == 1 else ("", value)
    number = isinstance(share, int | float) and not isinstance(share, bool)
    if how == "cohort" and isinstance(share, int) and number and share >= 1:
        return value
    if value is None or (how in ("", "poisson") and number and 0 < share <= 1):
        return value
    raise _fail(
        f"expected a share in (0, 1], {{ poisson = share }} or {{ cohort = number of silos }}, got {value!r}"
    )


def ranges(value: Any) -> Any:
    """Return two bounds, or a table of them by column; fail for anything else."""
    if isinstance(value, Mapping):
        return {name: pair(bounds) for name, bounds in value.items()}
    return pair(value)


def loss(value: str) -> str:
    """Return the name of a loss, or of one of the user's own; fail for anything else."""
    if value != "auto" and ":" not in value and value not in LOSSES:
        raise _fail(str(unknown_loss(value)).removeprefix("model.loss: "))
    return value


def metrics(value: list[str]) -> list[str]:
    """Return names of metrics, of which those with a colon are functions of one's own, checked later."""
    wrong = [unknown_metric(name) for name in value if ":" not in name]
    lines = [f"{KEY}: {text}" for text in wrong if text is not None]
    if lines:
        raise PydanticCustomError(WHOLE, "{text}", {"text": "\n".join(lines)})
    return value


def weights(value: Any) -> Any:
    """Return weights of classes, or None; fail for anything else."""
    if value == "balanced":
        raise _fail(BALANCED.removeprefix("model.class_weights: "))
    numbers = value.values() if isinstance(value, Mapping) else value
    if value is None or (
        not isinstance(value, str)
        and isinstance(value, Mapping | Sequence)
        and value
        and all(_number(number, 0, math.inf, True) for number in numbers)
    ):
        return value
    raise _fail(f"expected finite numbers > 0 by class, such as {{ healthy = 1, ill = 10 }}, got {value!r}")


def scales(value: Any) -> Any:
    """Return a mean and a deviation by column; fail for anything else."""
    if not isinstance(value, Mapping):
        raise _fail(f"expected [mean, deviation] by column, such as {{ age = [60, 12] }}, got {value!r}")
    for pair_of in value.values():
        both = pair_of if isinstance(pair_of, list | tuple) and len(pair_of) == 2 else (math.nan, 0)
        if not (_number(both[0], -math.inf, math.inf, True) and _number(both[1], 0, math.inf, True)):
            raise _fail(f"expected [mean, deviation > 0] by column, got {pair_of!r}")
    return {name: (float(mean), float(deviation)) for name, (mean, deviation) in value.items()}


def _rule(key: str) -> Any:
    """Return a validator for a key that says how the columns of a table become numbers."""

    def check(value: Any) -> Any:
        try:
            rules_of(**{key: value})
        except Problem as problem:
            raise PydanticCustomError(WHOLE, "{text}", {"text": str(problem)}) from problem
        return written_dates(value) if key == "dates" else value

    return AfterValidator(check)


Missing = Annotated[Any, _rule("missing")]
Medians = Annotated[Any, _rule("medians")]
Categories = Annotated[Any, _rule("categories")]
Dates = Annotated[Any, _rule("dates")]


def names(value: Any) -> Any:
    """Return one name, a list of different names, or None; fail for anything else."""
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if value == [] or not all(isinstance(name, str) for name in listed) or len(set(listed)) != len(listed):
        raise _fail(f"expected the name of a column, or a list of different names, got {value!r}")
    return value
