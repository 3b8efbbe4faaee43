"""Layers that training exchanges for their own: same parameters and numbers, another way to compute them.

torch runs some layers by kernels that cannot take one example at a time for many models, or that warn while
they do. Such a layer keeps its parameters, settings and hooks and gets another `forward` for training. A
trained model is the user's own module again, with torch's own layers.
"""

from __future__ import annotations

import copy

from torch import nn

from .adapters import LowRank, merge
from .attention import Attention
from .dropout import Dropout, Dropout1d, Dropout2d, Dropout3d, draws
from .recurrent import GRU, LSTM, RNN
from .tables import Bag, Table

EXCHANGED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Embedding: Table,
    nn.EmbeddingBag: Bag,
    nn.LSTM: LSTM,
    nn.GRU: GRU,
    nn.RNN: RNN,
    nn.MultiheadAttention: Attention,
    nn.Dropout: Dropout,
    nn.Dropout1d: Dropout1d,
    nn.Dropout2d: Dropout2d,
    nn.Dropout3d: Dropout3d,
}
# In training mode, these call their layers one by one, and not a kernel of their own.
WITHOUT_SHORTCUTS = (nn.TransformerEncoderLayer, nn.TransformerEncoder)
TORCHS_OWN = {ours: torchs for torchs, ours in EXCHANGED.items()}


def exchanged(module: nn.Module, always: bool = False) -> nn.Module:
    """Return a module that trains one example at a time: itself, or a copy with exchanged layers.

    Only torch's own classes are exchanged, never a class derived from them. With `always`, it is a copy.
    """
    if not always and not any(type(part) in EXCHANGED for part in module.modules()):
        return module
    ours = _with_classes(copy.deepcopy(module), EXCHANGED)
    for part in ours.modules():
        if isinstance(part, WITHOUT_SHORTCUTS):
            part.training = True
    return ours


def is_exchanged(module: nn.Module) -> bool:
    """Return whether a module has exchanged layers."""
    return any(type(part) in TORCHS_OWN or isinstance(part, LowRank) for part in module.modules())


def restored(module: nn.Module) -> nn.Module:
    """Return a copy of a module with torch's own layers; one that drops numbers is set to predict."""
    torchs = _with_classes(copy.deepcopy(module), TORCHS_OWN)
    for part in list(torchs.modules()):
        if isinstance(part, LowRank):
            merge(part)
    return torchs.eval() if any(map(draws, module.modules())) else torchs


def _with_classes(module: nn.Module, classes: dict[type[nn.Module], type[nn.Module]]) -> nn.Module:
    for part in module.modules():
        part.__class__ = classes.get(type(part), type(part))
    return module
