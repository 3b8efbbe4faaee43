"""Convolutions of a cohort: every row of examples with weights of its own, as products of patches."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(torch.autograd.Function):
    """A convolution with weights `[rows, out, in, height, width]`, each row's for its own examples.

    It gives the outputs and the patches they were made of, `[examples, places, height * width * in]`. Weights
    get the sum of their row's gradients, if they need any. Channels lie last in memory, so that patches are
    copied in runs.
    """

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight: Tensor, bias: Tensor | None, module: Any
    ) -> tuple[Tensor, Tensor]:
        """Cut the input into patches and multiply."""
        rows, out, _, *kernel = weight.shape
        (tall, wide), (stepy, stepx) = module.dilation, module.stride
        padded = _padded(given.permute(0, 2, 3, 1), module.padding)
        n, high, broad, channels = padded.shape
        height = (high - tall * (kernel[0] - 1) - 1) // stepy + 1
        width = (broad - wide * (kernel[1] - 1) - 1) // stepx + 1
        each, y, x, c = padded.stride()
        patches = padded.as_strided(
            (n, height, width, *kernel, channels), (each, y * stepy, x * stepx, y * tall, x * wide, c)
        ).reshape(n, height * width, -1)
        flat = weight.movedim(2, -1).flatten(2)
        made = torch.bmm(patches.reshape(rows, -1, flat.shape[-1]), flat.transpose(1, 2))
        if bias is not None:
            made += bias.unsqueeze(1)
        kept = patches if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(flat, kept)
        ctx.facts = module, given.shape, weight.shape, height, width
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


def _padded(given: Tensor, padding: tuple[int, int]) -> Tensor:
    """Put zeros around images `[examples, height, width, channels]`."""
    (down, right), (n, high, broad, channels) = padding, given.shape
    made = given.new_empty(n, high + 2 * down, broad + 2 * right, channels)
    for edge in (made[:, :down], made[:, down + high :], made[:, :, :right], made[:, :, right + broad :]):
        edge.zero_()
    made[:, down : down + high, right : right + broad] = given
    return made


@dataclass(frozen=True)
class Tap:
    """One place of a kernel along one axis: which inputs it takes, a step apart, for which outputs.

    `residue` is that of its inputs modulo the step; it is `whole` if it takes all inputs with that residue.
    """

    place: int
    residue: int
    inputs: slice
    outputs: slice
    whole: bool


def taps(size: int, count: int, kernel: int, step: int, dilation: int, padding: int) -> list[Tap]:
    """Give the places of a kernel that meet any of `size` inputs, for `count` outputs."""
    made = []
    for i in range(kernel):
        offset = i * dilation - padding
        low, high = max(0, -(offset // step)), min(count - 1, (size - 1 - offset) // step)
        if low <= high:
            inputs = slice(low * step + offset, high * step + offset + 1, step)
            residue = offset % step
            whole = high - low + 1 == len(range(residue, size, step))
            made.append(Tap(i, residue, inputs, slice(low, high + 1), whole))
    return made


def _to_input(facts: Any, pieces: Tensor) -> Tensor:
    """Add the errors of patches up where the patches came from; the first to come to a place is copied."""
    module, (n, channels, *size), (_, _, _, *kernel), height, width = facts
    pieces = pieces.reshape(n, height, width, *kernel, channels)
    total = pieces.new_empty(n, *size, channels)
    (stepy, stepx), settings = module.stride, (module.stride, module.dilation, module.padding)
    blank = set(itertools.product(range(stepy), range(stepx)))
    met = itertools.product(*map(taps, size, (height, width), kernel, *settings))
    for down, right in sorted(met, key=lambda two: not (two[0].whole and two[1].whole)):
        piece = pieces[:, down.outputs, right.outputs, down.place, right.place]
        place = total[:, down.inputs, right.inputs]
        residues = down.residue, right.residue
        if residues not in blank:
            place += piece
        elif down.whole and right.whole:
            place.copy_(piece)
        else:
            total[:, down.residue :: stepy, right.residue :: stepx] = 0
            place += piece
        blank.discard(residues)
    for y, x in blank:
        total[:, y::stepy, x::stepx] = 0
    return total.permute(0, 3, 1, 2)


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
