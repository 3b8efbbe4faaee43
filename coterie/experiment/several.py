"""Predictions and measures where every example has several targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ..data.preparation import Preparation
from ..errors import Problem
from ..tasks.losses import predicted_number
from ..tasks.task import Task

NO_MEASURES = "{key} is for one target, but the data has {targets}; use {metric}, their mean, or leave it out"


def check_one_target(task: Task, key: str) -> None:
    """Raise `Problem` for a measure of a task with several targets."""
    if task.targets:
        raise Problem(NO_MEASURES.format(key=key, targets=task.targets, metric=task.metric))


def columns_of(preparation: Preparation, loss: str, output: Tensor) -> dict[str, Any]:
    """Return the columns of predictions for several targets, from outputs `[rows, targets]`.

    Each label has a second column: the probability of its second value, or its score if the loss gives none.
    """
    columns: dict[str, Any] = {}
    for place, name in enumerate(preparation.targets):
        one = output[:, place : place + 1]
        if preparation.classes:
            labels = np.array(preparation.classes, dtype=object)
            columns[f"prediction of {name}"] = labels[(one[:, 0] > 0).long().numpy()]
            if loss == "logistic":
                columns[f"probability of {name}"] = one[:, 0].double().sigmoid().numpy()
            else:
                columns[f"score of {name}"] = one[:, 0].numpy()
        else:
            low, high = preparation.target_range or (0.0, 1.0)
            values = predicted_number(loss, one).double().numpy()
            columns[f"prediction of {name}"] = low + values * (high - low)
    return columns
