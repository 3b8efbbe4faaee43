"""A task: a plain module, a loss for each example, a metric; and the layout of its vector."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import Problem, nearest
from .check import check_module
from .layout import Layout
from .losses import LOSSES, SCORE_EACH_CLASS, TWO_CLASSES, squared
from .models import find_factory, setting_problems


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
            torch.default_generator.manual_seed(seed)  # that of the CPU alone: no other is restored
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
