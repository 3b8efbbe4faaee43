"""The merge of the unit 'silo': uploads are clipped, averaged uniformly and noised, and only then seen.

Formal guarantee: a silo whose upload is replaced by nothing moves the sum of a round by at most `clip` in
Euclidean norm, whatever it holds; noise of deviation `noise * clip` is on the sum. The denominator is the
planned size of a cohort, never the number of silos that came. Silos with smaller budgets may have a `share`
of the clip: the noise is the same, and more for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import Refused
from ..protocol.roster import AS_SENT, BITS, SUMS_AT_HOME, Merge, Roster
from ..protocol.tree import Tree, leaves

# Uploads are float32; this share of the clip pays for the rounding of their norms.
UPLOAD_ROUNDING = 1e-5
COUNT = "\0count"
# How fast an adaptive clip follows the uploads' lengths, and where it ends.
PACE, SHORTEST, LONGEST = 0.2, 1e-6, 1e6
AT_ONCE = 2**20  # numbers: what is clipped at a time stays near the processor
SERVER = "\0server"  # no silo has this name


class MergeStreams(Protocol):
    """Where a merge gets its noise."""

    def merging(self, run: int, silo: str, round_: int) -> np.random.Generator:
        """Give the generator of the noise of one merge, or of one silo's upload to it, at its beginning."""
        ...


@dataclass(frozen=True, eq=False)
class MergingRoster(Roster):
    """The roster of one round under the unit 'silo': its mean can be asked for once."""

    merge: Merge | None = None
    streams: MergeStreams | None = None
    round: int = 0
    asked: list[None] | None = None
    counted: list[Tensor] | None = None
    planned: bool = True
    received: tuple[Tensor, ...] | None = None

    @classmethod
    def of(
        cls, roster: Roster, merge: Merge, streams: MergeStreams, number: int, planned: bool = True
    ) -> MergingRoster:
        """Give the roster of a round; in one in which no merge was `planned` none is made."""
        facts = (roster.names, roster.sizes, roster.epsilon, roster.present, roster.groups, roster.steps)
        return cls(*facts, merge=merge, streams=streams, round=number, asked=[], counted=[], planned=planned)

    def at(self, present: Tensor | None) -> MergingRoster:
        """Give the roster of a round in which some take part; who is known to be absent stays so."""
        if self.present is not None:
            present = self.present if present is None else self.present & present
        return replace(self, present=present)

    def receiving(self, uploads: Tree) -> MergingRoster:
        """Give the roster that merges these uploads, as they were sent, and no others."""
        return replace(self, received=tuple(leaves(uploads)))

    def clipping(self, clip: Tensor) -> MergingRoster:
        """Give the roster whose uploads are clipped at `[runs, 1, 1]`."""
        assert self.merge is not None
        return replace(self, merge=replace(self.merge, clip=clip.detach().reshape(-1).double().cpu()))

    def next_clip(self, clip: Tensor) -> Tensor:
        """Move the clip toward the quantile of the uploads' lengths; where nothing was merged it stays."""
        assert self.merge is not None
        if self.merge.quantile is None or not self.counted:
            return clip
        within = (self.counted[0].to(clip) / self.merge.cohort + 0.5).clamp(0, 1).reshape(-1, 1, 1)
        moved = clip * torch.exp(-PACE * (within - self.merge.quantile))
        return torch.where(torch.isinf(clip), clip, moved.clamp(SHORTEST, LONGEST))

    def _count(self, uploads: Tensor, merge: Merge) -> None:
        """Count, with noise, how many uploads are within the clip: a half for or against each."""
        if merge.quantile is None or self.counted is None:
            return
        norm = uploads.double().reshape(*uploads.shape[:2], -1).norm(dim=-1)
        votes = (norm <= merge.clip.to(norm).reshape(-1, 1)).double() - 0.5
        if self.present is not None:
            votes = torch.where(self.present, votes, torch.zeros_like(votes))
        total = votes.sum(1)
        for run, noise in enumerate(merge.noise):
            if float(noise) > 0:
                deviation = float(noise) / BITS**0.5 / 2
                total[run] += deviation * self._drawn(run, total[run], [COUNT])
        self.counted.append(total)

    def mean(self, uploads: Tensor, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Clip, add up, add noise and divide by the planned size of a cohort, or by all: `[runs, 1, ...]`."""
        if weights is not None or self.groups is not None:
            raise Refused("under the unit 'silo' the mean is uniform over all: no weights, no groups")
        merge = self._ask(uploads)
        self._count(uploads, merge)
        total = clipped_sum(uploads, merge.limits(uploads), self.present)
        for run, (noise, clip) in enumerate(zip(merge.noise, merge.clip, strict=True)):
            if float(noise) > 0:
                total[run] += merge.scale * float(noise) * float(clip) * self._drawn(run, total[run])
        return (total / (len(self) if everybody else merge.cohort)).to(uploads.dtype)

    def mix(self, uploads: Tensor, matrix: Tensor) -> Tensor:
        """Clip, add up by a public matrix `[rows, silos]`, add noise to every row: `[runs, rows, ...]`.

        Formal guarantee: a silo whose upload is replaced by nothing moves all rows together by at most
        `clip` times the norm of its column; the noise is `noise * clip` times the largest such norm.
        """
        merge = self._ask(uploads)
        if merge.where == "silos":
            raise Refused(SUMS_AT_HOME)
        self._count(uploads, merge)
        exact = matrix.detach().cpu().double()
        reach, keys = float(exact.norm(dim=0).max()), row_keys(self.names, exact)
        total = clipped_sum(uploads, merge.limits(uploads), self.present, exact)
        for run, (noise, clip) in enumerate(zip(merge.noise, merge.clip, strict=True)):
            if float(noise) > 0:
                drawn = {key: self._drawn(run, total[run, 0], [key]) for key in dict.fromkeys(keys)}
                rows = torch.stack([drawn[key] for key in keys])
                total[run] += merge.scale * float(noise) * float(clip) * reach * rows
        return total.to(uploads.dtype)

    def _ask(self, uploads: Tensor) -> Merge:
        if not self.planned:
            raise Refused(
                f"round {self.round}: the method asks for a merge that the plan does not have, so"
                " nothing pays for it: when it merges may depend on the round only"
            )
        if self.received is not None and not any(uploads is one for one in self.received):
            raise Refused(AS_SENT)
        if self.merge is None or self.streams is None or self.asked is None or self.asked:
            raise Refused("under the unit 'silo' the mean of a round is asked for once: it costs each time")
        self.asked.append(None)
        return self.merge

    def _drawn(self, run: int, like: Tensor, keys: Sequence[str] = ()) -> Tensor:
        """Draw the standard noise of one run's sum: one draw, or one for each silo that takes part."""
        assert self.merge is not None
        assert self.streams is not None
        names = list(keys) or [SERVER]
        if self.merge.where == "silos":
            here = [True] * len(self.names) if self.present is None else self.present[run].tolist()
            names = [name for name, flag in zip(self.names, here, strict=True) if flag]
        drawn = sum(self.streams.merging(run, name, self.round).standard_normal(like.shape) for name in names)
        return torch.as_tensor(drawn, dtype=like.dtype).to(like.device)


def row_keys(names: Sequence[str], matrix: Tensor) -> list[str]:
    """Name the noise of each row by whose uploads it adds up and how, whatever the order of the silos.

    Equal rows get equal noise: they are one release.
    """
    found = []
    for row in matrix.tolist():
        parts = sorted((name, value) for name, value in zip(names, row, strict=True) if value)
        found.append(f"{SERVER}/{hashlib.sha256(repr(parts).encode()).hexdigest()}")
    return found


def clipped_sum(
    uploads: Tensor, clip: Tensor, present: Tensor | None, matrix: Tensor | None = None
) -> Tensor:
    """Sum the uploads `[runs, silos, ...]` of those present, each within its clip: `[runs, 1, ...]`.

    The `clip` is `[runs]` or `[runs, silos]`.

    With a `matrix` `[rows, silos]` by its numbers: `[runs, rows, ...]`. In float64: in float32 one upload
    could move the rounding of all the others' sum. An upload that is not finite counts as nothing.
    """
    if not uploads.is_floating_point():
        raise Refused(f"an upload is {uploads.dtype}: under the unit 'silo' uploads are real vectors")
    runs, silos = uploads.shape[:2]
    flat = uploads.reshape(runs, silos, -1)
    shares = torch.ones(1, silos) if matrix is None else matrix
    shares = shares.to(flat.device, torch.float64)
    total = flat.new_zeros(runs, len(shares), flat.shape[2], dtype=torch.float64)
    limits = (clip if clip.dim() == 2 else clip.unsqueeze(1)).double().expand(runs, silos)
    for run in range(runs):
        here = torch.arange(silos, device=flat.device)
        if present is not None:
            here = here[present[run]]
        for some in here.split(max(1, AT_ONCE // flat.shape[2])):
            part, limit = flat[run, some].double(), limits[run, some]
            norm = part.norm(dim=-1)
            factor = torch.where(
                torch.isinf(limit), 1.0, (limit / (norm * (1 + UPLOAD_ROUNDING))).clamp(max=1)
            )
            sound = torch.isfinite(norm) | torch.isinf(limit)
            total[run] += (shares[:, some] * factor)[:, sound] @ (part if bool(sound.all()) else part[sound])
    return total.reshape(runs, len(shares), *uploads.shape[2:])
