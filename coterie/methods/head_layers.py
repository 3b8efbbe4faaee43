"""Which parameters belong to a head: those of a layer that is named, or of a share of the layers."""

from __future__ import annotations

import math

from ..errors import Problem, nearest


def head_parameters(head: str | float, names: tuple[str, ...]) -> set[str]:
    """Return the names of the head's parameters, among the `names` of all.

    `head` is the name of a submodule or of a parameter, or a share of the layers, counted from the end; a
    share may be text, such as "0.5". The head may be neither empty nor the whole network.
    """
    layers, share = list(dict.fromkeys(map(_layer, names))), _share(head)
    if not isinstance(head, str) and not 0 < share < 1:
        raise Problem(
            f"head: a share of the layers lies between 0 and 1 (1 is the whole network), got {head}; a"
            f' layer is given by its name in quotation marks, such as "{layers[-1]}" (on a command line'
            f" --set 'method.head=\"{layers[-1]}\"')"
        )
    chosen = _last(share, layers, names) if 0 < share < 1 else _named(str(head), layers, names)
    if len(chosen) == len(names):
        raise Problem(f"head: '{head}' is the whole network: nothing is left to share")
    return chosen


def _share(head: str | float) -> float:
    try:
        return float(head)
    except ValueError:
        return math.nan


def _last(share: float, layers: list[str], names: tuple[str, ...]) -> set[str]:
    """Return the parameters of the last layers; where there is one layer, its last parameters."""
    parts = layers if len(layers) > 1 else list(names)
    kept = parts[len(parts) - max(1, round(share * len(parts))) :]
    return {name for name in names if name in kept or _layer(name) in kept}


def _named(head: str, layers: list[str], names: tuple[str, ...]) -> set[str]:
    """Return the parameters of a submodule, or the parameter, of this name."""
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
    """List the modules that a layer is in, the outermost first, and the layer."""
    words = layer.split(".")
    return [".".join(words[: end + 1]) for end in range(len(words))]
