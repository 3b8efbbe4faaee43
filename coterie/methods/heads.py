"""Shared layers and a head of one's own (Collins et al. 2021; with noise: DPFedMTL).

Silos train whole models; what they send, and what is merged, are the shared layers only. Heads never leave.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..errors import Problem, nearest
from ..protocol.merging import Merger
from ..protocol.method import Method, Start
from ..protocol.settings import setting

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

State = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Heads(Method):
    """Every silo has a head of its own on layers that all share.

    `head` names a submodule or a parameter ("4", "classifier", "2.weight"), or is a share of the layers,
    counted from the end.
    """

    name: ClassVar[str] = "heads"
    paper: ClassVar[str] = "Collins et al. 2021"
    head: str | float = setting(
        "0.5", text=True, fixed=True, help="name of the head, or its share of the layers"
    )

    def init(self, task: Start, silos: int) -> tuple[Tensor, State]:
        """Start shared layers and heads from one initial vector."""
        start = task.initial()
        mine = self.is_head(task)
        where = {
            key: torch.tensor([place for place, own in enumerate(mine) if own is flag]).to(start.device)
            for key, flag in (("head", True), ("body", False))
        }
        places = {key: value.reshape(1, 1, -1).expand(len(start), silos, -1) for key, value in where.items()}
        head = start.expand(-1, silos, -1).gather(2, places["head"])
        return start[..., where["body"]], {"head": head, "at": places["head"], "rest": places["body"]}

    def is_head(self, task: Start) -> list[bool]:
        """Say of each number of a vector whether it belongs to the head."""
        flags = [name in self.parameters_of(task.names) for name in task.names]
        if all(flags):
            raise Problem(f"head: '{self.head}' is the whole network: nothing is left to share")
        if not any(flags):
            raise Problem(f"head: '{self.head}' has no parameters")
        return list(
            itertools.chain.from_iterable([flag] * n for flag, n in zip(flags, task.layers, strict=True))
        )

    def parameters_of(self, names: tuple[str, ...]) -> set[str]:
        """Give the parameters of the head."""
        layers, head = list(dict.fromkeys(_layer(name) for name in names)), str(self.head)
        try:
            share = float(head)
        except ValueError:
            share = math.nan
        if not isinstance(self.head, str) and not 0 < share < 1:
            raise Problem(
                f"head: a share of the layers lies between 0 and 1 (1 is the whole network), got {head}; a"
                f' layer is given by its name in quotation marks, as "{layers[-1]}" (on a command line'
                f" --set 'method.head=\"{layers[-1]}\"')"
            )
        if 0 < share < 1:
            parts = layers if len(layers) > 1 else list(names)  # of one layer, its parameters
            kept = parts[len(parts) - max(1, round(share * len(parts))) :]
            return {name for name in names if name in kept or _layer(name) in kept}
        found = {name for name in names if name == head or name.startswith(f"{head}.")}
        if not found:
            parts = list(dict.fromkeys(part for layer in layers for part in _parts(layer)))
            meant = nearest(head, parts)
            hint = f" ({meant})" if meant.startswith("did") else ""
            raise Problem(f"head: there is no layer '{head}'{hint}; the layers are {', '.join(parts)}")
        return found

    def broadcast(self, shared: Tensor) -> Tensor:
        """Send the shared layers."""
        return shared

    def local(self, sent: Tensor, own: State, oracle: Oracle) -> tuple[Tensor, State]:
        """Train the whole model; upload how the shared layers moved, keep the head."""
        start = join(sent, own)
        trained = oracle.descend(start)
        moved = (trained - start).gather(2, own["rest"])
        return moved, {**own, "head": trained.gather(2, own["at"])}

    def merge(self, shared: Tensor, uploads: Tensor, merger: Merger) -> Tensor:
        """Move the shared layers by the mean."""
        return shared + merger.mean(uploads)

    def personal(self, sent: Tensor, own: State) -> Tensor:
        """Predict with the shared layers and the silo's head."""
        return join(sent, own)


def _parts(layer: str) -> list[str]:
    """Give the modules that a layer is in, the outermost first, and the layer."""
    words = layer.split(".")
    return [".".join(words[: end + 1]) for end in range(len(words))]


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name


def join(body: Tensor, own: State) -> Tensor:
    """Put shared layers and heads together: `[runs, silos, P]`."""
    runs, silos, count = own["head"].shape
    whole = torch.zeros_like(own["head"][..., :1]).expand(runs, silos, count + body.shape[-1])
    whole = whole.scatter(2, own["at"], own["head"])
    return whole.scatter(2, own["rest"], body.expand(-1, silos, -1))
