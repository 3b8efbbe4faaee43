"""Made-up examples on which modules are tried: of the shape and kind of real ones, but never a silo's.

Examples are numbers, or ids: whole numbers that a module looks up in a table. Ids are drawn below the number
of rows of the module's smallest table, a public fact, so every table has a row for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .._inputs import Input, places_of
from .layers import restored

# What a module may raise for examples that it does not take.
REFUSALS = (RuntimeError, IndexError, TypeError, ValueError)
TABLES = (nn.Embedding, nn.EmbeddingBag)
WITHOUT_TABLE = 2  # ids are drawn below this number if the module has no table


def tables_of(module: nn.Module) -> dict[str, int]:
    """Return the number of rows of each table of a module, by the name of its layer."""
    return {
        name or type(part).__name__: int(part.num_embeddings)
        for name, part in module.named_modules()
        if isinstance(part, TABLES)
    }


@dataclass(frozen=True)
class Kind:
    """What a module takes: numbers, ids `below` a number, or several `inputs` of both kinds."""

    below: int = 0
    inputs: tuple[Input, ...] = ()

    @property
    def ids(self) -> bool:
        """Whether examples are ids and nothing else."""
        return bool(self.below) and not self.inputs


def kind_of(module: nn.Module, ids: bool, inputs: tuple[Input, ...] = ()) -> Kind:
    """Return what a module takes; every id below the number has a row in each of its tables."""
    return Kind(ids_below(module) if ids or inputs else 0, inputs)


def ids_below(module: nn.Module) -> int:
    """Return a number below which every id has a row in each table of a module."""
    return min(tables_of(module).values(), default=WITHOUT_TABLE)


def draw(shape: tuple[int, ...], generator: torch.Generator, kind: Kind) -> Tensor:
    """Draw numbers from 0 to 1, or ids, as a module takes them."""
    if kind.ids:
        return torch.randint(0, kind.below, shape, generator=generator)
    return _with_ids(torch.rand(shape, generator=generator), kind, generator)


def _with_ids(x: Tensor, kind: Kind, generator: torch.Generator) -> Tensor:
    """Put ids where a flat row of several inputs has them, in place."""
    places = places_of(kind.inputs)
    for each in kind.inputs:
        if each.kind == "ids":
            part = x[..., places[each.name]]
            part.copy_(torch.randint(0, kind.below, part.shape, generator=generator))
    return x


def trial_examples(
    shape: tuple[int, ...], generator: torch.Generator | None = None, kind: Kind | None = None
) -> tuple[Tensor, ...]:
    """Draw three times three examples: numbers from 0 to 1, which every module must take, and larger ones.

    Ids always have a row. The examples are always the same, unless a generator is given that has drawn
    others.
    """
    generator, kind = generator or torch.Generator().manual_seed(0), kind or Kind()
    if kind.ids:
        return tuple(draw((3, *shape), generator, kind) for _ in range(3))
    small = torch.rand(3, *shape, generator=generator)
    drawn = (small, 30 * torch.randn(3, *shape, generator=generator), 1000 * small - 300)
    return tuple(_with_ids(x, kind, generator) for x in drawn)


def others(x: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """Return what may stand in place of the first of some examples: another, and one with other extremes."""
    if not x.is_floating_point():
        return x[1:2], x.amax() - x[:1]
    return small[1:2], 1 - small[:1] if x is small else torch.full_like(x[:1], 2 * float(x.abs().max()))


def drawn_for(module: nn.Module, shape: tuple[int, ...], kind: Kind, generator: torch.Generator) -> Tensor:
    """Draw examples of a whole shape that a module takes.

    A module of numbers may look some of them up in a table: it is then given whole numbers, as floats.
    """
    if kind.ids:
        return draw(shape, generator, kind)
    x = _with_ids(torch.randn(shape, generator=generator), kind, generator)
    if tables_of(module) and not kind.inputs and not _finds(module, x):
        x = torch.randint(0, ids_below(module), shape, generator=generator).float()
    return x


def _finds(module: nn.Module, x: Tensor) -> bool:
    """Return whether a module has a row for everything that it looks up."""
    try:
        with torch.no_grad():
            restored(module)(x.flatten(0, 1).to(next(module.parameters()).device))
    except REFUSALS:
        return False
    return True
