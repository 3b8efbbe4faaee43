"""Plain sequences as stages for the compiled kernels: what each stage does, and where it lies in memory."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...tasks.models import ChannelsFirst
from ...tasks.task import Task
from ..gradients.layers import is_tiled, pair_of
from ..gradients.sequential import is_sequence, layers_of
from .kernels import MEAN, PEAK, PRODUCT, TURN

# The input of a stage is `high` x `broad` x `channels`, including a frame of zeros, `frame_y` and `frame_x`
# wide. Its output is `height` x `width` x `outputs`. Patches and tiles are `tall` x `wide` and lie `down` and
# `right` apart. A patch has `patch` numbers; each of its lines is copied in `runs` of `run` numbers. `weight`
# and `bias` are offsets in a model's vector (-1: none), `order` is an offset in the orders, and the others
# are offsets in the memory for values.
FIELDS = (
    "kind rectified high broad channels frame_y frame_x height width outputs tall wide down right dilation_y"
    " dilation_x patch run runs weight bias order value error patches work"
)
STAGE = np.dtype([(name, np.int64) for name in FIELDS.split()])
MOVING = (nn.Flatten, nn.Unflatten, nn.Identity, ChannelsFirst)
LINE = 16  # numbers in one cache line


@dataclass(frozen=True, eq=False)
class Stages:
    """A sequence for the kernels: a table with a row per stage and a last row that only holds the outputs.

    An example has `features` numbers, a model `parameters`.
    `orders` begins with the order in which the numbers of an example are read. Convolutions have their
    channels last, so `turned` lists the parameters whose axes are moved: first and last offset, and shape.
    """

    table: np.ndarray
    orders: np.ndarray
    turned: tuple[tuple[int, int, torch.Size], ...]
    features: int
    parameters: int

    def packed(self, vectors: Tensor) -> Tensor:
        """Return a copy of vectors `[pairs, P]` with the channels of convolutions last."""
        packed = vectors.clone(memory_format=torch.contiguous_format)
        for first, last, shape in self.turned:
            moved = vectors[:, first:last].unflatten(1, shape).movedim(2, -1)
            packed[:, first:last].unflatten(1, moved.shape[1:]).copy_(moved)
        return packed

    def unpacked(self, vectors: Tensor) -> Tensor:
        """Undo `packed`."""
        unpacked = vectors.clone()
        for first, last, shape in self.turned:
            moved = unpacked[:, first:last].unflatten(1, shape).movedim(2, -1)
            moved.copy_(vectors[:, first:last].unflatten(1, moved.shape[1:]))
        return unpacked

    def laid_out(self, block: int) -> tuple[np.ndarray, int]:
        """Return the table with memory offsets for `block` examples, and how many numbers that takes."""
        table, end = self.table.copy(), 0

        def take(size: int) -> int:
            nonlocal end
            start, end = end, end + -(-size * block // LINE) * LINE
            return start

        work = take(max(int(s["height"] * s["width"] * s["outputs"]) for s in table[:-1]))
        for place, stage in enumerate(table):
            size = int(stage["high"] * stage["broad"] * stage["channels"])
            stage["work"], stage["value"], stage["error"] = work, take(size), take(size if place else 0)
            framed = bool(stage["patch"] and stage["tall"])
            patches = int(stage["height"] * stage["width"] * stage["patch"])
            stage["patches"] = take(patches) if framed else stage["value"]
        return table, end

    @functools.cached_property
    def bytes_of_an_example(self) -> int:
        """The bytes that the values of one example take."""
        return 4 * self.laid_out(1)[1]


def stages_of(task: Task) -> Stages | None:
    """Return the stages of a task, or None if the kernels do not know its loss or one of its layers."""
    if task.loss != "cross-entropy" or task.settings.class_weights or not is_sequence(task):
        return None
    layers = list(layers_of("", task.module))
    lengths = dict(zip(task.layout.names, task.layout.lengths, strict=True))
    starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
    builder = _Builder(task.shape)
    turned = []
    for name, module in layers:
        if not builder.add(module, starts.get(f"{name}.weight", -1), starts.get(f"{name}.bias", -1)):
            return None
        if type(module) is nn.Conv2d:
            first = starts[f"{name}.weight"]
            turned.append((first, first + lengths[f"{name}.weight"], module.weight.shape))
    return builder.finished(tuple(turned), task.layout.size)


class _Builder:
    """Build a table stage by stage.

    `places` has the shape of the last layer's output for one example; it says where in memory each of its
    numbers is.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.features = math.prod(shape)
        self.size: tuple[int, ...] = (1, 1, self.features)
        self.places = torch.arange(self.features).reshape(1, *shape)
        self.rows: list[dict[str, int]] = []
        self.orders: list[int] = []

    def add(self, layer: nn.Module, weight: int, bias: int) -> bool:
        """Add a layer; return False if it is not known."""
        module: Any = layer
        if type(module) in MOVING:
            self.places = module(self.places)
        elif type(module) is nn.ReLU and self.rows:
            self.rows[-1]["rectified"] = 1
        elif type(module) is nn.Linear and self.places.dim() == 2:
            self._arrange((1, 1, module.in_features), self.places)
            self._product((1, 1, module.out_features), module.in_features, weight, bias)
            self.places = torch.arange(module.out_features).reshape(1, -1)
        elif (
            type(module) is nn.Conv2d or is_tiled(module) or _takes_peaks(module)
        ) and self.places.dim() == 4:
            self._image(module, weight, bias)
        else:
            return False
        return True

    def finished(self, turned: tuple[tuple[int, int, torch.Size], ...], size: int) -> Stages | None:
        """Return the stages, with a row for the outputs."""
        if self.places.dim() != 2 or not self.rows:
            return None
        outputs = (1, 1, self.places.shape[1])
        self._arrange(outputs, self.places)
        self.rows.append(_input(outputs))
        table = np.zeros(len(self.rows), dtype=STAGE)
        for stage, row in zip(table, self.rows, strict=True):
            for name, value in row.items():
                stage[name] = value
        return Stages(table, np.array(self.orders, dtype=np.int64), turned, self.features, size)

    def _image(self, module: Any, weight: int, bias: int) -> None:
        """Add a convolution, or average or maximum pooling."""
        _, channels, high, broad = self.places.shape
        self._arrange((high, broad, channels), self.places.permute(0, 2, 3, 1))
        with torch.no_grad():
            _, outputs, height, width = module(torch.zeros(1, channels, high, broad)).shape
        (tall, wide), (down, right) = pair_of(module.kernel_size), pair_of(module.stride)
        if type(module) is nn.Conv2d:
            frame: Any = module.padding
            self._product((height, width, outputs), tall * wide * channels, weight, bias, frame)
            (dilation_y, dilation_x) = module.dilation
            self.rows[-1] |= {
                "dilation_y": dilation_y,
                "dilation_x": dilation_x,
                "run": wide * channels if dilation_x == 1 else channels,
                "runs": 1 if dilation_x == 1 else wide,
            }
        else:
            self._stage(PEAK if type(module) is nn.MaxPool2d else MEAN, (height, width, outputs))
        self.rows[-1] |= {"tall": tall, "wide": wide, "down": down, "right": right}
        self.places = (
            torch.arange(math.prod(self.size)).reshape(1, height, width, outputs).permute(0, 3, 1, 2)
        )

    def _product(
        self, output: tuple[int, ...], patch: int, weight: int, bias: int, frame: tuple[int, int] = (0, 0)
    ) -> None:
        self._stage(PRODUCT, output, frame)
        self.rows[-1] |= {"patch": patch, "weight": weight, "bias": bias}

    def _arrange(self, size: tuple[int, ...], wanted: Tensor) -> None:
        """Reorder the numbers in memory, if needed, as the next stage expects them."""
        order = wanted.flatten().tolist()
        if not self.rows:
            self.orders = order
        elif size != self.size or order != list(range(len(order))):
            self._stage(TURN, size)
            self.rows[-1]["order"] = len(self.orders)
            self.orders += order
        self.size = size

    def _stage(self, kind: int, output: tuple[int, ...], frame: tuple[int, int] = (0, 0)) -> None:
        height, width, outputs = output
        row = _input(self.size, frame) | {"kind": kind, "height": height, "width": width, "outputs": outputs}
        self.rows.append(row)
        self.size = output


def _takes_peaks(module: nn.Module) -> bool:
    """Return whether a layer takes maxima over tiles that lie side by side."""
    return (
        type(module) is nn.MaxPool2d
        and pair_of(module.kernel_size) == pair_of(module.stride)
        and pair_of(module.padding) == (0, 0)
        and pair_of(module.dilation) == (1, 1)
        and not module.return_indices
    )


def _input(size: tuple[int, ...], frame: tuple[int, int] = (0, 0)) -> dict[str, int]:
    high, broad, channels = size
    (frame_y, frame_x), inner = frame, {"high": high + 2 * frame[0], "broad": broad + 2 * frame[1]}
    return inner | {"channels": channels, "frame_y": frame_y, "frame_x": frame_x, "bias": -1}
