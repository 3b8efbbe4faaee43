"""Omega, how related the silos are: (W'W)^(1/2) / trace for their models W (Zhang, Yeung 2010)."""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = 1e-3  # relative to Omega's largest eigenvalue, so that lost relations can come back


def omega_of(models: Tensor) -> Tensor:
    """Return Omega `[runs, silos, silos]` for models `[runs, silos, P]`; its trace is 1 including the floor.

    Silos whose models are all zero are unrelated. Non-finite numbers count as zero.
    """
    roots, vectors = _spectrum(models)
    silos, most = models.shape[1], roots.amax(-1, keepdim=True)
    floored = torch.where(most > 0, torch.maximum(roots, FLOOR * most), torch.ones_like(roots))
    shares = floored / floored.sum(-1, keepdim=True)
    omega: Tensor = (vectors * shares.unsqueeze(-2)) @ vectors.transpose(1, 2)
    plain = torch.eye(silos, dtype=omega.dtype, device=omega.device) / silos
    return torch.where(most.unsqueeze(-1) > 0, omega, plain).float()


def inverse_of(models: Tensor) -> Tensor:
    """Return the inverse of silos x Omega, `[runs, silos, silos]` in float64; unrelated silos give I.

    Here the trace is 1 without the floor. Models that diverged tell nothing, so they count as zero.
    """
    roots, vectors = _spectrum(models)
    silos, trace = models.shape[1], roots.sum(-1, keepdim=True)
    shares = roots / torch.where(trace > 0, trace, torch.ones_like(trace))
    shares = torch.where(trace > 0, shares, torch.ones_like(roots) / silos)
    floored = torch.maximum(shares, FLOOR * shares.amax(-1, keepdim=True))
    inverse: Tensor = (vectors / (floored * silos).unsqueeze(-2)) @ vectors.transpose(1, 2)
    return inverse


def _spectrum(models: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues and eigenvectors of (W'W)^(1/2), in float64."""
    wide = torch.where(torch.isfinite(models), models, 0.0).double()
    values, vectors = torch.linalg.eigh(wide @ wide.transpose(1, 2))
    return values.clamp(min=0).sqrt(), vectors
