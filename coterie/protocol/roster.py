"""The public facts about the silos of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from .tree import Tree

SUMS_AT_HOME = "noise_by = 'silos' goes with the mean over all: take noise_by = 'server' here"
AS_SENT = "under the unit 'silo' uploads are merged as they were sent: what is made of them first mixes silos"
# The share of one over the squared multiplier that the count of uploads within an adaptive clip takes.
BITS = 0.02


@dataclass(frozen=True, eq=False)
class Steps:
    """How silos step, all `[runs, silos]`: public facts.

    `count` steps a training, their `lr` and `clip`; `noise` is the deviation of the privacy noise in the
    mean gradient of one step, for each coordinate: multiplier x clip / expected batch.
    """

    count: Tensor
    lr: Tensor
    clip: Tensor
    noise: Tensor


@dataclass(frozen=True, eq=False)
class Roster:
    """Names, declared sizes `[silos]` and budgets (epsilon `[runs, silos]`) of the silos.

    `present` says who takes part in the round, `groups` who learns with whom (a number a group), both
    `[runs, silos]`; None: everybody, and everybody together. Engines fill in `steps`, how silos train; in
    a dry run, where the noise is not known yet, all its numbers are 1.
    """

    names: tuple[str, ...]
    sizes: Tensor
    epsilon: Tensor
    present: Tensor | None = None
    groups: Tensor | None = None
    steps: Steps | None = None

    def __len__(self) -> int:
        return len(self.names)

    def mean(self, uploads: Tensor, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Give the mean over the silos of the round, weighted by their declared sizes: `[runs, 1, ...]`.

        Other `weights` are `[runs, silos]`. With `everybody` it is the mean over all silos, those who are
        not there having sent zeros: how far the mean of all models moves. With groups each silo gets the
        mean of its own: `[runs, silos, ...]`. The mean of nobody is 0.
        """
        whole = weights = self.sizes.unsqueeze(0) if weights is None else weights
        if self.present is not None:
            weights = weights * self.present
            whole = whole.expand_as(weights) if everybody else weights
        if self.groups is None:
            share = _share(weights, whole.sum(1, keepdim=True)).to(uploads.dtype)
            return (uploads * share.reshape(*share.shape, *[1] * (uploads.dim() - 2))).sum(1, keepdim=True)
        together = self.groups.unsqueeze(1) == self.groups.unsqueeze(2)
        total = (together * whole.unsqueeze(1)).sum(2, keepdim=True)
        share = _share(together * weights.unsqueeze(1), total).to(uploads.dtype)
        flat = uploads.reshape(*uploads.shape[:2], -1)
        return (share @ flat).reshape(uploads.shape)

    def mix(self, uploads: Tensor, matrix: Tensor) -> Tensor:
        """Give sums of uploads by a public matrix `[rows, silos]`: `[runs, rows, ...]`."""
        flat = matrix.to(uploads) @ self._only_present(uploads).flatten(2)
        return flat.reshape(uploads.shape[0], len(matrix), *uploads.shape[2:])

    def _only_present(self, uploads: Tensor) -> Tensor:
        if self.present is None:
            return uploads
        here = self.present.reshape(*self.present.shape, *[1] * (uploads.dim() - 2))
        return torch.where(here, uploads, torch.zeros_like(uploads))

    def receiving(self, uploads: Tree) -> Roster:
        """Give the roster that merges these uploads."""
        return self

    def clipping(self, clip: Tensor) -> Roster:
        """Give the roster whose uploads are clipped at `[runs, 1, 1]`; only merges of whole silos do."""
        return self

    def next_clip(self, clip: Tensor) -> Tensor:
        """Give the clip of the next round."""
        return clip

    def within(self, groups: Tensor | None) -> Roster:
        """Give the roster in which silos learn within groups."""
        return replace(self, groups=groups)

    def at(self, present: Tensor | None) -> Roster:
        """Give the roster of a round."""
        return replace(self, present=present)


def _share(weights: Tensor, total: Tensor) -> Tensor:
    return weights / torch.where(total == 0, torch.ones_like(total), total)


@dataclass(frozen=True, eq=False)
class Merge:
    """How uploads are merged: multiplier of the noise and clip, both `[runs]`, and the size of a cohort.

    Where silos' budgets differ each has its `share` `[runs, silos]` of the clip, at most 1. The noise is
    added once by the server, or to every upload in its silo (`where`). An infinite clip goes with noise 0: no
    privacy. With a `quantile` the clip follows that of the uploads' lengths (see `adaptive_clip`), and the
    noise pays for that too.
    """

    noise: Tensor
    clip: Tensor
    cohort: float
    where: str = "server"
    quantile: float | None = None
    share: Tensor | None = None

    def __post_init__(self) -> None:
        if bool((torch.isinf(self.clip) & (self.noise != 0)).any()):
            raise ValueError("noise needs a finite clip")
        if self.share is not None and not bool(((self.share > 0) & (self.share <= 1)).all()):
            raise ValueError("a share of the clip lies above 0 and is at most 1")

    def limits(self, uploads: Tensor) -> Tensor:
        """Give how long the uploads may be: `[runs, silos]`."""
        whole = self.clip.to(uploads.device).double().unsqueeze(1).expand(uploads.shape[:2])
        return whole if self.share is None else whole * self.share.to(whole)

    @property
    def scale(self) -> float:
        """What noise on uploads must be multiplied by, to pay for the count of a quantile too."""
        return 1.0 if self.quantile is None else (1 - BITS) ** -0.5
