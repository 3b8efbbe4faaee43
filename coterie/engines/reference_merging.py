"""Slow, obvious merging of whole silos: one silo and one row at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..cohort.merging import COUNT, LONGEST, PACE, SERVER, SHORTEST, row_keys
from ..protocol.merging import BITS, Merger, MergeRule
from ..protocol.roster import Roster
from ..protocol.streams import Dice, Streams


@dataclass(frozen=True, eq=False)
class SlowMerger(Merger):
    """The merges of the unit 'silo' in one run, silo by silo.

    `rows(key)` returns the dice for the noise of a row, and `draws` holds one for each silo's noise.
    """

    rule: MergeRule
    rows: Callable[[str], Dice]
    draws: tuple[Dice, ...]
    counted: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, roster: Roster, rule: MergeRule, streams: Streams, run: int) -> SlowMerger:
        """Return the merger of the roster's round, with the dice of the server's and silos' noise."""
        number, single = roster.round, slice(run, run + 1)
        share = None if rule.share is None else rule.share[single]

        def rows(key: str) -> Dice:
            return streams.merging(run, key, number)

        draws = tuple(rows(name) for name in roster.names)
        return cls(
            roster, replace(rule, noise=rule.noise[single], clip=rule.clip[single], share=share), rows, draws
        )

    def clipping(self, clip: Tensor) -> SlowMerger:
        """Return the merger that clips uploads at another length."""
        return replace(self, rule=replace(self.rule, clip=clip.reshape(-1).double()), counted=[])

    def next_clip(self, clip: Tensor) -> Tensor:
        """Return the next clip, from uploads within the clip counted one by one."""
        if self.rule.quantile is None or not self.counted:
            return clip
        votes = 0.0
        for k, upload in enumerate(self.counted[0][0].double().numpy()):
            if self._is_present(k):
                votes += 0.5 if float(np.sqrt((upload**2).sum())) <= float(self.rule.clip) else -0.5
        if float(self.rule.noise):
            votes = float(self.rows(COUNT).noisy(np.array(votes), float(self.rule.noise) / (2 * BITS**0.5)))
        share = min(max(votes / self.rule.cohort + 0.5, 0.0), 1.0)
        return (clip * float(np.exp(-PACE * (share - self.rule.quantile)))).clamp(SHORTEST, LONGEST)

    def _is_present(self, k: int) -> bool:
        return self.roster.present is None or bool(self.roster.present[0, k])

    def _clipped(self, k: int, upload: np.ndarray) -> np.ndarray:
        """Return the upload of silo k, clipped to its share of the clip."""
        share = 1.0 if self.rule.share is None else float(self.rule.share[0, k])
        norm, limit = float(np.sqrt((upload**2).sum())), float(self.rule.clip) * share
        return upload if norm <= limit else upload * (limit / norm)

    def mean(self, uploads: Tensor, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Return the noisy sum of clipped uploads, divided by the planned cohort size or by all silos."""
        clip, noise = float(self.rule.clip), float(self.rule.noise) * self.rule.scale
        self.counted.append(uploads)
        total = np.zeros(uploads[0, 0].shape)
        came = [k for k in range(len(self.roster)) if self._is_present(k)]
        if self.rule.where == "secure":
            due = self.rule.due
            noise /= (due - self.rule.dropouts - self.rule.colluding) ** 0.5
            if self.rule.members is not None:
                came = list(range(len(self.roster)))  # those that were not drawn add noise to zeros
            if len(came) < due - self.rule.dropouts:
                return torch.from_numpy(total).float().reshape(1, 1, *total.shape)
        for k, upload in enumerate(uploads[0].double().numpy()):
            if k not in came:
                continue
            clipped = self._clipped(k, upload if self._is_present(k) else np.zeros_like(upload))
            if noise and self.rule.where != "server":
                clipped = self.draws[k].noisy(clipped, noise * clip)
            total += clipped
        if noise and self.rule.where == "server":
            total = self.rows(SERVER).noisy(total, noise * clip)
        total /= len(self.roster) if everybody else self.rule.cohort
        return torch.from_numpy(total).float().reshape(1, 1, *total.shape)

    def mix(self, uploads: Tensor, matrix: Tensor) -> Tensor:
        """Return the noisy sums of clipped uploads, one per row of the matrix."""
        clip, noise = float(self.rule.clip), float(self.rule.noise) * self.rule.scale
        shares = matrix.double().numpy()
        self.counted.append(uploads)
        total = np.zeros((len(shares), uploads.shape[-1]))
        for k, upload in enumerate(uploads[0].double().numpy()):
            if not self._is_present(k):
                continue
            for row, share in enumerate(shares[:, k]):
                total[row] += share * self._clipped(k, upload)
        if noise:
            reach = max(float(np.sqrt((shares[:, k] ** 2).sum())) for k in range(shares.shape[1]))
            for row, key in enumerate(row_keys(self.roster.names, matrix.double())):
                total[row] = self.rows(key).noisy(total[row], noise * clip * reach)
        return torch.from_numpy(total).float().unsqueeze(0)
