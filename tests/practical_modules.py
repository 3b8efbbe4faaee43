"""Modules that practitioners have: tables, cells, attention, dropout and whole networks of them."""

from __future__ import annotations

import torch
from torch import nn

from coterie.tasks.task import Task

WORDS, LENGTH, CLASSES = 11, 6, 3


class Bagged(nn.Module):
    """An embedding bag; id 0 is padding."""

    def __init__(self, mode, weighted=False):
        super().__init__()
        self.bag = nn.EmbeddingBag(WORDS, 4, mode=mode, padding_idx=0)
        self.head, self.weighted = nn.Linear(4, CLASSES), weighted

    def forward(self, x):
        weights = torch.cos(x.float()) if self.weighted else None
        return self.head(self.bag(x, per_sample_weights=weights))


class Recurrent(nn.Module):
    """A classifier of series or, with words, of sentences."""

    def __init__(self, kind, words=False, batch_first=True, start=False, **options):
        super().__init__()
        self.table = nn.Embedding(WORDS, 4, padding_idx=0) if words else None
        self.cells = kind(4, 5, batch_first=batch_first, **options)
        self.head = nn.LazyLinear(CLASSES)
        self.start = nn.Parameter(torch.randn(1, 1, 5)) if start else None
        self.head = nn.Linear(5 * (2 if options.get("bidirectional") else 1), CLASSES)

    def forward(self, x):
        real = (x != 0) if self.table is not None else x[..., 0] > -9
        x = x if self.table is None else self.table(x)
        x = x if self.cells.batch_first else x.transpose(0, 1)
        first = None if self.start is None else self.start.expand(-1, len(real), -1).contiguous()
        out = self.cells(x)[0] if first is None else self.cells(x, first)[0]
        out = out if self.cells.batch_first else out.transpose(0, 1)
        share = real.unsqueeze(-1).float()
        return self.head((out * share).sum(1) / share.sum(1).clamp(min=1))


class Transformer(nn.Module):
    """Sentences with padding, through torch's own encoder."""

    def __init__(self, dropout=0.0, layers=1, causal=False, **options):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8, padding_idx=0), nn.Embedding(LENGTH, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)
        later = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
        self.register_buffer("later", later if causal else None)

    def forward(self, x):
        padding = x == 0
        padding = padding & ~padding.all(1, keepdim=True)
        value = self.words(x) + self.places(torch.arange(LENGTH, device=x.device))
        value = self.encoder(value, mask=self.later, src_key_padding_mask=padding)
        return self.head(value.mean(1))


class Attends(nn.Module):
    """Attention alone, with every option of torch's layer."""

    def __init__(self, batch_first=True, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **options)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        x = x if self.attention.batch_first else x.transpose(0, 1)
        out, shares = self.attention(x, x.sin(), x.cos())
        out = out if self.attention.batch_first else out.transpose(0, 1)
        return self.head(out.mean(1)) + shares.square().sum((1, 2)).unsqueeze(-1)


class Functional(nn.Module):
    """Attention by torch's function."""

    def __init__(self):
        super().__init__()
        self.inside, self.head = nn.Linear(4, 12), nn.Linear(4, CLASSES)

    def forward(self, x):
        query, key, value = self.inside(x).unsqueeze(1).chunk(3, -1)
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.head(seen.squeeze(1).mean(1))


class Block(nn.Module):
    """A residual block with group norms."""

    def __init__(self, channels, dropout):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(2, channels), nn.ReLU(),
            nn.Dropout2d(dropout), nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(2, channels),
        )  # fmt: skip

    def forward(self, x):
        return torch.relu(x + self.body(x))


class ChannelsLast(nn.Module):
    """Moves the channels of an image to the front."""

    def forward(self, x):
        return x.permute(0, 3, 1, 2)


def resnet(dropout=0.0):
    return nn.Sequential(
        ChannelsLast(), nn.Conv2d(3, 4, 3, stride=2), Block(4, dropout), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, CLASSES),
    )  # fmt: skip


SERIES, SENTENCE, IMAGE = (LENGTH, 4), (LENGTH,), (9, 9, 3)
MODULES = {
    "bag, sum": (SENTENCE, lambda: Bagged("sum")),
    "bag, mean": (SENTENCE, lambda: Bagged("mean")),
    "bag, max": (SENTENCE, lambda: Bagged("max")),
    "bag, weighted": (SENTENCE, lambda: Bagged("sum", weighted=True)),
    "lstm": (SERIES, lambda: Recurrent(nn.LSTM)),
    "lstm, steps first, no bias": (SERIES, lambda: Recurrent(nn.LSTM, batch_first=False, bias=False)),
    "lstm of words": (SENTENCE, lambda: Recurrent(nn.LSTM, words=True)),
    "lstm, deep, both ways": (SERIES, lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True)),
    "gru": (SERIES, lambda: Recurrent(nn.GRU)),
    "gru with a start": (SERIES, lambda: Recurrent(nn.GRU, start=True)),
    "gru, deep, both ways": (SERIES, lambda: Recurrent(nn.GRU, num_layers=2, bidirectional=True)),
    "rnn": (SERIES, lambda: Recurrent(nn.RNN)),
    "rnn, rectified": (SERIES, lambda: Recurrent(nn.RNN, nonlinearity="relu", num_layers=2)),
    "attention": (SERIES, Attends),
    "attention, steps first": (SERIES, lambda: Attends(batch_first=False, bias=False)),
    "attention with more keys": (SERIES, lambda: Attends(add_bias_kv=True, add_zero_attn=True)),
    "attention of other sizes": (SERIES, lambda: Attends(kdim=4, vdim=4)),
    "attention by function": (SERIES, Functional),
    "transformer": (SENTENCE, lambda: Transformer(layers=2)),
    "transformer, causal": (SENTENCE, lambda: Transformer(causal=True, norm_first=True, activation="gelu")),
    "resnet": (IMAGE, resnet),
}
DROPPING = {
    "dropout": (SERIES, lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))),
    "lstm with dropout": (SERIES, lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.3)),
    "transformer with dropout": (SENTENCE, lambda: Transformer(dropout=0.2)),
    "resnet with dropout": (IMAGE, lambda: resnet(0.3)),
}  # fmt: skip


def practical_task(name: str) -> Task:
    shape, build = (MODULES | DROPPING)[name]
    return Task(build, "cross-entropy", shape, CLASSES, ids=shape == SENTENCE)


def examples(task: Task, *lead: int) -> torch.Tensor:
    """Random examples; sentences end with padding."""
    generator = torch.Generator().manual_seed(3)
    if not task.ids:
        return torch.rand(*lead, *task.shape, generator=generator)
    x = torch.randint(1, WORDS, (*lead, *task.shape), generator=generator)
    return x * (torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (*lead, 1), generator=generator))
