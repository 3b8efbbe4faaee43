"""The methods, by the names they have on the outside."""

from __future__ import annotations

from ..method import Method
from .automatic import AUTO, MRMTLAuto
from .averaging import FedAvg, FedProx
from .chain import FineTune, Then
from .clustered import IFCA
from .covariance import Mocha
from .ditto import Ditto
from .dual import Dual
from .heads import Heads
from .local import Local
from .mean_regularised import MRMTL
from .projected import PFA, PFAPlus, RandomProjection, WeiAvg

METHODS: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        Local,
        FedAvg,
        FedProx,
        FineTune,
        MRMTL,
        MRMTLAuto,
        Ditto,
        Heads,
        Mocha,
        Dual,
        IFCA,
        WeiAvg,
        PFA,
        PFAPlus,
        RandomProjection,
    )
}

__all__ = [
    "AUTO",
    "IFCA",
    "METHODS",
    "MRMTL",
    "PFA",
    "Ditto",
    "Dual",
    "FedAvg",
    "FedProx",
    "FineTune",
    "Heads",
    "Local",
    "MRMTLAuto",
    "Mocha",
    "PFAPlus",
    "RandomProjection",
    "Then",
    "WeiAvg",
]
