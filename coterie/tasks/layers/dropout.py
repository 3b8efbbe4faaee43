"""Dropout whose masks belong to examples: they depend on an example's own key, and on no other example.

The key comes from the stream of the call of a door, the step and the example (`keys`), so a training repeats
its masks, whoever else was drawn and however examples are grouped. Without a key nothing is dropped: that is
how models predict and are scored. What is dropped is no matter of privacy: clipping comes afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Odd numbers whose multiples modulo 2^64 are spread evenly (the finaliser of SplitMix64, Steele et al. 2014).
STEP, EXAMPLE, DRAW = -7046029254386353131, -4417276706812531889, -8663945395140668459
FIRST, SECOND = -4658895280553007687, -7723592293110705685
BITS = 24  # of a random number


@dataclass(eq=False)
class Masks:
    """The masks of one example, or of each example of a batch: keys, and how many masks were drawn."""

    key: Tensor
    drawn: int = 0

    def numbers(self, shape: torch.Size) -> Tensor:
        """Return random numbers in [0, 1); an example has the same ones in a batch as alone."""
        self.drawn += 1
        count = (shape[1:] if self.key.dim() else shape).numel()
        place = torch.arange(1, count + 1, device=self.key.device) * DRAW + _wrapped(self.drawn * STEP)
        bits = _mixed(place + self.key.unsqueeze(-1))
        return (_shifted(bits, 64 - BITS).to(torch.float32) * 2.0**-BITS).reshape(shape)


_MASKS: ContextVar[Masks | None] = ContextVar("masks", default=None)


@contextmanager
def dropping(key: Tensor | None) -> Iterator[None]:
    """Let layers drop what the masks of an example's key say; nothing if there is no key."""
    if key is None:
        yield
        return
    token = _MASKS.set(Masks(key))
    try:
        yield
    finally:
        _MASKS.reset(token)


def keys(base: Tensor, step: int, example: Tensor) -> Tensor:
    """Return the key of each example in one step; `base` is a random whole number for each."""
    return _mixed(base + _wrapped((step + 1) * STEP) + (example + 1) * EXAMPLE)


def _wrapped(number: int) -> int:
    """Return a number modulo 2^64, as an int64 holds it."""
    return (number + 2**63) % 2**64 - 2**63


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift to the right; zeros come in from the left."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mixed(bits: Tensor) -> Tensor:
    """Return bits each of which depends on all bits given."""
    bits = (bits ^ _shifted(bits, 30)) * FIRST
    bits = (bits ^ _shifted(bits, 27)) * SECOND
    return bits ^ _shifted(bits, 31)


def drop(value: Tensor, share: float, axes: int | None = None) -> Tensor:
    """Drop numbers with the probability `share`, or what shares the first `axes` axes, together."""
    masks = _MASKS.get()
    if masks is None or share == 0:
        return value
    if share == 1:
        return value * 0
    shape = value.shape if axes is None else value.shape[:axes] + (1,) * (value.dim() - axes)
    kept = masks.numbers(torch.Size(shape)) >= share
    return torch.where(kept, value / (1 - share), 0.0)


class Dropout(nn.Dropout):
    """`nn.Dropout` with masks of examples."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop numbers."""
        return drop(input, self.p) if self.training else input


class _Channels(nn.modules.dropout._DropoutNd):
    """Dropout of whole channels, `[examples, channels, ...]` or `[channels, ...]`."""

    places: int

    def forward(self, input: Tensor) -> Tensor:
        """Drop channels."""
        return drop(input, self.p, input.dim() - self.places) if self.training else input


class Dropout1d(_Channels, nn.Dropout1d):
    """`nn.Dropout1d` with masks of examples."""

    places = 1


class Dropout2d(_Channels, nn.Dropout2d):
    """`nn.Dropout2d` with masks of examples."""

    places = 2


class Dropout3d(_Channels, nn.Dropout3d):
    """`nn.Dropout3d` with masks of examples."""

    places = 3


def draws(part: nn.Module) -> bool:
    """Return whether a layer drops anything while it trains."""
    if not part.training:
        return False
    if isinstance(part, nn.RNNBase):
        return bool(part.dropout) and part.num_layers > 1
    share = part.dropout if isinstance(part, nn.MultiheadAttention) else getattr(part, "p", 0)
    return isinstance(part, (nn.modules.dropout._DropoutNd, nn.MultiheadAttention)) and share > 0
