"""Ids that a model has no row for are named before anything is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..data.federation import Federation
from ..errors import Problem
from ..tasks.layers import restored
from ..tasks.task import Task
from ..tasks.trials import tables_of

CHUNK = 1024  # examples that are tried at a time
MOST_PROBLEMS = 6  # lines of one message


def check_ids(task: Task, federation: Federation) -> None:
    """Raise one `Problem` that names silos with an id for which the model has no row.

    Where ids lie among numbers, or tables differ in size, only the module knows which ids go where: it is
    tried on all examples.
    """
    tables, problems = tables_of(task.module), []
    if not tables:
        return
    if task.inputs and not any(each.kind == "ids" for each in task.inputs):
        return
    name, rows = max(tables.items(), key=lambda item: item[1])
    module = restored(task.module).cpu()
    for silo in federation.silos:
        for part, x in (("training", silo.x), ("test", silo.test_x)):
            x = x[:1] if len(x) and not x.stride(0) else x  # blank examples of a plan, in the memory of one
            top = int(x.max()) if task.ids and x.numel() else 0
            low = int(x.min()) if task.ids and x.numel() else 0
            if task.ids and low >= 0 and top < min(tables.values()):
                continue
            if low < 0:
                problems.append(
                    f"data: silo '{silo.name}' has the id {low} among its {part} examples; ids are whole"
                    " numbers from 0 on"
                )
            elif top >= rows:
                problems.append(
                    f"data: silo '{silo.name}' has the id {top} among its {part} examples, but '{name}', the"
                    f" largest table of the model, has rows for the ids 0 to {rows - 1}"
                )
            elif (place := _refused(module, x if task.ids else x.float() * federation.scale)) is not None:
                problems.append(
                    f"data: silo '{silo.name}' has an id without a row in a table of the model (which have"
                    f" {_listed(tables)} rows), in {part} example {place + 1}"
                )
    if problems:
        hidden = len(problems) - MOST_PROBLEMS
        more = [f"data: {hidden} more parts of silos have such ids"] if hidden > 1 else []
        raise Problem("\n".join([*(problems[:MOST_PROBLEMS] if more else problems), *more]))


def _refused(module: nn.Module, x: Tensor) -> int | None:
    """Return the first example that a module does not take."""
    with torch.no_grad():
        for start in range(0, len(x), CHUNK):
            chunk = x[start : start + CHUNK]
            try:
                module(chunk)
            except IndexError:
                for place in range(len(chunk)):
                    try:
                        module(chunk[place : place + 1])
                    except IndexError:
                        return start + place
    return None


def _listed(tables: dict[str, int]) -> str:
    return ", ".join(f"'{name}': {rows}" for name, rows in tables.items())
