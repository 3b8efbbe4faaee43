"""Decide which parameters belong to a head: those of a named layer, or of a share of the layers."""

from __future__ import annotations

import math

from ..errors import Problem, nearest


def head_parameters(head: str | float, names: tuple[str, ...]) -> set[str]:
    """Return the names of the head's parameters, chosen from `names`, the names of all parameters.

    `head` is the name of a submodule or parameter, or a share of the layers, counted from the end. A share
    may be text, such as "0.5". The head must be neither empty nor the whole network.
    """
    layers, share = list(dict.fromkeys(map(_layer, names))), _share(head)
    if not isinstance(head, str) and not 0 < share < 1:
        raise Problem(
            f"head: a share of the layers must be between 0 and 1 (1 is the whole network), got {head}; to"
            f' name a layer, put its name in quotation marks, such as "{layers[-1]}" (on a command line:'
            f" --set 'method.head=\"{layers[-1]}\"')"
        )
    chosen = _last(share, layers, names) if 0 < share < 1 else _named(str(head), layers, names)
    if len(chosen) == len(names):
        raise Problem(
            f"head: '{head}' is the whole network, which leaves nothing to share; choose a smaller head"
        )
    return chosen


def _share(head: str | float) -> float:
    try:
        return float(head)
    except ValueError:
        return math.nan


def _last(share: float, layers: list[str], names: tuple[str, ...]) -> set[str]:
    """Return the parameters of the last layers; if there is only one layer, its last parameters."""
    parts = layers if len(layers) > 1 else list(names)
    kept = parts[len(parts) - max(1, round(share * len(parts))) :]
    return {name for name in names if name in kept or _layer(name) in kept}


def _named(head: str, layers: list[str], names: tuple[str, ...]) -> set[str]:
    """Return the parameters of the submodule, or the single parameter, with this name."""
    chosen = {name for name in names if name == head or name.startswith(f"{head}.")}
    if not chosen:
        modules = list(dict.fromkeys(module for layer in layers for module in _modules(layer)))
        meant = nearest(head, modules)
        hint = f" ({meant})" if meant.startswith("did") else ""
        raise Problem(f"head: there is no layer '{head}'{hint}; the layers are {', '.join(modules)}")
    return chosen


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name


def _modules(layer: str) -> list[str]:
    """List the modules that contain a layer, outermost first, and then the layer itself."""
    words = layer.split(".")
    return [".".join(words[: end + 1]) for end in range(len(words))]
