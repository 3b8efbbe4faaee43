"""Coterie: private, personalized federated learning.

Names are loaded when they are first used, so that the command line answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import open_ledgers as open_ledgers
    from .api import run as run
    from .cohort.process import tune_process as tune_process
    from .data.federation import Federation as Federation
    from .data.federation import load as load
    from .data.partition import Partition as Partition
    from .errors import Problem as Problem
    from .errors import Refused as Refused
    from .experiment.result import Result as Result
    from .experiment.saved_models import PersonalModel as PersonalModel
    from .experiment.saved_models import load_model as load_model
    from .methods import MRMTL as MRMTL
    from .methods import FedAvg as FedAvg
    from .methods import FedProx as FedProx
    from .methods import Local as Local
    from .planning.training import Training as Training
    from .privacy.budget import Privacy as Privacy
    from .protocol.method import Method as Method
    from .tasks.task import Task as Task
    from .tasks.task import make_task as make_task

_HOME = {
    "run": "api",
    "tune_process": "cohort.process",
    "Problem": "errors",
    "Refused": "errors",
    "Training": "planning.training",
    "Federation": "data.federation",
    "load": "data.federation",
    "open_ledgers": "api",
    "Method": "protocol.method",
    "MRMTL": "methods",
    "FedAvg": "methods",
    "FedProx": "methods",
    "Local": "methods",
    "Partition": "data.partition",
    "Privacy": "privacy.budget",
    "Result": "experiment.result",
    "PersonalModel": "experiment.saved_models",
    "load_model": "experiment.saved_models",
    "Task": "tasks.task",
    "make_task": "tasks.task",
}
__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
