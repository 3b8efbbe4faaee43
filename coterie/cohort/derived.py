"""Values that are computed once per object and live as long as it does.

A module-level cache would outlive a training, and with it keep alive a silo's examples or a network that
remembers its last batch. Here the object itself holds what was derived from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Owner = TypeVar("Owner")
Others = ParamSpec("Others")
Value = TypeVar("Value")
NAME = "_derived"


class Derived(dict[Any, Any]):
    """What was derived from an object. A copy or a pickle of the object starts without any of it."""

    def __reduce__(self) -> tuple[type[Derived], tuple[()]]:
        return Derived, ()


def derived(
    function: Callable[Concatenate[Owner, Others], Value],
) -> Callable[Concatenate[Owner, Others], Value]:
    """Compute a function once per first argument and set of other arguments; the first keeps the value."""

    @functools.wraps(function)
    def once(owner: Owner, /, *others: Others.args, **named: Others.kwargs) -> Value:
        known = vars(owner).setdefault(NAME, Derived())
        key = (function, others, tuple(named.items()))
        if key not in known:
            known[key] = function(owner, *others, **named)
        value: Value = known[key]
        return value

    return once


def forget(owner: object) -> None:
    """Drop everything that was derived from an object."""
    vars(owner).pop(NAME, None)
