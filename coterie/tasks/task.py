"""A task: a plain module, a loss per example, a metric, and the layout of its vector."""

from __future__ import annotations

import copy
import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._inputs import Input
from ..errors import Problem, plainly
from .adaptation import Adaptation
from .check import check_exchanged, check_module
from .code import Allowed
from .layers import exchanged, is_exchanged, restored
from .layers.dropout import draws, dropping
from .layers.functions import exchanging, functions_of
from .layers.unpack import pack, unpack
from .layout import Layout, call, fill, tensors_of, tied_names
from .losses import LOSSES, NUMBERS, TWO_CLASSES, outputs_of, predicted_class, predicted_number, squared
from .models import make_factory, qualified_name
from .own_loss import alone, check_loss, find_loss
from .settings import LossSettings, unknown_loss
from .trials import Kind, kind_of, trial_examples

# The seed for whatever a module draws when it is built and never trains.
FROZEN_SEED = 0


@dataclass(frozen=True)
class Task:
    """What is learned: `build()` makes the module, `loss` names the loss of one example.

    `shape` is that of one example's features, `classes` their number (0 for regression). A loss of one's own
    is the function `own_loss`, and `loss` is its name. Features are numbers or, with `ids`, whole numbers
    that the module looks up in a table. With several `inputs`, an example is a flat row of them, and the
    module gets a dict. With several `targets` per example there is an output for each, and their losses and
    scores are means over them; with `classes` (two), each is a label of its own.
    """

    build: Callable[[], nn.Module]
    loss: str
    shape: tuple[int, ...]
    classes: int = 0
    settings: LossSettings = LossSettings()
    own_loss: Callable[[Tensor, Tensor], Tensor] | None = None
    ids: bool = False
    adaptation: Adaptation = Adaptation()
    inputs: tuple[Input, ...] = ()
    targets: int = 0

    def __post_init__(self) -> None:
        self.settings.check(self.loss, self.classes, self.targets)
        if self.own_loss is not None:
            return
        if self.loss not in LOSSES:
            raise unknown_loss(self.loss)
        if self.targets and self.classes and self.loss not in (*TWO_CLASSES, *NUMBERS):
            raise Problem(
                f"model.loss: '{self.loss}' is for one target, but the data has {self.targets}; use"
                " 'logistic'"
            )
        if self.loss in NUMBERS and self.classes:
            raise Problem(f"model.loss: '{self.loss}' needs a numeric target, but the data has classes")
        if self.loss not in NUMBERS and not self.classes:
            raise Problem(f"model.loss: '{self.loss}' needs classes, but the target is a number")
        if self.loss in TWO_CLASSES and self.classes != 2:
            raise Problem(
                f"model.loss: '{self.loss}' needs two classes, but the data has {self.classes}; use"
                " 'one-against-rest' or 'cross-entropy', or set one class against the rest with data.positive"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made anew; refuse to be pickled if the loss cannot be found by its name."""
        if self.own_loss is not None and "<" in self.loss:
            raise Problem(
                f"the loss '{self.loss}' cannot be pickled: define its function at the top of a module, or"
                " save the result with result.save"
            )
        return {key: value for key, value in vars(self).items() if key != "_loss"}

    @property
    def outputs(self) -> int:
        """The number of outputs that the module must return per example."""
        return outputs_of(self.loss, self.classes, self.targets)

    @property
    def metric(self) -> str:
        """Name of the test score."""
        return "accuracy" if self.classes else "mse"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return bool(self.classes)

    def seeded_module(self, seed: int = FROZEN_SEED) -> nn.Module:
        """Make a module with torch's random numbers drawn from a seed, leaving the global state alone."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU alone: no other generator is restored
            module = self.build()
            if not isinstance(module, nn.Module):
                raise Problem(f"model.name: the factory must return a torch.nn.Module, got {module!r}")
            return self.adaptation.apply(module.float())

    @cached_property
    def module(self) -> nn.Module:
        """The checked module that all runs train with.

        The layout describes its trainable parameters, whose values a vector replaces. Its frozen
        parameters and buffers are part of every model. They come from one fixed seed, so that a
        training that is resumed or repeated has the same ones, and every seed of training shares them.
        """
        module = pack(exchanged(self.seeded_module(), always=bool(self.inputs)), self.inputs)
        check_module(module, self.shape, self.outputs, self.ids, self.inputs)
        self._check_frozen(module)
        if is_exchanged(module):
            check_exchanged(
                module, restored(module).eval(), self.shape, kind_of(module, self.ids, self.inputs)
            )
        if self.own_loss is not None:
            check_loss(self.loss, self.own_loss, self.outputs, self._made_up_targets)
        examples = trial_examples(self.shape, kind=kind_of(module, self.ids, self.inputs))[0]
        vars(self)["functions"] = functions_of(module, examples)
        return module

    def _made_up_targets(self, count: int) -> Tensor:
        """Return targets of different examples: every class in turn, or numbers from 0 to 1."""
        if self.targets:
            numbers = torch.arange(count * self.targets).reshape(count, self.targets)
            return numbers % 2 if self.classes else numbers / numbers.max()
        return torch.arange(count) % self.classes if self.classes else torch.linspace(0, 1, count)

    def _check_frozen(self, module: nn.Module) -> None:
        """Raise `Problem` if a module's frozen parts are not the same each time it is made."""
        tensors, trained = tensors_of(module), Layout.of(module).names
        if len(tensors) == len(trained):
            return
        again = tensors_of(self.seeded_module())
        for name, tensor in tensors.items():
            if name not in trained and not (name in again and torch.equal(tensor, again[name])):
                raise Problem(
                    f"model: '{name}' is not trained and differs each time the module is made: draw it with"
                    " torch's global generator, which is seeded, or load it from a file"
                )

    @cached_property
    def frozen_digest(self) -> str:
        """A digest of the frozen parts and the public start; "" if there are none.

        A training resumes only with its own.
        """
        frozen = [(k, tensor) for k, tensor in tensors_of(self.module).items() if k not in self.layout.names]
        digest = hashlib.sha256(self.start_digest.encode())
        for name, tensor in frozen:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest() if frozen or self.start_digest else ""

    @property
    def start_digest(self) -> str:
        """The digest of the public start; "" if there is none."""
        return "" if self.adaptation.start is None else self.adaptation.start.digest

    @property
    def device(self) -> torch.device:
        """Where the module's own tensors are."""
        return next(self.module.parameters()).device

    @cached_property
    def layout(self) -> Layout:
        """The layout of the module's vector."""
        return Layout.of(self.module)

    @cached_property
    def tied(self) -> dict[str, str]:
        """Further names of tensors that have several, each with the first (see `tied_names`)."""
        return tied_names(self.module)

    @property
    def trained_names(self) -> list[str]:
        """The names of all trained tensors of the user's own module, in which adapters are merged."""
        names = (re.sub(r"(^|\.)lora_(down|up)\.weight$", r"\1weight", name) for name in self.layout.names)
        return list(dict.fromkeys(names))

    def initial(self, seed: int) -> Tensor:
        """Return an initial vector; the same seed gives the same vector."""
        return self.layout.flatten(dict(self.seeded_module(seed).named_parameters())).detach()

    @cached_property
    def draws(self) -> bool:
        """Whether the module drops numbers while it trains, so that examples need keys."""
        return any(map(draws, self.module.modules())) or F.dropout in self.functions

    @property
    def functions(self) -> set[Any]:
        """The functions that the module calls and that are exchanged (`layers.functions`)."""
        _ = self.module  # which finds out
        found: set[Any] = vars(self)["functions"]
        return found

    def predict(self, parameters: Mapping[str, Tensor], x: Tensor, key: Tensor | None = None) -> Tensor:
        """Return the module's outputs for examples `[examples, ...]`.

        With a `key`, for a single example, numbers are dropped as in training (`layers.dropout`).
        """
        with dropping(key), exchanging(bool(self.functions)):
            return call(self.module, parameters, x, self.tied)

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each output."""
        if self.targets and self.own_loss is None:
            return self._loss(output.unsqueeze(-1), target).mean(-1)
        losses = self._loss(output, target)
        if not self.settings.class_weights:
            return losses
        weights = torch.tensor(self.settings.class_weights, device=output.device)
        return losses * weights[target]

    @cached_property
    def _loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss as a function; one of one's own sees one example at a time."""
        if self.own_loss is not None:
            return alone(self.own_loss)
        if self.loss == "huber":
            return functools.partial(LOSSES["huber"], width=self.settings.huber_delta)
        return LOSSES[self.loss]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the features that the module takes."""
        return torch.int64 if self.ids else torch.float32

    @property
    def kind(self) -> Kind:
        """What examples are: numbers, ids or several inputs."""
        return kind_of(self.module, self.ids, self.inputs)

    def blank_targets(self, *shape: int) -> Tensor:
        """Return targets that are all zero, for trials on made-up examples."""
        kind = torch.int64 if self.classes else torch.float32
        several = (self.targets,) if self.targets else ()
        return torch.zeros(*shape, *several, dtype=kind, device=self.device)

    def losses(
        self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, key: Tensor | None = None
    ) -> Tensor:
        """Return the loss of each example; with a `key`, that of a single example in training."""
        return self.loss_of(self.predict(parameters, x, key), y)

    def scores(self, parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Return what each example adds to the score: a hit, or a squared error."""
        output = self.predict(parameters, x)
        if self.targets and self.classes:
            return ((output > 0) == (y > 0)).float().mean(-1)
        if self.targets:
            return (predicted_number(self.loss, output.unsqueeze(-1)) - y).square().mean(-1)
        if not self.classes:
            return squared(predicted_number(self.loss, output).unsqueeze(-1), y)
        return (predicted_class(self.loss, output) == y).float()

    def state(self, vector: Tensor) -> dict[str, Tensor]:
        """Return all tensors of one model by name: the vector's, and those that are not trained.

        Each is a contiguous copy on the CPU. A tied tensor appears once (see `tied_names`).
        """
        whole = tensors_of(self.module) | self.layout.unflatten(vector.detach())
        if self.adaptation.lora:  # which are merged into the layers they adapt
            whole = tensors_of(self.to_module(vector))
        return {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in whole.items()
        }

    def to_module(self, vector: Tensor) -> nn.Module:
        """Return the model of one vector as a plain module on the CPU."""
        module = copy.deepcopy(self.module).cpu()
        fill(module, tensors_of(self.module) | self.layout.unflatten(vector.detach()))
        return unpack(restored(module)).cpu()


@plainly
def make_task(
    model: str | Callable[..., nn.Module] | nn.Module,
    *,
    shape: tuple[int, ...],
    classes: int,
    loss: str | Callable[[Tensor, Tensor], Tensor] = "auto",
    options: Mapping[str, Any] | None = None,
    allowed: Allowed | None = None,
    settings: LossSettings | None = None,
    ids: bool = False,
    adaptation: Adaptation | None = None,
    inputs: tuple[Input, ...] = (),
    targets: int = 0,
) -> Task:
    """Return a task for a model: a name, "package.module:function", a function, a class or a module.

    A user's function or class gets `input_shape` and `outputs` if it has such parameters; `options`
    are its other arguments. The `loss` is a name, "package.module:function" or a function, and `settings` are
    its own. `allowed` says which modules a name from a configuration may stand for. With `ids`, examples are
    whole numbers that the module looks up in a table. `adaptation` says what of the module is trained. With
    several `inputs`, the module gets a dict of them. `targets` is the number of targets per example, if there
    are several.
    """
    own, name = (None, loss) if isinstance(loss, str) else (loss, qualified_name(loss))
    if own is None and ":" in name:
        own = find_loss(name, allowed)
    if name == "auto":
        name = ("logistic" if targets else "cross-entropy") if classes else "squared"
    factory = make_factory(model, shape, outputs_of(name, classes, targets), options, allowed)
    return Task(
        factory,
        name,
        shape,
        classes,
        settings or LossSettings(),
        own,
        ids,
        adaptation or Adaptation(),
        inputs,
        targets,
    )
