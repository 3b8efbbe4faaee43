"""The methods, by the names they have on the outside."""

from __future__ import annotations

from ..method import Method
from .averaging import FedAvg, FedProx
from .local import Local
from .mean_regularised import MRMTL

METHODS: dict[str, type[Method]] = {kind.name: kind for kind in (Local, FedAvg, FedProx, MRMTL)}

__all__ = ["METHODS", "MRMTL", "FedAvg", "FedProx", "Local"]
