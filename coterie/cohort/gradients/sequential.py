"""A fast tape for plain sequences of known layers: all batches of a cohort at once, without vmap.

Every layer of such a sequence treats examples independently by construction, so a row can be processed as
one batch. Linear layers and convolutions are products with each row's own weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...tasks.layers.dropout import Dropout, Dropout1d, Dropout2d, Dropout3d, dropping
from ...tasks.models import ChannelsFirst
from ...tasks.task import Task
from .layers import Convolution, Pooling, is_tiled
from .tape import Recorder, Summer, Tape

# Layers without parameters that treat the examples of a batch independently, whatever their input.
APART = (
    nn.Flatten, nn.Unflatten, nn.Identity, ChannelsFirst, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU,
    nn.LeakyReLU, nn.SiLU, nn.Softplus, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d,
    nn.AvgPool2d, nn.AvgPool3d, Dropout, Dropout1d, Dropout2d, Dropout3d,
)  # fmt: skip


def is_sequence(task: Task) -> bool:
    """Return whether a module is a plain sequence of known layers, all parameters trained and used once."""
    layers = list(layers_of("", task.module))
    modules = [id(module) for _, module in layers]
    parameters = [id(p) for _, module in layers for p in module.parameters()]
    return (
        type(task.module) is nn.Sequential
        and set(dict(task.module.named_parameters())) == set(task.layout.names)
        and len(set(modules)) == len(modules)
        and len(set(parameters)) == len(parameters)
        and all(_known(module) for _, module in layers)
    )


def layers_of(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the named layers of a sequence and of the sequences inside it; look into nothing else."""
    if type(module) is nn.Sequential and not (module._forward_hooks or module._forward_pre_hooks):
        for key, part in module._modules.items():  # named_children skips repeated modules
            yield from layers_of(f"{name}.{key}" if name else key, part)
    else:
        yield name, module


def _known(layer: nn.Module) -> bool:
    module: Any = layer
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    if type(module) is nn.Flatten:
        return bool(module.start_dim == 1)
    if type(module) is nn.Unflatten:
        return isinstance(module.dim, int) and module.dim >= 1
    if type(module) is nn.Conv2d:
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return type(module) is nn.Linear or type(module) in APART


def sequential(task: Task) -> Recorder:
    """Return the recorder of a task whose module is a plain sequence."""
    layers: list[tuple[str, Any]] = list(layers_of("", task.module))
    linear = [name for name, module in layers if type(module) is nn.Linear]
    channels_last = frozenset(f"{name}.weight" for name, module in layers if type(module) is nn.Conv2d)
    biased = frozenset(name for name, module in layers if name in linear and module.bias is not None)

    def run(parameters: dict[str, Tensor], x: Tensor, y: Tensor, keys: Tensor | None = None) -> Tape:
        lead = x.shape[:2]
        with torch.enable_grad():
            with dropping(None if keys is None else keys.flatten()):
                value, inputs, outputs = _forward(layers, parameters, x)
            loss = task.loss_of(value, y.flatten(0, 1)).sum()
        errors = dict(zip(outputs, torch.autograd.grad(loss, list(outputs.values())), strict=True))
        explicit: dict[str, Tensor] = {}
        for name in outputs.keys() - set(linear):
            error = errors.pop(name).flatten(2)
            weight = parameters[f"{name}.weight"].movedim(2, -1)
            gradient = torch.bmm(error, inputs.pop(name))
            explicit[f"{name}.weight"] = gradient.reshape(*lead, *weight.shape[1:])
            if f"{name}.bias" in parameters:
                explicit[f"{name}.bias"] = error.sum(-1).unflatten(0, lead)
        kept = {name: inputs[name].detach() for name in errors}
        return Tape(explicit, errors, kept, biased, channels_last)

    return run


def sequential_sums(task: Task) -> Summer:
    """Return the summer of a task whose module is a plain sequence.

    The gradients of its weights are products over a whole row.
    """
    layers: list[tuple[str, Any]] = list(layers_of("", task.module))

    def run(
        parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor, keys: Tensor | None = None
    ) -> dict[str, Tensor]:
        with torch.enable_grad():
            leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            with dropping(None if keys is None else keys.flatten()):
                value, _, _ = _forward(layers, leaves, x)
            loss = (task.loss_of(value, y.flatten(0, 1)) * weight.flatten()).sum()
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    return run


def _forward(
    layers: list[tuple[str, Any]], parameters: dict[str, Tensor], x: Tensor
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Run a sequence on x `[rows, width, ...]`; also return inputs and outputs of layers with parameters."""
    lead = x.shape[:2]
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    value = x.flatten(0, 1)
    for name, module in layers:
        if type(module) is nn.Linear:
            weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
            inputs[name] = value.unflatten(0, lead)
            value = torch.bmm(inputs[name], weight.transpose(1, 2))
            value = value if bias is None else value + bias.unsqueeze(1)
            outputs[name] = value = _with_gradient(value)
            value = value.flatten(0, 1)
        elif type(module) is nn.Conv2d:
            weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
            value, inputs[name] = Convolution.apply(value, weight, bias, module)
            outputs[name] = value = _with_gradient(value)
        elif is_tiled(module):
            value = Pooling.apply(value, module)
        else:
            value = module(value)
    return value, inputs, outputs


def _with_gradient(value: Tensor) -> Tensor:
    """Make gradients reach a layer's output, even that of the first layer, before which nothing needs one."""
    return value if value.requires_grad else value.requires_grad_()
