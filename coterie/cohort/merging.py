"""Merging under the unit 'silo': uploads are clipped, averaged uniformly and noised before anyone sees them.

Formal guarantee: replacing a silo's upload by nothing moves the sum of a round by at most `clip` in Euclidean
norm, whatever the silo holds. Noise of standard deviation `noise * clip` is added to the sum. The denominator
is the planned size of a cohort, never the number of silos that took part. If silos add the noise for a secure
sum, each adds a part of it. If too few are left, the sum of that round is zero and nothing is released. If
silos are drawn for it in secret, all of them add their parts, those that were not drawn to zeros. A
simulation only adds up, without masks: the sum is the same. Silos with smaller budgets may be clipped to a
`share` of the clip; the noise is the same, so relative to their clip it is larger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from ..errors import Refused
from ..protocol.merging import AS_SENT, BITS, SUMS_AT_HOME, UNIFORM, Merger, MergeRule
from ..protocol.roster import Roster
from ..protocol.streams import Dice
from ..protocol.tree import Tree, leaves

# Uploads are float32; this share of the clip pays for the rounding of their norms.
UPLOAD_ROUNDING = 1e-5
COUNT = "\0count"
# How fast an adaptive clip follows the uploads' lengths, and its smallest and largest value.
PACE, SHORTEST, LONGEST = 0.2, 1e-6, 1e6
AT_ONCE = 2**20  # how many numbers are clipped at a time, so that they stay in the cache
SERVER = "\0server"  # no silo has this name


class MergeStreams(Protocol):
    """Where a merge gets its noise."""

    def merging(self, run: int, silo: str, round_: int) -> Dice:
        """Return the dice for the noise of one merge, or of one silo's upload to it."""
        ...


@dataclass(frozen=True, eq=False)
class PrivateMerger(Merger):
    """Clips, sums and noises the uploads of one round; it merges only once.

    The engine creates it (see `of`). `uploads` are the tensors that silos sent; nothing else is merged.
    `number` is the round whose noise is drawn, whatever the roster says. If no merge was `planned` for the
    round, merging is refused. `adding` says who adds noise if silos are drawn in secret for a secure sum
    (None: all). `asked` and `counted` are lists that all copies of a merger share.
    """

    rule: MergeRule
    streams: MergeStreams
    uploads: tuple[Tensor, ...]
    number: int
    planned: bool = True
    adding: Tensor | None = None
    asked: list[None] = field(default_factory=list)
    counted: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        roster: Roster,
        rule: MergeRule,
        streams: MergeStreams,
        uploads: Tree,
        planned: bool = True,
        adding: Tensor | None = None,
    ) -> PrivateMerger:
        """Return the merger of the uploads of the roster's round."""
        return cls(roster, rule, streams, tuple(leaves(uploads)), roster.round, planned, adding)

    def clipping(self, clip: Tensor) -> PrivateMerger:
        """Return a merger that clips uploads at `clip`, `[runs, 1, 1]`."""
        return replace(self, rule=replace(self.rule, clip=clip.detach().reshape(-1).double().cpu()))

    def next_clip(self, clip: Tensor) -> Tensor:
        """Return the clip, moved toward the quantile of upload lengths unless nothing was merged."""
        if self.rule.quantile is None or not self.counted:
            return clip
        within = (self.counted[0].to(clip) / self.rule.cohort + 0.5).clamp(0, 1).reshape(-1, 1, 1)
        moved = clip * torch.exp(-PACE * (within - self.rule.quantile))
        return torch.where(torch.isinf(clip), clip, moved.clamp(SHORTEST, LONGEST))

    def mean(self, uploads: Tensor, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Return the noisy mean of clipped uploads, `[runs, 1, ...]`.

        The sum is divided by the planned size of a cohort or, if `everybody`, by the number of silos.
        """
        if weights is not None or self.roster.groups is not None:
            raise Refused(UNIFORM)
        self._ask(uploads)
        self._count(uploads)
        rule = self.rule
        if rule.where != "server":
            total = self._noised_at_home(uploads)
        else:
            total = clipped_sum(uploads, rule.limits(uploads), self.roster.present)
            for run, (noise, clip) in enumerate(zip(rule.noise, rule.clip, strict=True)):
                self._noise(total[run], rule.scale * float(noise) * float(clip), run, SERVER)
        return (total / (len(self.roster) if everybody else rule.cohort)).to(uploads.dtype)

    def mix(self, uploads: Tensor, matrix: Tensor) -> Tensor:
        """Return noisy sums of clipped uploads by a public matrix `[rows, silos]`: `[runs, rows, ...]`.

        Formal guarantee: replacing a silo's upload by nothing moves all rows together by at most `clip` times
        the norm of its column. The noise is `noise * clip` times the largest such norm.
        """
        self._ask(uploads)
        rule = self.rule
        if rule.where != "server":
            raise Refused(SUMS_AT_HOME)
        self._count(uploads)
        exact = matrix.detach().cpu().double()
        reach, keys = float(exact.norm(dim=0).max()), row_keys(self.roster.names, exact)
        total = clipped_sum(uploads, rule.limits(uploads), self.roster.present, exact)
        for run, (noise, clip) in enumerate(zip(rule.noise, rule.clip, strict=True)):
            for key in dict.fromkeys(keys):  # equal rows are one release
                rows = [row for row, other in enumerate(keys) if other == key]
                self._noise(total[run, rows[0]], rule.scale * float(noise) * float(clip) * reach, run, key)
                total[run, rows] = total[run, rows[0]].clone()
        return total.to(uploads.dtype)

    def _ask(self, uploads: Tensor) -> None:
        """Raise Refused unless this is the first, planned merge of uploads as they were sent."""
        if not self.planned:
            raise Refused(
                f"round {self.number}: the method asks for a merge that is not in the plan, so no budget pays"
                " for it; when a method merges may depend only on the round"
            )
        if not any(uploads is sent for sent in self.uploads):
            raise Refused(AS_SENT)
        if self.asked:
            raise Refused(
                "under the unit 'silo' a method may merge only once per round, because each merge costs"
            )
        self.asked.append(None)

    def _count(self, uploads: Tensor) -> None:
        """Record a noisy count of uploads within the clip; each counts as plus or minus one half."""
        rule, present = self.rule, self.roster.present
        if rule.quantile is None:
            return
        norm = uploads.double().reshape(*uploads.shape[:2], -1).norm(dim=-1)
        votes = (norm <= rule.clip.to(norm).reshape(-1, 1)).double() - 0.5
        if present is not None:
            votes = torch.where(present, votes, torch.zeros_like(votes))
        total = votes.sum(1)
        for run, noise in enumerate(rule.noise):
            self._noise(total[run], float(noise) / BITS**0.5 / 2, run, COUNT)
        self.counted.append(total)

    def _noise(self, total: Tensor, deviation: float, run: int, key: str) -> None:
        """Add the noise that a key names to one run's sum, in place."""
        if deviation > 0:
            dice = self.streams.merging(run, key, self.number)
            total.copy_(torch.as_tensor(dice.noisy(total.cpu().numpy(), deviation)))

    def _noised_at_home(self, uploads: Tensor) -> Tensor:
        """Return the sum of clipped uploads, each noised by its own silo: `[runs, 1, ...]`."""
        rule, roster = self.rule, self.roster
        limits = rule.limits(uploads)
        everybody = torch.ones(uploads.shape[:2], dtype=torch.bool, device=uploads.device)
        drawn = everybody if roster.present is None else roster.present
        whole = drawn if rule.members is None else everybody if self.adding is None else self.adding
        total = uploads.new_zeros(uploads.shape[0], 1, *uploads.shape[2:], dtype=torch.float64)
        for run, clip in enumerate(rule.clip):
            if int(whole[run].sum()) < rule.least:
                continue
            deviation = rule.noise_at_home(run) * float(clip) if rule.noise[run] else 0.0
            for k, name in enumerate(roster.names):
                if not whole[run, k]:
                    continue
                limit = limits[run : run + 1, k : k + 1] if limits.dim() == 2 else limits[run : run + 1]
                taken = drawn[run : run + 1, k : k + 1]
                upload = clipped_sum(uploads[run : run + 1, k : k + 1], limit, taken)[0]
                self._noise(upload, deviation, run, name)
                total[run] += upload
        return total


def row_keys(names: Sequence[str], matrix: Tensor) -> list[str]:
    """Return a name for each row's noise, made from the silos it sums and their weights, in any order.

    Equal rows get equal noise, because they are one release.
    """
    keys = []
    for row in matrix.tolist():
        parts = sorted((name, value) for name, value in zip(names, row, strict=True) if value)
        keys.append(f"{SERVER}/{hashlib.sha256(repr(parts).encode()).hexdigest()}")
    return keys


def clipped_sum(
    uploads: Tensor, clip: Tensor, present: Tensor | None, matrix: Tensor | None = None
) -> Tensor:
    """Return the sum of clipped uploads `[runs, silos, ...]` of silos that are present: `[runs, 1, ...]`.

    The `clip` is `[runs]` or `[runs, silos]`. With a `matrix` `[rows, silos]`, return the sums weighted by
    its rows: `[runs, rows, ...]`. Sums are float64, because in float32 one upload could change how the sum
    of all the others is rounded. An upload that is not finite counts as zero.
    """
    if not uploads.is_floating_point():
        raise Refused(f"under the unit 'silo' uploads must be real vectors, but one is {uploads.dtype}")
    runs, silos = uploads.shape[:2]
    flat = uploads.reshape(runs, silos, -1)
    shares = torch.ones(1, silos) if matrix is None else matrix
    shares = shares.to(flat.device, torch.float64)
    total = flat.new_zeros(runs, len(shares), flat.shape[2], dtype=torch.float64)
    limits = (clip if clip.dim() == 2 else clip.unsqueeze(1)).double().expand(runs, silos)
    for run in range(runs):
        taking_part = torch.arange(silos, device=flat.device)
        if present is not None:
            taking_part = taking_part[present[run]]
        for some in taking_part.split(max(1, AT_ONCE // flat.shape[2])):
            part, limit = flat[run, some].double(), limits[run, some]
            norm = part.norm(dim=-1)
            factor = torch.where(
                torch.isinf(limit), 1.0, (limit / (norm * (1 + UPLOAD_ROUNDING))).clamp(max=1)
            )
            sound = torch.isfinite(norm) | torch.isinf(limit)
            total[run] += (shares[:, some] * factor)[:, sound] @ (part if bool(sound.all()) else part[sound])
    return total.reshape(runs, len(shares), *uploads.shape[2:])
