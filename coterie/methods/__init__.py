"""The methods, by the names they have on the outside."""

from __future__ import annotations

from ..method import Method
from .additive import PPSGD
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
from .related import Joint, Related
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
