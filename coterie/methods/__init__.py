"""All methods, by the names users type."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ..errors import nearest
from ..protocol.method import Method
from .controls import Joint, RandomProjection
from .ditto import Ditto
from .dual import Dual
from .fedavg import FedAvg, FedProx
from .heads import Heads
from .ifca import IFCA
from .local import Local
from .mocha import Mocha
from .mr_mtl import MRMTL
from .mr_mtl_auto import AUTO, MRMTLAuto
from .pfa import PFA, PFAPlus, WeiAvg
from .pp_sgd import PPSGD
from .related import Related
from .then import FineTune, Then
from .tune import Tune

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        Local,
        FedAvg,
        FedProx,
        FineTune,
        Tune,
        MRMTL,
        MRMTLAuto,
        Ditto,
        Related,
        Heads,
        PPSGD,
        Joint,
        Mocha,
        Dual,
        IFCA,
        WeiAvg,
        PFA,
        PFAPlus,
        RandomProjection,
    )
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        hint = "" if name.startswith("_") else f"; {nearest(name, __dir__())}"
        raise AttributeError(f"module 'coterie.methods' has no attribute '{name}'{hint}")


def __dir__() -> list[str]:
    return [name for name in __all__ if name != "AUTO"]


__all__ = [
    "AUTO",
    "IFCA",
    "METHODS",
    "MRMTL",
    "PFA",
    "PPSGD",
    "Ditto",
    "Dual",
    "FedAvg",
    "FedProx",
    "FineTune",
    "Heads",
    "Joint",
    "Local",
    "MRMTLAuto",
    "Mocha",
    "PFAPlus",
    "RandomProjection",
    "Related",
    "Then",
    "Tune",
    "WeiAvg",
]
