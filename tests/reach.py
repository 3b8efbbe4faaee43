"""What can be reached from an object by its attributes and items, without closures and the garbage collector."""

from __future__ import annotations

import types
from typing import Any

import torch

PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType)
DUNDERS = "__dict__ __self__ __func__ __wrapped__ __defaults__ __kwdefaults__ __slots__ __weakref__".split()
TENSOR = ("_base", "grad", "grad_fn", "__dict__")


def reachable(start: Any, most: int = 20_000) -> list[Any]:
    """Return every object that attributes (also of bound methods and slots), items and keys lead to."""
    seen: dict[int, Any] = {}
    waiting = [start]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, PLAIN):
            continue
        seen[id(thing)] = thing
        assert len(seen) < most, "too much to look at"
        waiting.extend(_beside(thing))
    return list(seen.values())


def _beside(thing: Any) -> list[Any]:
    found: list[Any] = []
    if isinstance(thing, dict):
        found += [*thing, *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        found += thing
    if isinstance(thing, torch.Tensor):  # tensors of the dry run make new ones endlessly, and know no example
        names = list(TENSOR) if type(thing) is torch.Tensor else ["__dict__"]
    else:
        names = [*DUNDERS, *_names(thing)]
    for name in names:
        try:
            found.append(getattr(thing, name))
        except Exception:  # an attribute may refuse
            continue
    return found


def _names(thing: Any) -> list[str]:
    """Return the names of all attributes of our own objects; others' properties make new objects endlessly."""
    if not type(thing).__module__.startswith(("coterie", "tests")):
        return []
    return [name for name in dir(thing) if not (name.startswith("__") and name.endswith("__"))]
