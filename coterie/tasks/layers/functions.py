"""Functions of torch that modules call themselves, and that training exchanges like layers.

They would let examples reach other models' tables (`tables`), draw masks that no key reaches (`dropout`), or
warn that they are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .dropout import drop
from .tables import rows


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise ValueError("F.embedding is trained without max_norm, scale_grad_by_freq and sparse")
    padding = padding_idx if padding_idx is None or padding_idx >= 0 else len(weight) + padding_idx
    return rows(weight, len(weight), input, padding, None)[0]


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return drop(input, p) if training else input


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        shares = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min).softmax(-1)
        shares = shares.masked_fill(~attn_mask, 0)
    else:
        shares = (scores if attn_mask is None else scores + attn_mask).softmax(-1)
    return drop(shares, dropout_p) @ value


def _refuse(name: str, instead: str) -> Callable[..., Tensor]:
    def refuse(*_: Any, **__: Any) -> Tensor:
        raise ValueError(f"{name} does not keep examples apart: use {instead}")

    return refuse


EXCHANGED: dict[Any, Callable[..., Tensor]] = {
    F.embedding: _embedding,
    F.dropout: _dropout,
    F.scaled_dot_product_attention: _attention,
    F.embedding_bag: _refuse("F.embedding_bag", "the layer nn.EmbeddingBag"),
}


class _Exchange(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return EXCHANGED.get(func, func)(*args, **(kwargs or {}))


class _Watch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Any] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        drops = func is F.dropout and (args[2:3] or (kwargs or {}).get("training", True)) not in (
            False,
            (False,),
        )
        if func in EXCHANGED and (func is not F.dropout or drops):
            self.seen.add(func)
        return func(*args, **(kwargs or {}))


@contextmanager
def exchanging(needed: bool) -> Iterator[None]:
    """Exchange functions while the context lasts, if a module needs it."""
    if not needed:
        yield
        return
    with _Exchange():
        yield


def functions_of(module: nn.Module, examples: Tensor) -> set[Any]:
    """Return which exchanged functions a module calls, for several examples or for one."""
    watch = _Watch()
    for x in (examples, examples[:1]):
        with torch.no_grad(), torch.random.fork_rng(devices=[]), watch, suppress(Exception):
            module(x)
    return watch.seen
