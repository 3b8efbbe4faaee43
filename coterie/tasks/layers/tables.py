"""Tables of embeddings that one example at a time looks up, for many models at once.

torch's `F.embedding` must not be used for that: under `vmap` it does not check ids against the table of their
own model, so that an id without a row reads from another model, and its gradient counts for another example.
Here an id without a row is a vector of zeros that trains nothing. `experiment.id_check` names such ids.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .taps import Tap, Tapped


def rows(
    weight: Tensor, count: int, ids: Tensor, padding: int | None, tap: Tap | None
) -> tuple[Tensor, Tensor]:
    """Return the rows of a table of `count` rows for ids, and which ids have a row and are no padding.

    Padding reads its row, but trains nothing.
    """
    if ids.is_floating_point():
        raise TypeError("a table looks up whole numbers, but got numbers with decimals")
    known = (ids >= 0) & (ids < count)
    found = weight[ids.clamp(0, count - 1)]
    found = torch.where(known.unsqueeze(-1), found, 0.0)
    if padding is not None:
        known = known & (ids != padding)
        found = torch.where(known.unsqueeze(-1), found, found.detach())
    if tap is not None:
        found = tap.through("found", found)
        tap.note("ids", ids)
        tap.note("known", known)
    return found, known


class Table(nn.Embedding, Tapped):
    """`nn.Embedding`, one example at a time."""

    def forward(self, input: Tensor) -> Tensor:  # torch's own name
        """Return the rows of ids."""
        return rows(self.weight, self.num_embeddings, input, self.padding_idx, self.tap)[0]


class Bag(nn.EmbeddingBag, Tapped):
    """`nn.EmbeddingBag` for bags of one length, `[examples, ids]`; padding fills shorter ones."""

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Return the sum, mean or maximum of each bag's rows, without padding; zeros for an empty bag."""
        if offsets is not None or input.dim() != 2:
            raise ValueError(
                "nn.EmbeddingBag is trained on bags [examples, ids]: pad shorter ones with its padding_idx"
                " instead of giving offsets"
            )
        found, counted = rows(self.weight, self.num_embeddings, input, self.padding_idx, self.tap)
        if per_sample_weights is not None:
            found = found * per_sample_weights.unsqueeze(-1)
        counted = counted.unsqueeze(-1)
        if self.mode == "max":
            most = found.masked_fill(~counted, -torch.inf).amax(1)
            return torch.where(counted.any(1), most, 0.0)
        total = torch.where(counted, found, 0.0).sum(1)
        return total / counted.sum(1).clamp(min=1) if self.mode == "mean" else total
