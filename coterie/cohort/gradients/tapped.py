"""Gradients of layers that are used along a sequence, from errors and inputs of all their steps.

Autograd would add up the gradient of a weight step by step, for each example. Here it is one product of
matrices over all steps. The gradient of a table has as many rows that are not zero as an example has ids, so
only these are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...tasks.layers.attention import PARTS, Attention
from ...tasks.layers.recurrent import GRU, LSTM, RNN
from ...tasks.layers.tables import Bag, Table
from ...tasks.layers.taps import Tap

RECURRENT = (LSTM, GRU, RNN)
TABLES = (Table, Bag)


@dataclass(frozen=True, eq=False)
class Looked:
    """The gradient of a table for each example: `rows` `[rows, width, ids, size]` at the places `ids`.

    Every id of an example has its whole gradient at one of its places, and zeros at the others. `count` is
    the number of rows of the table.
    """

    rows: Tensor
    ids: Tensor
    count: int

    def weighted_sum(self, weight: Tensor) -> Tensor:
        """Return each row's sum of gradients times `weight` `[rows, width]`."""
        size = self.rows.shape[-1]
        weighted = (self.rows * weight.reshape(*weight.shape, 1, 1)).flatten(1, 2)
        sums = self.rows.new_zeros(len(weight), self.count, size)
        return sums.scatter_add_(1, self.ids.flatten(1).unsqueeze(-1).expand(-1, -1, size), weighted)

    def of_persons(self, weight: Tensor) -> Looked:
        """Return the gradients of persons: sums over their rows, times `weight` `[rows, persons, each]`."""
        own = self.rows.unflatten(1, weight.shape[1:]) * weight.reshape(*weight.shape, 1, 1)
        ids = self.ids.unflatten(1, weight.shape[1:]).flatten(2)
        return Looked(_at_one_place(ids, own.flatten(2, 3)), ids, self.count)

    def replaced(self, rows: Tensor) -> Looked:
        """Return the same places with other gradients."""
        return Looked(rows, self.ids, self.count)


def of_table(module: nn.Module, tap: Tap, error: Tensor) -> Looked:
    """Return the gradient of a table; `error` and what was noted begin with `[rows, width, 1]`."""
    known = tap.noted["known"].flatten(2)
    ids = torch.where(known, tap.noted["ids"].flatten(2), 0).long()
    errors = torch.where(known.unsqueeze(-1), error.flatten(2, -2), 0.0)
    return Looked(_at_one_place(ids, errors), ids, module.num_embeddings)  # type: ignore[arg-type]


def _at_one_place(ids: Tensor, rows: Tensor) -> Tensor:
    """Return the sum of the rows of each id at its first place, and zeros at its others."""
    same = ids.unsqueeze(-1) == ids.unsqueeze(-2)
    first = ~same.tril(-1).any(-1)
    return (same & first.unsqueeze(-1)).to(rows) @ rows


def of_recurrent(layer: str, module: Any, tap: Tap, errors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of a recurrent layer's parameters by name."""
    found: dict[str, Tensor] = {}
    for key in dict.fromkeys(name.partition(" ")[2] for name in errors):
        given = errors[f"given {key}"].squeeze(2)
        inner = errors[f"inner {key}"].squeeze(2) if f"inner {key}" in errors else given
        for kind, error, noted in (("ih", given, "input"), ("hh", inner, "before")):
            found[f"{layer}.weight_{kind}_{key}"] = product(error, tap.noted[f"{noted} {key}"].squeeze(2))
            if module.bias:
                found[f"{layer}.bias_{kind}_{key}"] = error.sum(2)
    return found


def of_attention(layer: str, module: Attention, tap: Tap, errors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of an attention layer's parameters by name."""
    flat = {part: error.squeeze(2) for part, error in errors.items()}
    products = {part: product(error, tap.noted[f"input {part}"].squeeze(2)) for part, error in flat.items()}
    found = {f"{layer}.out_proj.weight": products["out"]}
    if module._qkv_same_embed_dim:
        found[f"{layer}.in_proj_weight"] = torch.cat([products[part] for part in PARTS], 2)
    else:
        found |= {f"{layer}.{part[0]}_proj_weight": products[part] for part in PARTS}
    if module.in_proj_bias is not None:
        found[f"{layer}.in_proj_bias"] = torch.cat([flat[part].sum(2) for part in PARTS], 2)
        found[f"{layer}.out_proj.bias"] = flat["out"].sum(2)
    return found


def product(error: Tensor, given: Tensor) -> Tensor:
    """Return the sum over steps of the outer products of errors and inputs, for each example."""
    flat = torch.bmm(error.flatten(0, 1).transpose(1, 2), given.flatten(0, 1))
    found: Tensor = flat.unflatten(0, error.shape[:2])
    return found
