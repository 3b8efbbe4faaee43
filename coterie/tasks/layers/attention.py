"""`nn.MultiheadAttention` by products of matrices, with dropout whose masks belong to examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dropout import drop
from .taps import Tapped

PARTS = ("query", "key", "value")


class Attention(nn.MultiheadAttention, Tapped):
    """`nn.MultiheadAttention`, one example at a time."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what each place of the query attends to and, if asked for, how much."""
        if is_causal and attn_mask is None:
            raise ValueError("nn.MultiheadAttention needs the attn_mask that is_causal speaks of")
        batched, given = query.dim() == 3, [query, key, value]
        if not batched:
            given = [each.unsqueeze(0) for each in given]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            given = [each.transpose(0, 1) for each in given]
        asked, offered, content = (self._heads(each) for each in self._projected(given))
        scores = asked @ offered.transpose(-1, -2) * self.head_dim**-0.5
        shares = _shares(*self._masked(scores, attn_mask, key_padding_mask))
        dropped = drop(shares, self.dropout) if self.training else shares
        seen = (dropped @ content).transpose(1, 2).flatten(2)
        output = F.linear(seen, self.out_proj.weight, self.out_proj.bias)
        if self.tap is not None:
            self.tap.note("input out", seen)
            output = self.tap.through("out", output)
        if not batched:
            output, dropped = output.squeeze(0), dropped.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        weights = dropped.mean(-3) if average_attn_weights else dropped
        return output, weights if need_weights else None

    def _projected(self, given: list[Tensor]) -> list[Tensor]:
        """Return query, key and value after their linear layers, and what is added to all keys."""
        if self._qkv_same_embed_dim:
            weights: Any = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        projected = []
        for part, value, weight, bias in zip(PARTS, given, weights, biases, strict=True):
            moved = F.linear(value, weight, bias)
            if self.tap is not None:
                self.tap.note(f"input {part}", value)
                moved = self.tap.through(part, moved)
            projected.append(moved)
        for place, more in ((1, self.bias_k), (2, self.bias_v)):
            if more is not None:
                projected[place] = torch.cat([projected[place], more.expand(len(given[0]), -1, -1)], 1)
            if self.add_zero_attn:
                nothing = projected[place].new_zeros(len(given[0]), 1, self.embed_dim)
                projected[place] = torch.cat([projected[place], nothing], 1)
        return projected

    def _heads(self, value: Tensor) -> Tensor:
        heads: Tensor = value.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        return heads

    def _masked(
        self, scores: Tensor, attn_mask: Tensor | None, padding: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return scores with what masks add to them, and which of them are hidden."""
        hidden = None
        for mask, shape in ((attn_mask, None), (padding, (scores.shape[0], 1, 1, -1))):
            if mask is None:
                continue
            if shape is not None:
                mask = mask.reshape(shape)
            elif mask.dim() == 3:
                mask = mask.unflatten(0, (-1, self.num_heads))
            mask = F.pad(mask, (0, scores.shape[-1] - mask.shape[-1]))
            if mask.is_floating_point():
                gone = mask == -torch.inf
                scores = scores + mask.masked_fill(gone, 0)
                mask = gone
            hidden = mask if hidden is None else hidden | mask
        return scores, hidden


def _shares(scores: Tensor, hidden: Tensor | None) -> Tensor:
    """Return how much is attended to; nothing if everything is hidden."""
    if hidden is None:
        return scores.softmax(-1)
    shares = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
    return shares.masked_fill(hidden, 0)
