"""Made-up examples on which modules are tried: of the shape and kind of real ones, but never a silo's.

Examples are numbers, or ids: whole numbers that a module looks up in a table. Ids are drawn below the number
of rows of the module's smallest table, a public fact, so every table has a row for them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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


def ids_below(module: nn.Module, ids: bool = True) -> int:
    """Return a number below which every id has a row in each table of a module; 0 if it takes numbers."""
    return min(tables_of(module).values(), default=WITHOUT_TABLE) if ids else 0


def draw(shape: tuple[int, ...], generator: torch.Generator, below: int) -> Tensor:
    """Draw numbers from 0 to 1, or ids below a number that is not 0."""
    if below:
        return torch.randint(0, below, shape, generator=generator)
    return torch.rand(shape, generator=generator)


def trial_examples(
    shape: tuple[int, ...], generator: torch.Generator | None = None, below: int = 0
) -> tuple[Tensor, ...]:
    """Draw three times three examples: numbers from 0 to 1, which every module must take, and larger ones.

    If the module takes ids, all of them are ids `below` a number. The examples are always the same, unless a
    generator is given that has drawn others.
    """
    generator = generator or torch.Generator().manual_seed(0)
    if below:
        return tuple(draw((3, *shape), generator, below) for _ in range(3))
    small = torch.rand(3, *shape, generator=generator)
    return small, 30 * torch.randn(3, *shape, generator=generator), 1000 * small - 300


def others(x: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """Return what may stand in place of the first of some examples: another, and one with other extremes."""
    if not x.is_floating_point():
        return x[1:2], x.amax() - x[:1]
    return small[1:2], 1 - small[:1] if x is small else torch.full_like(x[:1], 2 * float(x.abs().max()))


def drawn_for(module: nn.Module, shape: tuple[int, ...], below: int, generator: torch.Generator) -> Tensor:
    """Draw examples of a whole shape that a module takes.

    A module of numbers may look some of them up in a table: it is then given whole numbers, as floats.
    """
    if below:
        return draw(shape, generator, below)
    x = torch.randn(shape, generator=generator)
    if tables_of(module) and not _takes(module, x.flatten(0, 1)):
        x = draw(shape, generator, ids_below(module)).float()
    return x


def _takes(module: nn.Module, x: Tensor) -> bool:
    try:
        with torch.no_grad():
            module(x.to(next(module.parameters()).device))
    except REFUSALS:
        return False
    return True
