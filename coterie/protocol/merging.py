"""Merging: what the server may ask of the uploads of a round, and the rule of the unit 'silo'."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ..privacy.distributed import noise_share
from ..privacy.merges import BITS as BITS
from .roster import Roster

SUMS_AT_HOME = "noise that silos add goes with the mean over all: take noise_by = 'server' here"
AS_SENT = "under the unit 'silo' uploads are merged as they were sent: what is made of them first mixes silos"
UNIFORM = "under the unit 'silo' the mean is uniform over all: no weights, no groups"


@dataclass(frozen=True, eq=False)
class Merger(ABC):
    """What the server may ask of the uploads of one round.

    `roster` has the public facts about the round. Under the unit 'silo' only what a merger returns is
    released: it is asked once per round, for the uploads as they were sent.
    """

    roster: Roster

    @abstractmethod
    def mean(self, uploads: Tensor, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Return the mean over the silos of the round, weighted by their declared sizes: `[runs, 1, ...]`.

        Other `weights` are `[runs, silos]`. With `everybody` it is the mean over all silos, where absent
        silos count as zeros: how far the mean of all models moves. With groups each silo gets the mean of
        its own group: `[runs, silos, ...]`. The mean of no silo is 0.
        """

    @abstractmethod
    def mix(self, uploads: Tensor, matrix: Tensor) -> Tensor:
        """Return sums of uploads by a public matrix `[rows, silos]`: `[runs, rows, ...]`."""

    def clipping(self, clip: Tensor) -> Self:
        """Return the merger that clips uploads at `[runs, 1, 1]`; only the unit 'silo' clips them."""
        return self

    def next_clip(self, clip: Tensor) -> Tensor:
        """Return the clip of the next round; only the unit 'silo' moves it."""
        return clip

    def within(self, groups: Tensor | None) -> Self:
        """Return the merger of silos that learn within groups."""
        return replace(self, roster=self.roster.within(groups))

    def after(self, rounds: int) -> Self:
        """Return the merger whose roster counts rounds from the end of the first few."""
        return replace(self, roster=self.roster.after(rounds))


@dataclass(frozen=True, eq=False)
class PlainMerger(Merger):
    """Merges uploads as they are: under the unit 'example' silos have noised them already."""

    def mean(self, uploads: Tensor, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Return the weighted mean."""
        return weighted_mean(uploads, self.roster, weights, everybody)

    def mix(self, uploads: Tensor, matrix: Tensor) -> Tensor:
        """Return the sums."""
        return matrix_sums(uploads, self.roster, matrix)


def weighted_mean(
    uploads: Tensor, roster: Roster, weights: Tensor | None = None, everybody: bool = False
) -> Tensor:
    """Return the mean that `Merger.mean` describes, of vectors `[runs, silos, ...]`, without protection."""
    whole = weights = roster.sizes.unsqueeze(0) if weights is None else weights
    if roster.present is not None:
        weights = weights * roster.present
        whole = whole.expand_as(weights) if everybody else weights
    if roster.groups is None:
        share = _share(weights, whole.sum(1, keepdim=True)).to(uploads.dtype)
        return (uploads * share.reshape(*share.shape, *[1] * (uploads.dim() - 2))).sum(1, keepdim=True)
    together = roster.groups.unsqueeze(1) == roster.groups.unsqueeze(2)
    total = (together * whole.unsqueeze(1)).sum(2, keepdim=True)
    share = _share(together * weights.unsqueeze(1), total).to(uploads.dtype)
    flat = uploads.reshape(*uploads.shape[:2], -1)
    return (share @ flat).reshape(uploads.shape)


def matrix_sums(uploads: Tensor, roster: Roster, matrix: Tensor) -> Tensor:
    """Return the sums that `Merger.mix` describes, without protection."""
    if roster.present is not None:
        present = roster.present.reshape(*roster.present.shape, *[1] * (uploads.dim() - 2))
        uploads = torch.where(present, uploads, torch.zeros_like(uploads))
    flat = matrix.to(uploads) @ uploads.flatten(2)
    return flat.reshape(uploads.shape[0], len(matrix), *uploads.shape[2:])


def _share(weights: Tensor, total: Tensor) -> Tensor:
    return weights / torch.where(total == 0, torch.ones_like(total), total)


@dataclass(frozen=True, eq=False)
class MergeRule:
    """How whole silos' uploads are merged: noise multiplier and clip, both `[runs]`, and the cohort's size.

    Where silos' budgets differ each has its `share` `[runs, silos]` of the clip, at most 1. The noise is
    added once by the server, or to every upload in its silo (`where`). For a secure sum, `noise` is that of
    the honest silos in the sum if `dropouts` silos are missing and `colluding` are not honest; if more are
    missing, nothing is released. If silos are drawn in secret for it, all `members` add noise in every round,
    and those that were not drawn add nothing else. An infinite clip goes with noise 0: no privacy. With a
    `quantile` the clip follows that quantile of the uploads' lengths (see `AdaptiveClip`), and the noise pays
    for that too.
    """

    noise: Tensor
    clip: Tensor
    cohort: float
    where: str = "server"
    quantile: float | None = None
    share: Tensor | None = None
    dropouts: int = 0
    colluding: int = 0
    members: int | None = None

    def __post_init__(self) -> None:
        if bool((torch.isinf(self.clip) & (self.noise != 0)).any()):
            raise ValueError("noise needs a finite clip")
        if self.quantile is not None and self.where != "server":
            raise ValueError("a clip that follows a quantile needs noise of the server")
        if self.share is not None and not bool(((self.share > 0) & (self.share <= 1)).all()):
            raise ValueError("a share of the clip lies above 0 and is at most 1")

    def limits(self, uploads: Tensor) -> Tensor:
        """Return how long the uploads may be: `[runs, silos]`."""
        whole = self.clip.to(uploads.device).double().unsqueeze(1).expand(uploads.shape[:2])
        return whole if self.share is None else whole * self.share.to(whole)

    @property
    def due(self) -> int:
        """The number of silos whose noise a secure sum is planned for."""
        return round(self.cohort) if self.members is None else self.members

    @property
    def least(self) -> int:
        """The smallest number of uploads whose sum is released."""
        return self.due - self.dropouts if self.where == "secure" else 0

    def noise_at_home(self, run: int) -> float:
        """Return the noise on one upload in its silo, as a multiple of the clip."""
        noise = float(self.noise[run])
        if self.where == "secure":
            return noise_share(noise, self.due, self.dropouts, self.colluding)
        return noise

    @property
    def scale(self) -> float:
        """What noise on uploads must be multiplied by, to pay for the count of a quantile too."""
        return 1.0 if self.quantile is None else (1 - BITS) ** -0.5
