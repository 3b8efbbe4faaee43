"""Omega, how related silos are: (W'W)^(1/2) / trace, of their models W (Zhang, Yeung 2010)."""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = 1e-3  # of the largest eigenvalue of Omega: relations that were lost may come back


def omega_of(models: Tensor) -> Tensor:
    """Return Omega `[runs, silos, silos]` of models `[runs, silos, P]`, its trace 1 with the floor.

    Silos whose models are all zero are not related; numbers that are not finite count as zero.
    """
    roots, vectors = _spectrum(models)
    silos, most = models.shape[1], roots.amax(-1, keepdim=True)
    floored = torch.where(most > 0, torch.maximum(roots, FLOOR * most), torch.ones_like(roots))
    shares = floored / floored.sum(-1, keepdim=True)
    omega: Tensor = (vectors * shares.unsqueeze(-2)) @ vectors.transpose(1, 2)
    plain = torch.eye(silos, dtype=omega.dtype, device=omega.device) / silos
    return torch.where(most.unsqueeze(-1) > 0, omega, plain).float()


def inverse_of(models: Tensor) -> Tensor:
    """Return the inverse of silos x Omega, `[runs, silos, silos]` in float64: I for unrelated silos.

    Here the trace is 1 without the floor. Nothing is known of models that diverged: they count as zero.
    """
    roots, vectors = _spectrum(models)
    silos, trace = models.shape[1], roots.sum(-1, keepdim=True)
    shares = roots / torch.where(trace > 0, trace, torch.ones_like(trace))
    shares = torch.where(trace > 0, shares, torch.ones_like(roots) / silos)
    floored = torch.maximum(shares, FLOOR * shares.amax(-1, keepdim=True))
    inverse: Tensor = (vectors / (floored * silos).unsqueeze(-2)) @ vectors.transpose(1, 2)
    return inverse


def _spectrum(models: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of (W'W)^(1/2) and its eigenvectors, in float64."""
    wide = torch.where(torch.isfinite(models), models, 0.0).double()
    values, vectors = torch.linalg.eigh(wide @ wide.transpose(1, 2))
    return values.clamp(min=0).sqrt(), vectors
