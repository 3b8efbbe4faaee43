"""Layers that cannot be trained privately, and what to use instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from .layers import TORCHS_OWN
from .trials import TABLES

MIXERS: dict[type[nn.Module], str] = {
    nn.modules.batchnorm._BatchNorm: "GroupNorm (or LayerNorm)",
    nn.modules.instancenorm._InstanceNorm: "GroupNorm with one group per channel",
}
FORWARDS = (nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward)
RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def layer_problems(module: nn.Module) -> list[str]:
    """Return a sentence for everything that keeps layers from being trained one example at a time."""
    return [
        f"model: layer '{name or type(part).__name__}' ({type(part).__name__}) {problem}"
        for name, part in module.named_modules()
        for problem in _problems(part)
    ]


def _problems(part: Any) -> Iterator[str]:
    for kind, replacement in MIXERS.items():
        alone = isinstance(part, nn.modules.instancenorm._InstanceNorm) and not part.track_running_stats
        if isinstance(part, kind) and not alone:
            yield f"mixes examples of a batch: use {replacement} instead"
    if isinstance(part, RANDOM) and type(part) not in TORCHS_OWN and getattr(part, "p", 1.0) > 0:
        yield "draws random numbers that no seed reaches: use nn.Dropout, or leave it out"
    if any(nn.parameter.is_lazy(parameter) for parameter in part.parameters(recurse=False)):
        yield "has no shape yet: give it an input size"
    if isinstance(part, TABLES):
        if part.max_norm is not None:
            yield "changes its table in forward: leave out max_norm"
        if part.scale_grad_by_freq:
            yield "counts the ids of a whole batch: leave out scale_grad_by_freq"
        if part.sparse:
            yield "makes sparse gradients, which cannot be clipped and noised: leave out sparse"
    if isinstance(part, nn.RNNBase) and type(part) not in TORCHS_OWN and type(part).forward in FORWARDS:
        yield "is derived from a layer whose code cannot take one example at a time: use torch's layer itself"
    if isinstance(part, nn.RNNBase) and part.proj_size:
        yield "projects its hidden states: leave out proj_size, and put an nn.Linear behind it"
