"""Project vectors onto a few directions, layer by layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..protocol.method import Start
from ..protocol.tree import record

SMALL = 1e-10  # relative to the largest eigenvalue; directions below it do not count


@record
class Basis(NamedTuple):
    """Directions `[runs, 1, rank, n]` of each layer about a centre `[runs, 1, P]`, valid once `ready`."""

    directions: tuple[Tensor, ...]
    centre: Tensor
    ready: Tensor


def no_basis(task: Start, rank: int) -> Basis:
    """Return an empty basis that is not ready."""
    zeros = torch.zeros_like(task.initial())
    flat = zeros[..., :1].unsqueeze(-1)
    parts = tuple(flat.expand(-1, -1, rank, length) for length in task.layers)
    return Basis(parts, zeros, zeros[..., :1] > 0)


def random_basis(task: Start, rank: int) -> Basis:
    """Return a basis of random orthonormal directions for each layer, about zero."""
    zeros = torch.zeros_like(task.initial())
    drawn = torch.stack([task.initial(1 + i, apart=True) for i in range(rank)], dim=2)
    parts = drawn.split(list(task.layers), dim=-1)
    orthonormal = tuple(torch.linalg.qr(part.transpose(-1, -2)).Q.transpose(-1, -2) for part in parts)
    return Basis(orthonormal, zeros, zeros[..., :1] == 0)


def directions(updates: Tensor, layers: list[int], rank: int) -> tuple[Tensor, ...]:
    """Return the top right singular vectors `[runs, 1, rank, n]` of each layer of updates `[runs, silos, P]`.

    They come from the Gram matrix of the silos, which is exact and small. If there are fewer than `rank`
    directions, the rest are zeros. Non-finite numbers count as zero.
    """
    bases = []
    for part in updates.split(layers, dim=-1):
        wide = torch.where(torch.isfinite(part), part, 0.0).double()
        values, vectors = torch.linalg.eigh(wide @ wide.transpose(1, 2))
        values, vectors = values[:, -rank:].flip(1), vectors[:, :, -rank:].flip(2)
        nonzero = values > SMALL * values[:, :1].clamp(min=1e-300)
        scale = torch.where(nonzero, values.clamp(min=1e-300).rsqrt(), torch.zeros_like(values))
        basis = (vectors.transpose(1, 2) @ wide) * scale.unsqueeze(-1)
        bases.append(basis.float().unsqueeze(1))
    return tuple(bases)


def coordinates(vectors: Tensor, directions: tuple[Tensor, ...]) -> Tensor:
    """Return the coordinates `[runs, silos, layers * rank]` of vectors `[runs, silos, P]`."""
    parts = vectors.split([basis.shape[-1] for basis in directions], dim=-1)
    pairs = zip(directions, parts, strict=True)
    return torch.cat([(basis @ part.unsqueeze(-1)).squeeze(-1) for basis, part in pairs], dim=-1)


def expand(code: Tensor, directions: tuple[Tensor, ...]) -> Tensor:
    """Return the vectors with these coordinates."""
    parts = code.split([basis.shape[2] for basis in directions], dim=-1)
    pairs = zip(directions, parts, strict=True)
    return torch.cat([(part.unsqueeze(-2) @ basis).squeeze(-2) for basis, part in pairs], dim=-1)


def project(vectors: Tensor, basis: Basis) -> Tensor:
    """Project vectors onto a basis about its centre; if the basis is not ready, return them unchanged."""
    code = coordinates(vectors - basis.centre, basis.directions)
    return torch.where(basis.ready, expand(code, basis.directions) + basis.centre, vectors)
