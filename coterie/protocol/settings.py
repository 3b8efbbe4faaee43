"""Settings of methods: their limits, and one value per run."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .method import Method

PerRun = float | tuple[float, ...]
M = TypeVar("M", bound="Method")


def setting(
    default: Any = dataclasses.MISSING,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    maximum: float = math.inf,
    whole: bool = False,
    choices: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    text: bool = False,
    fixed: bool = False,
    help: str = "",
) -> Any:
    """Declare a setting of a method: a number, one of some `choices`, or any `text` (or number).

    A number lies from `minimum` to `maximum`, and above `above`; some `words` may stand for numbers. A
    `fixed` setting shapes what the method does, so all runs that train together share it.
    """
    facts = {
        "minimum": minimum, "above": above, "maximum": maximum, "whole": whole, "choices": choices,
        "words": words, "text": text, "fixed": fixed, "help": help,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=facts)


def per_run(values: PerRun | Tensor) -> Tensor:
    """Return a setting as a tensor that multiplies vectors: `[runs, 1, 1]`."""
    if isinstance(values, Tensor) and values.dim() == 3:
        return values
    return torch.as_tensor(values, dtype=torch.float32).reshape(-1, 1, 1)


def settings_of(method: Method | type[Method]) -> dict[str, dataclasses.Field[Any]]:
    """Return the settings of a method; methods within it are not among them."""
    return {f.name: f for f in dataclasses.fields(method) if not f.metadata.get("method")}  # type: ignore[arg-type]


def check_setting(name: str, value: Any, field: dataclasses.Field[Any]) -> str | None:
    """Return what is wrong with a setting, or None."""
    facts = field.metadata
    if "check" in facts:
        problem: str | None = facts["check"](name, value)
        return problem
    if facts.get("choices"):
        allowed = ", ".join(facts["choices"])
        return None if value in facts["choices"] else f"{name} must be one of {allowed}, got {value!r}"
    if facts.get("text"):
        good = isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""
        return None if good else f"{name} must be a name or a number, got {value!r}"
    if isinstance(value, str) and value in facts.get("words", ()):
        return None
    minimum, maximum = facts.get("minimum", -math.inf), facts.get("maximum", math.inf)
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    above = facts.get("above", -math.inf)
    inside = number and minimum <= value <= maximum and value > above
    if inside and not (facts.get("whole") and value != int(value)):
        return None
    kind = "a whole number" if facts.get("whole") else "a number"
    wanted = kind if minimum == -math.inf else f"{kind} >= {minimum:g}"
    wanted += "" if above == -math.inf else f" > {above:g}"
    wanted += "" if maximum == math.inf else f" and <= {maximum:g}"
    wanted += "".join(f" or '{word}'" for word in facts.get("words", ()))
    return f"{name} must be {wanted}, got {value!r}"


def described(method: Method) -> str:
    """Name a method with its settings: `mr-mtl lam=1`."""
    settings = (f"{name}={getattr(method, name)}" for name in settings_of(method))
    return " ".join((method.title, *settings))


def for_runs(method: M, chosen: dict[str, tuple[float, ...]]) -> M:
    """Return the method with one value per run for some of its settings."""
    return dataclasses.replace(method, **chosen)  # type: ignore[type-var]


def for_run(method: M, run: int) -> M:
    """Return the method of one run alone."""
    single = {
        name: value[run] for name in settings_of(method) if isinstance(value := getattr(method, name), tuple)
    }
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        if field.metadata.get("wrapped"):
            single[field.name] = for_run(getattr(method, field.name), run)
        if field.metadata.get("each_run"):
            single[field.name] = getattr(method, field.name)[run : run + 1]
    return dataclasses.replace(method, **single)  # type: ignore[type-var]
