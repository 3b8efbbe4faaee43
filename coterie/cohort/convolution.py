"""Convolutions of a cohort: every row of examples with weights of its own, as products of patches."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Convolution(torch.autograd.Function):
    """A convolution with weights `[rows, out, in, height, width]`, each row's for its own examples.

    It gives the outputs and the patches they were made of, `[examples, places, height * width * in]`.
    Weights get the sum of their row's gradients, if they need any. Channels lie last in memory, so that
    patches are copied in runs.
    """

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight: Tensor, bias: Tensor | None, module: Any
    ) -> tuple[Tensor, Tensor]:
        """Cut the input into patches and multiply."""
        rows, out, _, *kernel = weight.shape
        (down, right), (tall, wide), (stepy, stepx) = module.padding, module.dilation, module.stride
        padded = F.pad(given, (right, right, down, down))
        n, channels, high, broad = padded.shape
        height = (high - tall * (kernel[0] - 1) - 1) // stepy + 1
        width = (broad - wide * (kernel[1] - 1) - 1) // stepx + 1
        each, c, y, x = padded.stride()
        patches = padded.as_strided(
            (n, height, width, *kernel, channels), (each, y * stepy, x * stepx, y * tall, x * wide, c)
        ).reshape(n, height * width, -1)
        flat = weight.movedim(2, -1).flatten(2)
        made = torch.bmm(patches.reshape(rows, -1, flat.shape[-1]), flat.transpose(1, 2))
        if bias is not None:
            made += bias.unsqueeze(1)
        ctx.save_for_backward(flat, patches if ctx.needs_input_grad[1] else None)
        ctx.facts = module, padded.shape, weight.shape, height, width
        ctx.mark_non_differentiable(patches)
        ctx.set_materialize_grads(False)
        return made.reshape(n, height, width, out).permute(0, 3, 1, 2), patches

    @staticmethod
    def backward(
        ctx: Any, error: Tensor, _: None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Multiply, and add the patches up where they came from."""
        flat, patches = ctx.saved_tensors
        (rows, out, channels, *kernel) = ctx.facts[2]
        spread = error.permute(0, 2, 3, 1).reshape(rows, -1, out)
        weight = bias = None
        if ctx.needs_input_grad[1]:
            product = torch.bmm(spread.transpose(1, 2), patches.reshape(rows, -1, flat.shape[-1]))
            weight = product.reshape(rows, out, *kernel, channels).movedim(-1, 2)
        if ctx.needs_input_grad[2]:
            bias = spread.sum(1)
        given = _to_input(ctx.facts, torch.bmm(spread, flat)) if ctx.needs_input_grad[0] else None
        return given, weight, bias, None


def _to_input(facts: Any, pieces: Tensor) -> Tensor:
    """Add the errors of patches up where the patches came from."""
    module, (n, channels, high, broad), (_, _, _, *kernel), height, width = facts
    (down, right), (tall, wide), (stepy, stepx) = module.padding, module.dilation, module.stride
    pieces = pieces.reshape(n, height, width, *kernel, channels)
    total = pieces.new_zeros(n, high, broad, channels)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i * tall, i * tall + stepy * (height - 1) + 1, stepy)
            columns = slice(j * wide, j * wide + stepx * (width - 1) + 1, stepx)
            total[:, rows, columns] += pieces[:, :, :, i, j]
    return total[:, down : high - down, right : broad - right].permute(0, 3, 1, 2)
