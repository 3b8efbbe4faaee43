"""Convolutions and average pooling for a cohort, where every row of examples has its own weights."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(torch.autograd.Function):
    """A convolution with weights `[rows, out, in, height, width]`: each row's weights for its own examples.

    It returns the outputs and the patches they were computed from, `[examples, places, height * width *
    in]`. If the weights need gradients, they get the sum over their row. Channels lie last in memory, so
    patches can be copied in contiguous runs.
    """

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, weight: Tensor, bias: Tensor | None, module: Any
    ) -> tuple[Tensor, Tensor]:
        """Cut the input into patches and multiply them by the weights."""
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
        output = torch.bmm(patches.reshape(rows, -1, flat.shape[-1]), flat.transpose(1, 2))
        if bias is not None:
            output += bias.unsqueeze(1)
        kept = patches if ctx.needs_input_grad[1] else None
        ctx.save_for_backward(flat, kept)
        ctx.facts = module, given.shape, weight.shape, height, width
        ctx.mark_non_differentiable(patches)
        ctx.set_materialize_grads(False)
        return output.reshape(n, height, width, out).permute(0, 3, 1, 2), patches

    @staticmethod
    def backward(
        ctx: Any, error: Tensor, _: None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Multiply, and add up the errors of the patches at the places they came from."""
        flat, patches = ctx.saved_tensors
        (rows, out, channels, *kernel) = ctx.facts[2]
        by_place = error.permute(0, 2, 3, 1).reshape(rows, -1, out)
        weight = bias = None
        if ctx.needs_input_grad[1]:
            product = torch.bmm(by_place.transpose(1, 2), patches.reshape(rows, -1, flat.shape[-1]))
            weight = product.reshape(rows, out, *kernel, channels).movedim(-1, 2)
        if ctx.needs_input_grad[2]:
            bias = by_place.sum(1)
        given = _to_input(ctx.facts, torch.bmm(by_place, flat)) if ctx.needs_input_grad[0] else None
        return given, weight, bias, None


def _padded(given: Tensor, padding: tuple[int, int]) -> Tensor:
    """Return images `[examples, height, width, channels]` with zeros around them."""
    (down, right), (n, high, broad, channels) = padding, given.shape
    image = given.new_empty(n, high + 2 * down, broad + 2 * right, channels)
    for edge in (image[:, :down], image[:, down + high :], image[:, :, :right], image[:, :, right + broad :]):
        edge.zero_()
    image[:, down : down + high, right : right + broad] = given
    return image


@dataclass(frozen=True)
class Tap:
    """One position of a kernel along one axis: the inputs it reads, one stride apart, and their outputs.

    `residue` is the inputs' index modulo the stride; `whole` says that it reads all inputs of that residue.
    """

    place: int
    residue: int
    inputs: slice
    outputs: slice
    whole: bool


def taps(size: int, count: int, kernel: int, step: int, dilation: int, padding: int) -> list[Tap]:
    """Return the positions of a kernel that read any of `size` inputs, for `count` outputs."""
    positions = []
    for i in range(kernel):
        offset = i * dilation - padding
        low, high = max(0, -(offset // step)), min(count - 1, (size - 1 - offset) // step)
        if low <= high:
            inputs = slice(low * step + offset, high * step + offset + 1, step)
            residue = offset % step
            whole = high - low + 1 == len(range(residue, size, step))
            positions.append(Tap(i, residue, inputs, slice(low, high + 1), whole))
    return positions


def _to_input(facts: Any, pieces: Tensor) -> Tensor:
    """Add up the errors of patches at the places they came from; the first at a place is copied."""
    module, (n, channels, *size), (_, _, _, *kernel), height, width = facts
    pieces = pieces.reshape(n, height, width, *kernel, channels)
    total = pieces.new_empty(n, *size, channels)
    (stepy, stepx), settings = module.stride, (module.stride, module.dilation, module.padding)
    blank = set(itertools.product(range(stepy), range(stepx)))
    positions = itertools.product(*map(taps, size, (height, width), kernel, *settings))
    for down, right in sorted(positions, key=lambda two: not (two[0].whole and two[1].whole)):
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
    """Return a setting for both axes; torch also accepts a single number or a tuple of one."""
    both = (setting, setting) if isinstance(setting, int) else (*setting, *setting)
    return both[0], both[1]


def is_tiled(module: nn.Module) -> bool:
    """Return whether a layer averages over tiles that lie side by side."""
    return (
        type(module) is nn.AvgPool2d
        and pair_of(module.kernel_size) == pair_of(module.stride)
        and pair_of(module.padding) == (0, 0)
        and module.divisor_override is None
    )


class Pooling(torch.autograd.Function):
    """Average pooling over tiles of `[examples, channels, height, width]`, for a module that `is_tiled`.

    The last tiles may be cut off at the edge; their mean is over what is left of them.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, module: nn.AvgPool2d) -> Tensor:
        """Take the means."""
        ctx.facts = pair_of(module.kernel_size), given.shape
        return F.avg_pool2d(given, module.kernel_size, ceil_mode=module.ceil_mode)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor, None]:
        """Return each place's share of its tile's error; channels lie last in memory."""
        (tall, wide), (n, channels, high, broad) = ctx.facts
        by_tile = error.permute(0, 2, 3, 1)
        rows, columns = by_tile.shape[1:3]
        heights = torch.tensor([min(tall, high - tall * i) for i in range(rows)], device=error.device)
        widths = torch.tensor([min(wide, broad - wide * i) for i in range(columns)], device=error.device)
        share = (by_tile / (heights.reshape(-1, 1, 1) * widths.reshape(-1, 1))).contiguous()
        covered = rows * tall >= high and columns * wide >= broad
        make = error.new_empty if covered else error.new_zeros
        total = make(n, high, broad, channels)
        for i in range(tall):
            for j in range(wide):
                place = total[:, i : rows * tall : tall, j : columns * wide : wide]
                place.copy_(share[:, : place.shape[1], : place.shape[2]])
        return total.permute(0, 3, 1, 2), None
