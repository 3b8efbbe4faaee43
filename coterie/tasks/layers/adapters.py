"""LoRA: a linear layer that stays as it is, plus a trained product of two thin matrices (Hu et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LowRank(nn.Linear):
    """`nn.Linear` with frozen numbers and an adapter beside it, which starts as zero."""

    lora_down: nn.Linear
    lora_up: nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        """Return what the layer makes of an input, and add what its adapter makes of it."""
        adapted: Tensor = self.lora_up(self.lora_down(input))
        return F.linear(input, self.weight, self.bias) + adapted


def adapt(layer: nn.Linear, rank: int) -> None:
    """Freeze a linear layer and give it an adapter, in place; torch's global generator draws its start."""
    rank = min(rank, layer.in_features, layer.out_features)
    layer.requires_grad_(False)
    layer.__class__ = LowRank
    layer.lora_down = nn.Linear(layer.in_features, rank, bias=False)
    layer.lora_up = nn.Linear(rank, layer.out_features, bias=False)
    nn.init.zeros_(layer.lora_up.weight)


def merge(layer: LowRank) -> None:
    """Turn a layer with an adapter into a plain linear layer that computes the same, in place."""
    with torch.no_grad():
        layer.weight += layer.lora_up.weight @ layer.lora_down.weight
    del layer.lora_up, layer.lora_down
    layer.requires_grad_(True)
    layer.__class__ = nn.Linear  # type: ignore[assignment]
