"""Recurrent cells along a sequence, for many models and examples at once, with errors by hand.

`vmap` would run every operation of every step through its layers. Here it only folds its axes: examples that
share a model into one axis, models into another. Then each step is a product of matrices for each model.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Axes: [models, examples, steps, ...] for what runs along a sequence, [models, examples, ...] for states and
# [models, gates, hidden] for the recurrent weight.


class States(NamedTuple):
    """All hidden states, all cells (of an LSTM) and what the way back needs."""

    hidden: Tensor
    cell: Tensor
    kept: Tensor


def _lstm(given: Tensor, _: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> States:
    size, turned = hidden.shape[-1], weight.transpose(1, 2)
    kept, hiddens = torch.empty_like(given), given.new_empty(*given.shape[:-1], size)
    cells = torch.empty_like(hiddens)
    for step in range(len(given)):
        gates = torch.baddbmm(given[step], hidden, turned, out=kept[step])
        gates[..., : 2 * size].sigmoid_()
        gates[..., 2 * size : 3 * size].tanh_()
        gates[..., 3 * size :].sigmoid_()
        enter, stay, new, out = gates.split(size, -1)
        cell = torch.mul(stay, cell, out=cells[step]).addcmul_(enter, new)
        hidden = torch.tanh(cell, out=hiddens[step]).mul_(out)
    return States(hiddens, cells, kept)


def _lstm_back(errors: Back, weight: Tensor, states: States, first: tuple[Tensor, Tensor]) -> Back:
    enter, stay, new, out = states.kept.chunk(4, -1)
    before, bent = torch.cat([first[1].unsqueeze(0), states.cell[:-1]]), torch.tanh(states.cell)
    slopes = torch.stack(  # of all steps at once: by the cell, and last by the hidden state
        [new * enter * (1 - enter), before * stay * (1 - stay), enter * (1 - new * new)], -2
    )
    open_slope, to_cell = bent * out * (1 - out), out * (1 - bent * bent)
    found = torch.empty_like(states.kept).unflatten(-1, (4, -1))
    hidden, cell = torch.zeros_like(first[0]), torch.zeros_like(first[1])
    for step in reversed(range(len(found))):
        hidden = hidden + errors.given[step]
        cell = torch.addcmul(cell + errors.hidden[step], hidden, to_cell[step])
        torch.mul(slopes[step], cell.unsqueeze(-2), out=found[step][..., :3, :])
        torch.mul(hidden, open_slope[step], out=found[step][..., 3, :])
        cell, hidden = cell * stay[step], torch.bmm(found[step].flatten(-2), weight)
    return Back(found.flatten(-2), found.new_empty(*found.shape[:-2], 0), hidden, cell)


def _gru(given: Tensor, inner: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> States:
    size, turned = hidden.shape[-1], weight.transpose(1, 2)
    kept = given.new_empty(*given.shape[:-1], 4 * size)
    hiddens = given.new_empty(*given.shape[:-1], size)
    for step in range(len(given)):
        within = torch.baddbmm(inner[step], hidden, turned)
        reset, update, new, last = kept[step].split(size, -1)
        torch.add(given[step][..., :size], within[..., :size], out=reset).sigmoid_()
        torch.add(given[step][..., size : 2 * size], within[..., size : 2 * size], out=update).sigmoid_()
        last.copy_(within[..., 2 * size :])
        torch.addcmul(given[step][..., 2 * size :], reset, last, out=new).tanh_()
        hidden = torch.lerp(new, hidden, update, out=hiddens[step])
    return States(hiddens, given.new_empty(*given.shape[:-1], 0), kept)


def _gru_back(errors: Back, weight: Tensor, states: States, first: tuple[Tensor, Tensor]) -> Back:
    size = weight.shape[-1]
    given = errors.given.new_empty(*errors.given.shape[:-1], 3 * size)
    inner, hidden = torch.empty_like(given), torch.zeros_like(first[0])
    for step in reversed(range(len(given))):
        reset, update, new, last = states.kept[step].split(size, -1)
        hidden = hidden + errors.given[step]
        before = states.hidden[step - 1] if step else first[0]
        to_reset, to_update, to_new = given[step].split(size, -1)
        torch.mul(hidden, (1 - update) * (1 - new * new), out=to_new)
        torch.mul(hidden, before - new, out=to_update).mul_(update * (1 - update))
        torch.mul(to_new, last, out=to_reset).mul_(reset * (1 - reset))
        inner[step][..., : 2 * size] = given[step][..., : 2 * size]
        torch.mul(to_new, reset, out=inner[step][..., 2 * size :])
        hidden = torch.baddbmm(hidden * update, inner[step], weight)
    return Back(given, inner, hidden, first[1])


def _plain(rectified: bool):  # type: ignore[no-untyped-def]
    def forward(given: Tensor, _: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor) -> States:
        turned, hiddens = weight.transpose(1, 2), torch.empty_like(given)
        for step in range(len(given)):
            hidden = torch.baddbmm(given[step], hidden, turned, out=hiddens[step])
            hidden = hidden.relu_() if rectified else hidden.tanh_()
        nothing = given.new_empty(*given.shape[:-1], 0)
        return States(hiddens, nothing, nothing)

    def back(errors: Back, weight: Tensor, states: States, first: tuple[Tensor, Tensor]) -> Back:
        found, hidden = torch.empty_like(states.hidden), torch.zeros_like(first[0])
        for step in reversed(range(len(found))):
            value = states.hidden[step]
            slope = (value > 0).to(value) if rectified else 1 - value * value
            torch.mul(hidden + errors.given[step], slope, out=found[step])
            hidden = torch.bmm(found[step], weight)
        return Back(found, found.new_empty(*found.shape[:-1], 0), hidden, first[1])

    return forward, back


class Back(NamedTuple):
    """Errors: of what is given to each step, of what comes from the last hidden state, and of the states.

    On the way in, `given` and `hidden` are the errors of all hidden states and of all cells.
    """

    given: Tensor
    hidden: Tensor
    first: Tensor
    cell: Tensor


CELLS = {"LSTM": (_lstm, _lstm_back), "GRU": (_gru, _gru_back), "tanh": _plain(False), "relu": _plain(True)}


def _by_step(value: Tensor) -> Tensor:
    """Return `[steps, models, examples, ...]`, each step in one piece."""
    return value.movedim(2, 0).contiguous()


class Scan(torch.autograd.Function):
    """Run a cell along a sequence: (kind, given, inner, weight, hidden, cell) -> `States`.

    `given` is what comes from the input, and `inner` what a GRU adds to what comes from its hidden state.
    """

    @staticmethod
    def forward(
        kind: str, given: Tensor, inner: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[Tensor, ...]:
        """Run all steps."""
        run = CELLS[kind][0]
        states = run(_by_step(given), _by_step(inner), weight, hidden, cell)
        return tuple(value.movedim(0, 2) for value in states)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep what the way back needs."""
        ctx.kind = inputs[0]
        ctx.save_for_backward(*inputs[3:], *output)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, hidden: Tensor, cell: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the errors of everything given; that of the weight is a product over all steps."""
        weight, first, first_cell, hiddens, cells, kept = ctx.saved_tensors
        saved = (weight, first, first_cell, hiddens, cells, kept)
        given, inner, to_first, to_cell = ScanBack.apply(ctx.kind, hidden, cell, *saved)
        to_weight = None
        if ctx.needs_input_grad[3]:
            before = torch.cat([first.unsqueeze(2), hiddens[:, :, :-1]], 2).flatten(1, 2)
            error = (inner if ctx.kind == "GRU" else given).flatten(1, 2)
            to_weight = torch.bmm(error.transpose(1, 2), before)
        return None, given, inner, to_weight, to_first, to_cell

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], kind: str, *values: Tensor) -> Any:
        """Fold the axis of `vmap` into that of models or of examples."""
        return _folded(Scan, info.batch_size, in_dims[1:], kind, values, weight=2)


class ScanBack(torch.autograd.Function):
    """The way back: (kind, errors of hidden states and cells, what was kept) -> `Back`."""

    @staticmethod
    def forward(kind: str, *values: Tensor) -> tuple[Tensor, ...]:
        """Run all steps backwards."""
        hidden, cell, weight, first, first_cell, hiddens, cells, kept = values
        errors = Back(_by_step(hidden), _by_step(cell), first, first_cell)
        states = States(_by_step(hiddens), _by_step(cells), _by_step(kept))
        found = CELLS[kind][1](errors, weight, states, (first, first_cell))
        return found.given.movedim(0, 2), found.hidden.movedim(0, 2), found.first, found.cell.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep nothing: errors of errors are never needed."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], kind: str, *values: Tensor) -> Any:
        """Fold the axis of `vmap` into that of models or of examples."""
        return _folded(ScanBack, info.batch_size, in_dims[1:], kind, values, weight=2)


def _folded(
    function: Any,
    count: int,
    dims: tuple[int | None, ...],
    kind: str,
    values: tuple[Tensor, ...],
    weight: int,
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Apply a function with the axis of `vmap` folded into models, if they differ along it, or examples."""
    axis = 1 if dims[weight] is None else 0
    folded = []
    for place, (value, dim) in enumerate(zip(values, dims, strict=True)):
        if place == weight and axis == 1:
            folded.append(value)
            continue
        whole = value.unsqueeze(axis).expand(*value.shape[:axis], count, *value.shape[axis:])
        whole = whole if dim is None else value.movedim(dim, axis)
        folded.append(whole.flatten(axis, axis + 1))
    found = function.apply(kind, *folded)
    return tuple(value.unflatten(axis, (count, -1)) for value in found), (axis,) * len(found)
