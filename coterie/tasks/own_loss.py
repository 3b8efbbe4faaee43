"""Losses of one's own: how they are found, checked, and kept from mixing examples.

A loss is a function of outputs `[examples, outputs]` and targets `[examples]` (`[examples, targets]` if there
are several) that returns one number per example. Training never calls it with more than one example: `alone`
passes them one at a time, by `vmap`. So a loss cannot mix examples, whatever it does, and the clip holds for
each. The check comes before any example is read, and says what would go wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import Problem, first_line
from .code import Allowed, find_code

Function = Callable[[Tensor, Tensor], Tensor]
EXAMPLES = 4  # that a check makes up
KEY = "model.loss"
REMEMBERS = (
    "model.loss: '{name}' gives two answers to the same question: it must not remember what it has seen or"
    " draw numbers"
)


def find_loss(name: str, allowed: Allowed | None) -> Function:
    """Import "package.module:function" if it may be run (see `code`)."""
    function: Function = find_code(name, allowed, KEY, "loss")
    return function


def alone(function: Function) -> Function:
    """Return a loss that is given one example at a time, however many there are."""
    from torch.func import vmap

    def one(output: Tensor, target: Tensor) -> Tensor:
        return function(output.unsqueeze(0), target.unsqueeze(0)).reshape(())

    each: Function = vmap(one)
    return each


def check_loss(name: str, function: Function, outputs: int, targets: Callable[[int], Tensor]) -> None:
    """Raise `Problem` if a loss cannot be trained with; `targets(n)` makes up targets of n examples.

    On made-up examples it must return one finite number each, with a finite gradient, that depends on that
    example alone and is the same each time.
    """
    generator = torch.Generator().manual_seed(0)
    output, target = torch.randn(EXAMPLES, outputs, generator=generator), targets(EXAMPLES)
    kept = output.clone(), target.clone()
    together = _called(name, function, output, target)
    if not (torch.equal(output, kept[0]) and torch.equal(target, kept[1])):
        raise Problem(f"{KEY}: '{name}' changes what it is given: return a new tensor")
    if not isinstance(together, Tensor) or tuple(together.shape) != (EXAMPLES,):
        found = tuple(together.shape) if isinstance(together, Tensor) else type(together).__name__
        raise Problem(
            f"{KEY}: '{name}' must return one number per example, so shape ({EXAMPLES},) for {EXAMPLES}"
            f" examples, got {found}; with torch's losses, use reduction='none'"
        )
    if not torch.equal(_called(name, function, output, target), together):
        raise Problem(REMEMBERS.format(name=name))
    swapped = torch.cat([3 * torch.randn(1, outputs, generator=generator), output[1:]])
    if not torch.allclose(_called(name, function, swapped, target)[1:], together[1:], rtol=1e-4, atol=1e-5):
        raise Problem(
            f"{KEY}: '{name}' mixes examples of a batch (another output changes the loss of the others):"
            " compute the loss of each example from that example alone"
        )
    each = alone(function)
    single = _called(name, each, output, target, " one at a time (torch.func.vmap)")
    again = _called(name, each, output, target, " one at a time (torch.func.vmap)")
    if not torch.allclose(single, together, rtol=1e-4, atol=1e-5) or not torch.equal(single, again):
        raise Problem(REMEMBERS.format(name=name))
    leaf = output.clone().requires_grad_()
    loss = each(leaf, target).sum()
    if not loss.requires_grad:
        raise Problem(f"{KEY}: '{name}' does not depend on the model's outputs, so nothing can be learned")
    (gradient,) = torch.autograd.grad(loss, leaf)
    if not (torch.isfinite(single).all() and torch.isfinite(gradient).all()):
        raise Problem(f"{KEY}: '{name}' has a loss or a gradient that is not finite on made-up examples")


def _called(name: str, function: Function, output: Tensor, target: Tensor, how: str = "") -> Any:
    try:
        return function(output, target)
    except Exception as error:  # a user's function may raise anything
        said = first_line(error)
        if "data-dependent control flow" in str(error):
            said = "it decides by a value: use torch.where instead of `if`"
        raise Problem(
            f"{KEY}: '{name}' fails on made-up outputs of shape {tuple(output.shape)}{how}: {said}"
        ) from error
