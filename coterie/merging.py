"""The merge of the unit 'silo': uploads are clipped, averaged uniformly and noised, and only then seen.

Formal guarantee: a silo whose upload is replaced by nothing moves the sum of a round by at most `clip` in
Euclidean norm, whatever it holds; noise of deviation `noise * clip` is on the sum. The denominator is the
planned size of a cohort, never the number of silos that came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .errors import Refused
from .roster import Roster

# Uploads are float32; this share of the clip pays for the rounding of their norms.
ROUNDING = 1e-5
AT_ONCE = 2**20  # numbers: what is clipped at a time stays near the processor
SERVER = "\0server"  # no silo has this name


class MergeStreams(Protocol):
    """Where a merge gets its noise."""

    def merging(self, run: int, silo: str, round_: int) -> np.random.Generator:
        """Give the generator of the noise of one merge, or of one silo's upload to it, at its beginning."""
        ...


@dataclass(frozen=True, eq=False)
class Merge:
    """How uploads are merged: multiplier of the noise and clip, both `[runs]`, and the size of a cohort.

    The noise is added once by the server, or to every upload in its silo (`where`). An infinite clip goes
    with noise 0: no privacy.
    """

    noise: Tensor
    clip: Tensor
    cohort: float
    where: str = "server"

    def __post_init__(self) -> None:
        if bool((torch.isinf(self.clip) & (self.noise != 0)).any()):
            raise ValueError("noise needs a finite clip")


@dataclass(frozen=True, eq=False)
class MergingRoster(Roster):
    """The roster of one round under the unit 'silo': its mean can be asked for once."""

    merge: Merge | None = None
    streams: MergeStreams | None = None
    round: int = 0
    asked: list[None] | None = None

    @classmethod
    def of(cls, roster: Roster, merge: Merge, streams: MergeStreams, number: int) -> MergingRoster:
        """Give the roster of a round."""
        facts = (roster.names, roster.sizes, roster.epsilon, roster.present, roster.groups, roster.steps)
        return cls(*facts, merge=merge, streams=streams, round=number, asked=[])

    def at(self, present: Tensor | None) -> MergingRoster:
        """Give the roster of a round in which some take part."""
        return replace(self, present=present)

    def mean(self, uploads: Tensor, weights: Tensor | None = None) -> Tensor:
        """Clip, add up, add noise and divide: `[runs, 1, ...]`."""
        if weights is not None or self.groups is not None:
            raise Refused("under the unit 'silo' the mean is uniform over all: no weights, no groups")
        if self.merge is None or self.streams is None or self.asked is None or self.asked:
            raise Refused("under the unit 'silo' the mean of a round is asked for once: it costs each time")
        self.asked.append(None)
        total = clipped_sum(uploads, self.merge.clip.to(uploads.device), self.present)
        for run, (noise, clip) in enumerate(zip(self.merge.noise, self.merge.clip, strict=True)):
            if float(noise) > 0:
                total[run] += float(noise) * float(clip) * self._drawn(run, total[run])
        return (total / self.merge.cohort).to(uploads.dtype)

    def _drawn(self, run: int, like: Tensor) -> Tensor:
        """Draw the standard noise of one run's sum: one draw, or one for each silo that takes part."""
        assert self.merge is not None
        assert self.streams is not None
        names = [SERVER]
        if self.merge.where == "silos":
            here = [True] * len(self.names) if self.present is None else self.present[run].tolist()
            names = [name for name, flag in zip(self.names, here, strict=True) if flag]
        drawn = sum(self.streams.merging(run, name, self.round).standard_normal(like.shape) for name in names)
        return torch.as_tensor(drawn, dtype=like.dtype).to(like.device)


def clipped_sum(uploads: Tensor, clip: Tensor, present: Tensor | None) -> Tensor:
    """Sum the uploads `[runs, silos, ...]` of those present, each within its run's clip: `[runs, 1, ...]`.

    In float64: in float32 one upload could move the rounding of all the others' sum. An upload that is
    not finite counts as nothing.
    """
    if not uploads.is_floating_point():
        raise Refused(f"an upload is {uploads.dtype}: under the unit 'silo' uploads are real vectors")
    runs, silos = uploads.shape[:2]
    flat = uploads.reshape(runs, silos, -1)
    total = flat.new_zeros(runs, flat.shape[2], dtype=torch.float64)
    for run, limit in enumerate(clip.double()):
        here = torch.arange(silos, device=flat.device)
        if present is not None:
            here = here[present[run]]
        for some in here.split(max(1, AT_ONCE // flat.shape[2])):
            part = flat[run, some].double()
            norm = part.norm(dim=-1)
            factor = torch.where(torch.isinf(limit), 1.0, (limit / (norm * (1 + ROUNDING))).clamp(max=1))
            sound = torch.isfinite(norm) | torch.isinf(limit)
            total[run] += factor[sound] @ (part if bool(sound.all()) else part[sound])
    return total.reshape(runs, 1, *uploads.shape[2:])
