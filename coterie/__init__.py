"""Coterie: private, personalized federated learning.

Names are loaded when they are first used, so that the command line answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .build import run as run
    from .errors import Problem as Problem
    from .errors import Refused as Refused
    from .federation import Federation as Federation
    from .federation import load as load
    from .metering import open_ledgers as open_ledgers
    from .method import Method as Method
    from .methods import MRMTL as MRMTL
    from .methods import FedAvg as FedAvg
    from .methods import FedProx as FedProx
    from .methods import Local as Local
    from .partition import Partition as Partition
    from .privacy.budget import Privacy as Privacy
    from .result import Result as Result
    from .result import load_model as load_model
    from .task import Task as Task
    from .task import make_task as make_task
    from .training import Training as Training

_HOME = {
    "run": "build",
    "Problem": "errors",
    "Refused": "errors",
    "Training": "training",
    "Federation": "federation",
    "load": "federation",
    "open_ledgers": "metering",
    "Method": "method",
    "MRMTL": "methods",
    "FedAvg": "methods",
    "FedProx": "methods",
    "Local": "methods",
    "Partition": "partition",
    "Privacy": "privacy.budget",
    "Result": "result",
    "load_model": "result",
    "Task": "task",
    "make_task": "task",
}
__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
