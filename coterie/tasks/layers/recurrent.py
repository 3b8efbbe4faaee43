"""`nn.LSTM`, `nn.GRU` and `nn.RNN` one example at a time: all their options but packed sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from .dropout import drop
from .scan import Scan
from .taps import Tapped

State = Tensor | tuple[Tensor, Tensor]


class _Cells(nn.RNNBase, Tapped):
    """Layers of cells, run by `Scan`."""

    def forward(self, input: Any, hx: Any = None) -> tuple[Tensor, State]:
        """Return the last layer's outputs and the last states of all layers."""
        if isinstance(input, PackedSequence):
            raise TypeError(
                f"nn.{self.mode.partition('_')[0]} is trained without packed sequences: pad them, and choose"
                " the last real step of the outputs, or mask them"
            )
        whole = input if input.dim() == 3 else input.unsqueeze(0 if self.batch_first else 1)
        value = whole if self.batch_first else whole.transpose(0, 1)  # [examples, steps, ...]
        states = [] if hx is None else [hx] if isinstance(hx, Tensor) else list(hx)
        states = [state if input.dim() == 3 else state.unsqueeze(1) for state in states]
        ends: list[tuple[Tensor, Tensor]] = []
        ways = ("", "_reverse") if self.bidirectional else ("",)
        for layer in range(self.num_layers):
            if layer and self.dropout:
                value = drop(value, self.dropout)
            parts = []
            for way in ways:
                first = [state[len(ends)] for state in states]
                part, end = self._along(value, f"l{layer}{way}", first)
                parts.append(part)
                ends.append(end)
            value = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        last = [torch.stack(each) for each in zip(*ends, strict=True)]
        output = value if self.batch_first else value.transpose(0, 1)
        if input.dim() == 2:
            output, last = output.squeeze(0 if self.batch_first else 1), [each.squeeze(1) for each in last]
        return output, (last[0], last[1]) if self.mode == "LSTM" else last[0]

    def _along(self, value: Tensor, key: str, first: list[Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run one layer in one direction; return its outputs and last states."""
        input_bias, hidden_bias = (getattr(self, f"bias_{kind}_{key}", None) for kind in ("ih", "hh"))
        gru, count, steps = self.mode == "GRU", *value.shape[:2]
        given = F.linear(value, getattr(self, f"weight_ih_{key}"), input_bias)
        inner = given.new_zeros(count, steps, given.shape[-1] if gru else 0)
        if hidden_bias is not None:
            if gru:
                inner = inner + hidden_bias
            else:
                given = given + hidden_bias
        if self.tap is not None:
            given = self.tap.through(f"given {key}", given)
            inner = self.tap.through(f"inner {key}", inner) if gru else inner
        backwards = key.endswith("_reverse")
        if backwards:
            given, inner = given.flip(1), inner.flip(1)
        hidden = first[0] if first else value.new_zeros(count, self.hidden_size)
        cell = first[1] if len(first) > 1 else value.new_zeros(count, self.hidden_size if not gru else 0)
        cell = cell if self.mode == "LSTM" else value.new_zeros(count, 0)
        weight = getattr(self, f"weight_hh_{key}").unsqueeze(0)
        kind = {"RNN_TANH": "tanh", "RNN_RELU": "relu"}.get(self.mode, self.mode)
        given, inner, start, cell = (each.unsqueeze(0) for each in (given, inner, hidden, cell))
        hiddens, cells, _ = (each.squeeze(0) for each in Scan.apply(kind, given, inner, weight, start, cell))
        end = (hiddens[:, -1], cells[:, -1])
        if self.tap is not None:
            before = torch.cat([hidden.unsqueeze(1), hiddens[:, :-1]], 1)
            self.tap.note(f"input {key}", value)
            self.tap.note(f"before {key}", before.flip(1) if backwards else before)
        return hiddens.flip(1) if backwards else hiddens, end


class LSTM(_Cells, nn.LSTM):  # type: ignore[misc]
    """`nn.LSTM`, one example at a time."""


class GRU(_Cells, nn.GRU):  # type: ignore[misc]
    """`nn.GRU`, one example at a time."""


class RNN(_Cells, nn.RNN):  # type: ignore[misc]
    """`nn.RNN`, one example at a time."""
