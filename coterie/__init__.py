"""Coterie: private, personalized federated learning.

    import coterie as ct

    federation = ct.load("clinics.csv", silo_column="clinic", target_column="outcome")
    plan = ct.plan(federation, ct.methods.Ditto(lam=0.2), ct.Privacy(epsilon=4, delta=1e-3), rounds=40)
    result = ct.run(plan, ledger="ledgers", out="study")

Names are loaded when they are first used, so that the command line answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import methods as methods
    from . import testing as testing
    from .api import load as load
    from .api import open_ledgers as open_ledgers
    from .api import plan as plan
    from .api import run as run
    from .api import sweep as sweep
    from .cohort.process import tune_process as tune_process
    from .data.describe import describe as describe
    from .data.federation import Federation as Federation
    from .data.partition import Partition as Partition
    from .data.sources.catalogue import list_data as list_data
    from .errors import Problem as Problem
    from .errors import Refused as Refused
    from .experiment.advise import advise as advise
    from .experiment.method_facts import list_methods as list_methods
    from .experiment.overlaps import person_totals as person_totals
    from .experiment.result import Result as Result
    from .experiment.saved_models import PersonalModel as PersonalModel
    from .experiment.saved_models import load_model as load_model
    from .experiment.starter import list_examples as list_examples
    from .experiment.starter import new_config as new_config
    from .experiment.study import StudyPlan as StudyPlan
    from .experiment.suggest import suggest as suggest
    from .methods import MRMTL as MRMTL
    from .methods import FedAvg as FedAvg
    from .methods import FedProx as FedProx
    from .methods import Local as Local
    from .planning.training import Training as Training
    from .privacy.budget import Privacy as Privacy
    from .privacy.keys import new_key as new_key
    from .privacy.keys import read_public_key as read_public_key
    from .privacy.ledger.place import adopt_ledgers as adopt_ledgers
    from .privacy.ledger.place import read_ledgers as read_ledgers
    from .privacy.ledger.place import recover_ledgers as recover_ledgers
    from .privacy.ledger.place import rekey_ledgers as rekey_ledgers
    from .privacy.ledger.place import release_runs as release_runs
    from .privacy.ledger.place import set_budget as set_budget
    from .privacy.statement.file import verify as verify
    from .protocol.method import Method as Method
    from .report.measured_columns import measure_columns as measure_columns
    from .report.tradeoff_plot import draw_tradeoff as draw_tradeoff
    from .report.tuning_plot import draw_tuning as draw_tuning
    from .tasks.task import Task as Task
    from .tasks.task import make_task as make_task

_HOME = {
    "Federation": "data.federation",
    "FedAvg": "methods",
    "FedProx": "methods",
    "Local": "methods",
    "MRMTL": "methods",
    "Method": "protocol.method",
    "Partition": "data.partition",
    "Privacy": "privacy.budget",
    "Problem": "errors",
    "Refused": "errors",
    "Result": "experiment.result",
    "PersonalModel": "experiment.saved_models",
    "StudyPlan": "experiment.study",
    "Task": "tasks.task",
    "Training": "planning.training",
    "adopt_ledgers": "privacy.ledger.place",
    "advise": "experiment.advise",
    "suggest": "experiment.suggest",
    "describe": "data.describe",
    "draw_tradeoff": "report.tradeoff_plot",
    "draw_tuning": "report.tuning_plot",
    "list_data": "data.sources.catalogue",
    "list_examples": "experiment.starter",
    "list_methods": "experiment.method_facts",
    "load": "api",
    "load_model": "experiment.saved_models",
    "make_task": "tasks.task",
    "measure_columns": "report.measured_columns",
    "new_config": "experiment.starter",
    "new_key": "privacy.keys",
    "open_ledgers": "api",
    "person_totals": "experiment.overlaps",
    "plan": "api",
    "read_public_key": "privacy.keys",
    "read_ledgers": "privacy.ledger.place",
    "recover_ledgers": "privacy.ledger.place",
    "rekey_ledgers": "privacy.ledger.place",
    "release_runs": "privacy.ledger.place",
    "run": "api",
    "set_budget": "privacy.ledger.place",
    "sweep": "api",
    "tune_process": "cohort.process",
    "verify": "privacy.statement.file",
}
_MODULES = ("methods", "testing")
__all__ = sorted([*_HOME, *_MODULES])
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'{_hint(name)}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def _hint(name: str) -> str:
    """Return what may be meant instead of a name that is not there."""
    if name.startswith("_"):
        return ""
    from .errors import nearest
    from .methods import __all__ as methods

    if name in methods:
        return f"; it is coterie.methods.{name}"
    return f"; {nearest(name, __all__)}"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
