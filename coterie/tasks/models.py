"""Built-in models, and how modules are built from a name, a function, a class or another module.

A built-in model is a factory: a function that takes the shape of one example and the number of outputs.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import Problem, nearest
from .code import Allowed, find_code


def linear(input_shape: tuple[int, ...], outputs: int, bias: bool = True) -> nn.Module:
    """Return a linear layer that starts at zero; the problem is convex, so a random start only adds steps."""
    layer = nn.Linear(math.prod(input_shape), outputs, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(input_shape: tuple[int, ...], outputs: int, hidden: int = 64, layers: int = 1) -> nn.Module:
    """Return linear layers with ReLU between them: `layers` of width `hidden`, then the output layer.

    A single hidden layer starts as torch starts it; deeper networks start as He et al. (2015) do.
    """
    if not all(isinstance(number, int) for number in (hidden, layers)) or hidden < 1 or layers < 0:
        raise Problem(
            f"model 'mlp' needs whole numbers hidden >= 1 and layers >= 0, got {hidden!r} and {layers!r}"
        )
    parts: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    for _ in range(layers):
        parts += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    network = nn.Sequential(*parts, nn.Linear(width, outputs))
    return started(network) if layers > 1 else network


def cnn(input_shape: tuple[int, ...], outputs: int, channels: int = 16) -> nn.Module:
    """Return two strided convolutions, pooling and two linear layers, for images `[height, width]`.

    It starts as He et al. (2015) do. Images may have channels, which may come first (3, 32, 32) or last
    (32, 32, 3).
    """
    if not isinstance(channels, int) or channels < 1:
        raise Problem(f"model 'cnn' needs a whole number channels >= 1, got {channels!r}")
    if len(input_shape) == 2:
        order: nn.Module = nn.Unflatten(1, (1, input_shape[0]))
        depth, height, width = 1, *input_shape
    elif len(input_shape) == 3 and input_shape[-1] in (1, 3):
        height, width, depth = input_shape
        order = ChannelsFirst()
    elif len(input_shape) == 3:
        order = nn.Identity()
        depth, height, width = input_shape
    else:
        raise Problem(f"model 'cnn' needs images, but the examples have shape {input_shape}; use 'mlp'")
    for _ in range(3):  # two strided convolutions and the pooling each halve the image
        height, width = math.ceil(height / 2), math.ceil(width / 2)
    network = nn.Sequential(
        order,
        nn.Conv2d(depth, channels, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(2 * channels * height * width, 32),
        nn.ReLU(),
        nn.Linear(32, outputs),
    )
    return started(network)


def started(network: nn.Sequential) -> nn.Sequential:
    """Start layers with ReLU between them so that signals keep their size from layer to layer (He 2015).

    torch's own start shrinks them by more than half in each layer. Clipping and noise then drown what little
    gradient reaches the first ones.
    """
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers:
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear" if layer is layers[-1] else "relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network


class ChannelsFirst(nn.Module):
    """Move the channels of `[batch, height, width, channels]` to the front."""

    def forward(self, x):  # type: ignore[no-untyped-def]
        """Permute the axes."""
        return x.permute(0, 3, 1, 2)


MODELS: dict[str, Callable[..., nn.Module]] = {"linear": linear, "mlp": mlp, "cnn": cnn}


GIVEN = ("input_shape", "outputs")  # what a factory of models is told of the data


def find_factory(name: str, allowed: Allowed | None = None) -> Callable[..., nn.Module]:
    """Return a built-in model, or import `package.module:function` if it may be run (see `code`)."""
    if ":" not in name:
        if name not in MODELS:
            raise Problem(
                f"model.name: unknown model '{name}'; {nearest(name, MODELS)}"
                " (give your own model as 'package.module:function')"
            )
        return MODELS[name]
    return find_code(name, allowed)  # type: ignore[no-any-return]


def setting_problems(name: str, factory: Callable[..., nn.Module], options: Iterable[str]) -> list[str]:
    """List the settings that a model does not have."""
    accepted, free = _accepted(name, factory)
    known = [key for key in accepted if key not in GIVEN]
    return [
        f"model.{key}: '{name}' has no such setting (it has: {', '.join(known) or 'none'})"
        for key in options
        if key in GIVEN or (key not in accepted and not free)
    ]


def _accepted(name: str, factory: Callable[..., nn.Module]) -> tuple[list[str], bool]:
    """Return the names of a factory's arguments, and whether it takes any others."""
    try:
        accepted = inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        raise Problem(f"model.name: cannot tell which arguments '{name}' takes: {error}") from error
    return list(accepted), any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())


def _required(factory: Callable[..., nn.Module]) -> list[str]:
    """Return the names of the arguments that a factory cannot do without."""
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(factory).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in free]


@dataclass(frozen=True, eq=False)
class Factory:
    """A function or class that makes modules, and its arguments; `settings` are those the user chose.

    `name` is that of a built-in model, or "package.module:function".
    """

    name: str
    function: Callable[..., nn.Module]
    arguments: Mapping[str, Any]
    settings: Mapping[str, Any]

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be pickled if the model cannot be found again by its name."""
        if "<" in self.name:
            raise Problem(
                f"the model '{self.name}' cannot be pickled: define its function or class at the top of a"
                " module, or save the result with result.save"
            )
        return dict(vars(self))

    @property
    def built_in(self) -> bool:
        """Whether Coterie has this model, so that its name and settings are enough to build it again."""
        return MODELS.get(self.name) is self.function

    def __call__(self) -> nn.Module:
        """Return a new module."""
        try:
            return self.function(**self.arguments)
        except Problem:
            raise
        except Exception as error:  # a user's function may raise anything
            raise Problem(f"model.name: '{self.name}' failed: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, eq=False)
class Copies:
    """A factory that copies a module."""

    module: nn.Module

    def __call__(self) -> nn.Module:
        """Return a copy of the module."""
        try:
            return copy.deepcopy(self.module)
        except RuntimeError as error:
            raise Problem(
                f"model: the module cannot be copied ({error}): give a function that makes it"
            ) from error


def make_factory(
    model: str | Callable[..., nn.Module] | nn.Module,
    shape: tuple[int, ...],
    outputs: int,
    options: Mapping[str, Any] | None = None,
    allowed: Allowed | None = None,
) -> Factory:
    """Return the factory of a model: a name, "package.module:function", a function, a class or a module.

    A user's function or class gets `input_shape` and `outputs` if it has such parameters. Copies of
    a module start from its numbers, whatever the seed. `allowed` says which modules a name from a
    configuration may stand for.
    """
    function: Callable[..., nn.Module]
    if isinstance(model, str):
        name, function = model, find_factory(model, allowed)
    elif isinstance(model, nn.Module):
        name, function = qualified_name(type(model)), Copies(Copies(model)())  # later changes do not count
    elif callable(model):
        name, function = qualified_name(model), model
    else:
        raise Problem(f"model must be a name, a function, a class or a torch.nn.Module, got {model!r}")
    settings = dict(options or {})
    if settings and isinstance(function, Copies):
        raise Problem("model_options: a module is made already; give its class to choose its settings")
    problems = setting_problems(name, function, settings)
    if problems:
        raise Problem("\n".join(problems))
    accepted, free = _accepted(name, function)
    given = zip(GIVEN, (shape, outputs), strict=True)
    arguments = {key: value for key, value in given if key in accepted or free} | settings
    missing = [key for key in _required(function) if key not in arguments]
    if missing:
        raise Problem(
            f"model: '{name}' needs '{missing[0]}', but what makes a module gets only input_shape and"
            " outputs, where it has these parameters: give others as model_options (keys of [model] in a"
            " file), or give a module"
        )
    return Factory(name, function, arguments, settings)


def qualified_name(thing: Any) -> str:
    """Return where a function or class is defined: "package.module:name".

    >>> qualified_name(linear)
    'coterie.tasks.models:linear'
    """
    thing = getattr(thing, "func", thing)  # of functools.partial
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"{getattr(thing, '__module__', type(thing).__module__)}:{name}"
