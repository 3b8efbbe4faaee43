"""Means over tiles of images, differentiated by copies: torch's own backward takes three times as long."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pair_of(setting: int | tuple[int, ...]) -> tuple[int, int]:
    """Give a setting of both axes, which torch also takes as one number, or as a tuple of one."""
    both = (setting, setting) if isinstance(setting, int) else (*setting, *setting)
    return both[0], both[1]


def is_tiled(module: nn.Module) -> bool:
    """Whether a layer takes means over tiles that lie side by side."""
    return (
        type(module) is nn.AvgPool2d
        and pair_of(module.kernel_size) == pair_of(module.stride)
        and pair_of(module.padding) == (0, 0)
        and module.divisor_override is None
    )


class Pooling(torch.autograd.Function):
    """Means over tiles `[examples, channels, height, width]`, by the settings of a module that `is_tiled`.

    The last tiles may be cut off at the edge; they are means of what is left of them.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, module: nn.AvgPool2d) -> Tensor:
        """Take the means."""
        ctx.facts = pair_of(module.kernel_size), given.shape
        return F.avg_pool2d(given, module.kernel_size, ceil_mode=module.ceil_mode)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor, None]:
        """Give every place of a tile its share; channels lie last in memory."""
        (tall, wide), (n, channels, high, broad) = ctx.facts
        spread = error.permute(0, 2, 3, 1)
        rows, columns = spread.shape[1:3]
        heights = torch.tensor([min(tall, high - tall * i) for i in range(rows)], device=error.device)
        widths = torch.tensor([min(wide, broad - wide * i) for i in range(columns)], device=error.device)
        share = (spread / (heights.reshape(-1, 1, 1) * widths.reshape(-1, 1))).contiguous()
        covered = rows * tall >= high and columns * wide >= broad
        make = error.new_empty if covered else error.new_zeros
        total = make(n, high, broad, channels)
        for i in range(tall):
            for j in range(wide):
                place = total[:, i : rows * tall : tall, j : columns * wide : wide]
                place.copy_(share[:, : place.shape[1], : place.shape[2]])
        return total.permute(0, 3, 1, 2), None
