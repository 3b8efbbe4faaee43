"""Shared layers with a personal head per silo (Collins et al. 2021; with noise: DPFedMTL).

Silos train whole models, but only the shared layers are sent and merged. Heads never leave their silos.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..protocol.method import Method, Start
from ..protocol.settings import setting
from ..protocol.tree import record
from .head_layers import head_parameters

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle


@record
class Head(NamedTuple):
    """A silo's head `[runs, silos, ...]`, and the positions of head and shared layers in the whole vector."""

    values: Tensor
    places: Tensor
    shared_places: Tensor


@dataclass(frozen=True, kw_only=True)
class Heads(Method):
    """Every silo has its own head on top of layers that all silos share.

    `head` names a submodule or parameter ("4", "classifier", "2.weight"), or is a share of the layers,
    counted from the end.
    """

    name: ClassVar[str] = "heads"
    paper: ClassVar[str] = "Collins et al. 2021"
    head: str | float = setting(
        "0.5", text=True, fixed=True, help="name of the head, or its share of the layers"
    )

    def init(self, task: Start, silos: int) -> tuple[Tensor, Head]:
        """Start shared layers and heads from one initial vector."""
        start, parameters = task.initial(), head_parameters(self.head, task.names)
        lengths = zip(task.names, task.layers, strict=True)
        is_head = [name in parameters for name, length in lengths for _ in range(length)]
        head, body = (
            torch.tensor([place for place, flag in enumerate(is_head) if flag is side]).to(start.device)
            for side in (True, False)
        )
        places, shared_places = (
            part.reshape(1, 1, -1).expand(len(start), silos, -1) for part in (head, body)
        )
        values = start.expand(-1, silos, -1).gather(2, places)
        return start[..., body], Head(values, places, shared_places)

    def local(self, sent: Tensor, own: Head, oracle: Oracle) -> tuple[Tensor, Head]:
        """Train the whole model, upload the change of the shared layers, and keep the head."""
        start = join(sent, own)
        trained = oracle.descend(start)
        moved = (trained - start).gather(2, own.shared_places)
        return moved, own._replace(values=trained.gather(2, own.places))

    def personal(self, sent: Tensor, own: Head) -> Tensor:
        """Predict with the shared layers and the silo's head."""
        return join(sent, own)


def join(body: Tensor, own: Head) -> Tensor:
    """Return whole models `[runs, silos, P]` from shared layers and heads."""
    runs, silos, count = own.values.shape
    whole = torch.zeros_like(own.values[..., :1]).expand(runs, silos, count + body.shape[-1])
    whole = whole.scatter(2, own.places, own.values)
    return whole.scatter(2, own.shared_places, body.expand(-1, silos, -1))
