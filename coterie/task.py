"""A task: a plain module, a loss for each example, a metric; and the layout of its vector."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from .errors import Problem, nearest
from .models import MODELS

MIXERS: dict[type[nn.Module], str] = {
    nn.modules.batchnorm._BatchNorm: "GroupNorm (or LayerNorm)",
    nn.modules.instancenorm._InstanceNorm: "GroupNorm with one group a channel",
}
RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
GIVEN = ("input_shape", "outputs")  # what a factory of models is told of the data


@dataclass(frozen=True)
class Layout:
    """How a module's trainable parameters lie in one flat vector of length `size`."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Read the layout off a module."""
        trained = {k: p for k, p in module.named_parameters() if p.requires_grad}
        return cls(tuple(trained), tuple(p.shape for p in trained.values()))

    @cached_property
    def lengths(self) -> list[int]:
        """Numbers in each parameter."""
        return [shape.numel() for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        """Length of the vector."""
        return sum(self.lengths)

    def unflatten(self, vectors: Tensor) -> dict[str, Tensor]:
        """Cut vectors `[..., size]` into named parameters `[..., *shape]`."""
        pieces = torch.split(vectors, self.lengths, dim=-1)
        return {
            name: piece.unflatten(-1, shape) if shape else piece.squeeze(-1)
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def flatten(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Lay named parameters `[..., *shape]` end to end: `[..., size]`."""
        pieces = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            value = parameters[name]
            lead = value.shape[: value.dim() - len(shape)]
            pieces.append(value.reshape(*lead, shape.numel()))
        return torch.cat(pieces, dim=-1)


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Squared error of each prediction."""
    return (output.squeeze(-1) - target).square()


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of each prediction, a score for each class."""
    return F.cross_entropy(output, target, reduction="none")


def logistic(output: Tensor, target: Tensor) -> Tensor:
    """Logistic loss of each score; the target is 0 or 1."""
    return F.softplus(-(2 * target - 1) * output.squeeze(-1))


def hinge(output: Tensor, target: Tensor) -> Tensor:
    """Hinge loss of each score; the target is 0 or 1."""
    return (1 - (2 * target - 1) * output.squeeze(-1)).clamp(min=0)


def squared_hinge(output: Tensor, target: Tensor) -> Tensor:
    """Squared hinge loss of each score; the target is 0 or 1."""
    return hinge(output, target).square()


def one_against_rest(output: Tensor, target: Tensor) -> Tensor:
    """Hinge losses of each class against the rest, added up; a score for each class."""
    classes = torch.arange(output.shape[-1], device=output.device)
    signs = 2 * (target.unsqueeze(-1) == classes).to(output.dtype) - 1
    return (1 - signs * output).clamp(min=0).sum(-1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared": squared,
    "cross-entropy": cross_entropy,
    "logistic": logistic,
    "hinge": hinge,
    "squared-hinge": squared_hinge,
    "one-against-rest": one_against_rest,
}
TWO_CLASSES = ("logistic", "hinge", "squared-hinge")
SCORE_EACH_CLASS = ("cross-entropy", "one-against-rest")


@dataclass(frozen=True)
class Task:
    """What is learned: `build()` makes the module, `loss` names the loss of one example.

    `shape` is that of one example's features, `classes` their number (0 for regression).
    """

    build: Callable[[], nn.Module]
    loss: str
    shape: tuple[int, ...]
    classes: int = 0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise Problem(f"model.loss: unknown loss '{self.loss}'; {nearest(self.loss, LOSSES)}")
        if self.loss == "squared" and self.classes:
            raise Problem("model.loss: 'squared' needs a numeric target, got classes")
        if self.loss != "squared" and not self.classes:
            raise Problem(f"model.loss: '{self.loss}' needs classes, the target is numeric")
        if self.loss in TWO_CLASSES and self.classes != 2:
            raise Problem(
                f"model.loss: '{self.loss}' needs two classes, the data has {self.classes}; use"
                " 'one-against-rest' or 'cross-entropy', or set one class against the rest by data.positive"
            )

    @property
    def outputs(self) -> int:
        """How many numbers the module must give for one example."""
        return self.classes if self.loss in SCORE_EACH_CLASS else 1

    @property
    def metric(self) -> str:
        """Name of the test score."""
        return "accuracy" if self.classes else "mse"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return bool(self.classes)

    @cached_property
    def module(self) -> nn.Module:
        """The checked module whose parameters the layout describes."""
        with torch.random.fork_rng(devices=[]):
            module = self.build()
        if not isinstance(module, nn.Module):
            raise Problem(f"model.name: the factory must give a torch.nn.Module, got {module!r}")
        module = module.float()
        check_module(module, self.shape, self.outputs)
        return module

    @property
    def device(self) -> torch.device:
        """Where the module's own tensors are."""
        return next(self.module.parameters()).device

    @cached_property
    def layout(self) -> Layout:
        """The layout of the module's vector."""
        return Layout.of(self.module)

    def initial(self, seed: int) -> Tensor:
        """Make an initial vector; the same seed gives the same vector."""
        layout = self.layout  # made first: making it draws random numbers too
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return layout.flatten(dict(self.build().float().named_parameters())).detach()

    def predict(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Give the module's outputs for examples `[examples, ...]`."""
        output: Tensor = functional_call(self.module, dict(parameters), (x,))
        return output

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Give the loss of each output."""
        return LOSSES[self.loss](output, target)

    def blank_targets(self, *shape: int) -> Tensor:
        """Make targets of zeros, for trials on made-up examples."""
        kind = torch.int64 if self.classes else torch.float32
        return torch.zeros(*shape, dtype=kind, device=self.device)

    def losses(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Give the loss of each example."""
        return self.loss_of(self.predict(parameters, x), y)

    def scores(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Give what each example adds to the score: a hit, or a squared error."""
        output = self.predict(parameters, x)
        if self.loss == "squared":
            return squared(output, y)
        if self.loss in SCORE_EACH_CLASS:
            return (output.argmax(-1) == y).float()
        return ((output.squeeze(-1) > 0).long() == y).float()

    def to_module(self, vector: Tensor) -> nn.Module:
        """Put one vector back into a plain module."""
        module = self.build().float()
        module.load_state_dict(self.layout.unflatten(vector.detach().cpu()), strict=False)
        return module


def check_module(module: nn.Module, shape: tuple[int, ...], outputs: int) -> None:
    """Refuse a module that cannot be trained privately, naming what to use instead."""
    for name, part in module.named_modules():
        where = f"model: layer '{name or type(part).__name__}' ({type(part).__name__})"
        for kind, replacement in MIXERS.items():
            if isinstance(part, kind) and not (
                isinstance(part, nn.modules.instancenorm._InstanceNorm) and not part.track_running_stats
            ):
                raise Problem(f"{where} mixes examples of a batch: use {replacement} instead")
        if isinstance(part, RANDOM) and getattr(part, "p", 1.0) > 0:
            raise Problem(
                f"{where} draws random numbers of its own, which no seed of a run reaches: leave it out"
            )
        if any(nn.parameter.is_lazy(p) for p in part.parameters(recurse=False)):
            raise Problem(f"{where} has no shape yet: give its input size")
    layout = Layout.of(module)
    if not layout.size:
        raise Problem("model: the module has no trainable parameter")
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise Problem(f"model: parameter '{name}' must be float32, got {parameter.dtype}")
    _check_behaviour(module, shape, outputs)


def _check_behaviour(module: nn.Module, shape: tuple[int, ...], outputs: int) -> None:
    """Try the module on made-up examples, small and large: right output, no mixing, works one at a time."""
    generator = torch.Generator().manual_seed(0)
    buffers = {k: b.clone() for k, b in module.named_buffers()}
    small = torch.rand(3, *shape, generator=generator)
    for x in (small, 30 * torch.randn(3, *shape, generator=generator), 1000 * small - 300):
        try:
            with torch.no_grad():
                together = module(x)
                alone = torch.cat([module(x[i : i + 1]) for i in range(3)])
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if x is not small:  # large values may well be out of a table's range
                continue
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Problem(f"model: the module does not take examples of shape {shape}: {said}") from error
        if not isinstance(together, Tensor) or tuple(together.shape) != (3, outputs):
            raise Problem(
                f"model: the module must give {outputs} number(s) an example,"
                f" shape (3, {outputs}) for three, got {tuple(getattr(together, 'shape', ()))}"
            )
        size = float(together.abs().max())
        if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * max(1.0, size), equal_nan=True):
            raise Problem(
                "model: the module mixes examples of a batch (its output for one depends on the"
                " others): normalise within an example, as GroupNorm and LayerNorm do"
            )
    if any(not torch.equal(b, buffers[k]) for k, b in module.named_buffers()):
        raise Problem("model: the module changes its buffers in forward: use a stateless layer")
    parameters = {k: p.detach().unsqueeze(0) for k, p in module.named_parameters()}

    def one(own: dict[str, Tensor], example: Tensor) -> Any:
        return functional_call(module, own, (example.unsqueeze(0),))

    try:
        vmap(vmap(one, (None, 0)))(parameters, small.unsqueeze(0))
    except RuntimeError as error:
        raise Problem(
            "model: a layer cannot be run for many silos at once (torch.func.vmap says:"
            f" {str(error).splitlines()[0]})"
        ) from error


def make_task(
    name: str,
    *,
    shape: tuple[int, ...],
    classes: int,
    loss: str = "auto",
    options: Mapping[str, Any] | None = None,
) -> Task:
    """Make a task from a built-in model's name or from `package.module:function`.

    A factory of one's own gets `input_shape` and `outputs` if it has such parameters.
    """
    if loss == "auto":
        loss = "cross-entropy" if classes else "squared"
    outputs = classes if loss in SCORE_EACH_CLASS else 1
    factory = find_factory(name)
    given = {"input_shape": shape, "outputs": outputs}
    accepted = inspect.signature(factory).parameters
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    problems = setting_problems(name, factory, options or {})
    if problems:
        raise Problem("\n".join(problems))
    arguments = {k: v for k, v in given.items() if k in accepted or free} | dict(options or {})

    def build() -> nn.Module:
        try:
            module: nn.Module = factory(**arguments)
        except Problem:
            raise
        except Exception as error:  # whatever a factory of one's own may raise
            raise Problem(f"model.name: '{name}' failed: {type(error).__name__}: {error}") from error
        return module

    return Task(build, loss, shape, classes)


def setting_problems(name: str, factory: Callable[..., nn.Module], options: Iterable[str]) -> list[str]:
    """List the settings that a model does not have."""
    accepted = inspect.signature(factory).parameters
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    known = [key for key in accepted if key not in GIVEN]
    return [
        f"model.{key}: '{name}' has no such setting (it has: {', '.join(known)})"
        for key in options
        if key in GIVEN or (key not in accepted and not free)
    ]


def find_factory(name: str) -> Callable[..., nn.Module]:
    """Find a built-in model, or import `package.module:function`."""
    if ":" not in name:
        if name not in MODELS:
            raise Problem(
                f"model.name: unknown model '{name}'; {nearest(name, MODELS)}"
                " (a model of your own is 'package.module:function')"
            )
        return MODELS[name]
    module_name, _, function = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise Problem(f"model.name: cannot import '{name}': {error}") from error
    if not callable(found):
        raise Problem(f"model.name: '{name}' is not a function")
    return found  # type: ignore[no-any-return]
