"""Whole personal models: used on raw rows, saved in one file each, and loaded again.

A safetensors file holds every parameter and buffer, trained or not, and a JSON record of what the numbers
mean (see `record_of`). Loading executes nothing from the file: a built-in model is built by its name, and a
user's module must be passed by the caller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.new_rows import Rows
from ..data.preparation import Preparation
from ..errors import Problem, as_path, plain_methods, plainly, reason
from ..tasks.check import made_up_examples
from ..tasks.layout import fill, tensors_of
from ..tasks.losses import PROBABILITIES, class_scores, predicted_class
from ..tasks.models import MODELS, Factory, qualified_name
from ..tasks.task import Task, make_task

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "coterie-model/1"
KEY = "coterie"  # of the record among the file's metadata
CHUNK = 1024  # examples that go through a module at a time
HOLDS_STATISTICS = (
    "this file holds the mean and deviation of the silo's own training examples, which no budget covers"
)


@plain_methods
@dataclass(frozen=True, eq=False)
class PersonalModel:
    """One silo's model and everything needed to use it on raw rows.

    `module` takes prepared examples; so does calling the model itself. `preparation` is how raw rows are
    prepared for this silo (none, if its federation was made of tensors).
    """

    module: nn.Module
    silo: str
    method: str
    loss: str
    preparation: Preparation | None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the module's outputs for prepared examples."""
        output: Tensor = self.module(x)
        return output

    def predict(self, rows: Rows) -> pd.DataFrame:
        """Return predictions for raw rows, one row each, in the column `prediction`.

        `rows` is a DataFrame, the path of a CSV or Parquet file, or an array (see `Preparation.prepare`).
        For classes, the prediction is a class name, and each class has a further column with its probability,
        or its score if the loss has no probabilities. For a number, it is the value on the scale of the raw
        target.
        """
        import pandas as pd

        preparation = self.preparation
        if preparation is None:
            raise Problem(
                "predict needs to know how raw rows became examples, but this federation was made of"
                " tensors: prepare the rows yourself and call the model"
            )
        output = self._outputs(preparation.inputs(rows, self.silo))
        index = rows.index if isinstance(rows, pd.DataFrame) else None
        if self.loss == "squared":
            low, high = preparation.target_range or (0.0, 1.0)
            values = low + output.squeeze(-1).double().numpy() * (high - low)
            return pd.DataFrame({"prediction": values}, index=index)
        names = np.array(preparation.classes, dtype=object)
        columns = {"prediction": names[predicted_class(self.loss, output).numpy()]}
        kind = "probability" if self.loss in PROBABILITIES else "score"
        scores = class_scores(self.loss, output).numpy()
        columns |= {f"{kind} of {name}": scores[:, place] for place, name in enumerate(names)}
        return pd.DataFrame(columns, index=index)

    def _outputs(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            output = torch.cat([self(x[start : start + CHUNK]) for start in range(0, len(x), CHUNK)])
        if not torch.isfinite(output).all():
            raise Problem(f"the model of '{self.silo}' gives numbers that are not finite: it diverged")
        return output


def personal_model(
    task: Task, vector: Tensor, preparation: Preparation | None, silo: str, method: str
) -> PersonalModel:
    """Return the personal model of one vector."""
    own = None if preparation is None else preparation.pick([silo])
    return PersonalModel(task.to_module(vector), silo, method, task.loss, own)


def save_model(
    path: str | Path, task: Task, vector: Tensor, preparation: Preparation | None, silo: str, method: str
) -> None:
    """Save the whole model of one vector, with a record of what it is."""
    from safetensors.torch import save_file

    record = record_of(task, vector, preparation, silo, method)
    folder = Path(path).parent
    if not folder.is_dir():
        raise Problem(f"cannot save the model as '{path}': there is no folder '{folder}'")
    try:
        # One entry only: safetensors writes several in any order, and equal models should be equal files.
        save_file(task.state(vector), str(path), {KEY: json.dumps(record, allow_nan=False)})
    except Exception as error:  # safetensors raises its own kinds
        raise Problem(f"cannot save the model as '{path}': {reason(error)}") from error


def record_of(
    task: Task, vector: Tensor, preparation: Preparation | None, silo: str, method: str
) -> dict[str, Any]:
    """Return what a file records about its numbers, as plain data.

    `trained` are the names of the trained parameters, `tied` the further names of tensors that have
    several. `made_up` are the outputs for made-up examples, by which loading recognises another module.
    """
    own = None if preparation is None else preparation.pick([silo])
    parameters = task.layout.unflatten(vector.detach().to(task.device))
    with torch.no_grad():
        outputs = task.predict(parameters, _trial(task.shape).to(task.device))
    return {
        "schema": SCHEMA,
        "silo": silo,
        "method": method,
        "task": "classification" if task.classes else "regression",
        "loss": task.loss,
        "classes": list(_class_names(task.classes, own)),
        "shape": list(task.shape),
        "model": _model_of(task),
        "trained": list(task.layout.names),
        "tied": task.tied,
        "made_up": [[x if abs(x) < np.inf else None for x in row] for row in outputs.tolist()],
        "preparation": None if own is None else own.to_json(),
        "notes": [HOLDS_STATISTICS] if own is not None and own.steps_of(silo).mean is not None else [],
    }


def _trial(shape: tuple[int, ...]) -> Tensor:
    return made_up_examples(shape, torch.Generator().manual_seed(0))


def _class_names(count: int, preparation: Preparation | None) -> tuple[str, ...]:
    return tuple(map(str, range(count))) if preparation is None else preparation.classes


def _model_of(task: Task) -> dict[str, Any]:
    """Return the model's name and settings; settings that JSON cannot hold appear only by name."""
    build = task.build
    if not isinstance(build, Factory):
        return {"built_in": None, "name": qualified_name(build), "settings": {}, "left_out": []}
    settings = {key: value for key, value in build.settings.items() if _is_plain(value)}
    return {
        "built_in": build.name if build.built_in else None,
        "name": build.name,
        "settings": settings,
        "left_out": [key for key in build.settings if key not in settings],
    }


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


@plainly
def load_model(
    path: str | Path, module: str | Callable[..., nn.Module] | nn.Module | None = None
) -> PersonalModel:
    """Load a saved model.

    A built-in model needs only the file. For a user's module, `module` is its class, the function that builds
    it (also as "package.module:function") or an instance, which is copied. It must be the module that was
    trained: its names, its shapes and its outputs on made-up examples are compared.
    """
    record, tensors = _read(as_path("path", path))
    try:
        task = _task_of(record, module, path)
        preparation = None
        if record["preparation"] is not None:
            preparation = Preparation.from_json(record["preparation"])
            _check_preparation(preparation, record)
        model = PersonalModel(
            task.seeded_module(), str(record["silo"]), str(record["method"]), task.loss, preparation
        )
        values = _values_for(model.module, tensors, dict(record["tied"]), path)
        expected = [[np.nan if x is None else float(x) for x in row] for row in record["made_up"]]
    except Problem:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Problem(f"the model '{path}' is damaged: {type(error).__name__}: {error}") from error
    fill(model.module, values)
    _check_outputs(model.module, task, np.array(expected), path)
    return model


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a file's record and tensors."""
    from safetensors import safe_open

    try:
        path.open("rb").close()  # says why it cannot be opened
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise Problem(f"cannot read the model '{path}': {reason(error)}") from error
    except Exception as error:  # safetensors raises its own kinds
        raise Problem(f"cannot read the model '{path}': it is no safetensors file, or damaged") from error
    try:
        record = json.loads(metadata[KEY])
        schema = record["schema"]
    except (KeyError, TypeError, ValueError) as error:
        raise Problem(
            f"'{path}' is not a model that Coterie saved: it has no record of what its numbers mean"
        ) from error
    if schema != SCHEMA:
        raise Problem(f"'{path}' has the format '{schema}', but this version reads '{SCHEMA}' only")
    return record, tensors


def _task_of(record: Mapping[str, Any], module: Any, path: str | Path) -> Task:
    """Return the task of a record, with the model that it names or that the caller gives."""
    about = record["model"]
    if module is None:
        module = about["built_in"]
        if module is None:
            raise Problem(
                f"'{path}' holds a user's module, '{about['name']}': give it as module= in Python, or as"
                " --module package.module:function on the command line"
            )
        if module not in MODELS:
            raise Problem(f"'{path}' needs the built-in model '{module}', which this version does not have")
    elif isinstance(module, str) and ":" not in module:
        raise Problem(f"module must be 'package.module:function', got '{module}'")
    settings = {} if isinstance(module, nn.Module) else dict(about["settings"])
    shape, loss = tuple(map(int, record["shape"])), str(record["loss"])
    return make_task(module, shape=shape, classes=len(record["classes"]), loss=loss, options=settings)


def _check_preparation(preparation: Preparation, record: Mapping[str, Any]) -> None:
    """Raise ValueError if a record's preparation does not lead to examples of its model."""
    if list(preparation.classes) != list(record["classes"]):
        raise ValueError("the classes of the preparation differ from the model's")
    raw = np.zeros((1, *preparation.shape), np.uint8 if preparation.uint8 else np.float32)
    if list(preparation.apply(raw, record["silo"]).shape[1:]) != list(record["shape"]):
        raise ValueError("the preparation makes examples of a different shape from the model's")


def _values_for(
    module: nn.Module, tensors: Mapping[str, Tensor], tied: Mapping[str, str], path: str | Path
) -> dict[str, Tensor]:
    """Return the file's value for each tensor of a module; raise `Problem` unless all fit."""
    expected = tensors_of(module)
    values = {
        name: tensors[name if name in tensors else tied[name]]
        for name in expected
        if name in tensors or tied.get(name) in tensors
    }
    problems = []
    if lacking := [name for name in expected if name not in values]:
        problems.append(f"the file lacks {_listed(lacking)}")
    if surplus := [name for name in tensors if name not in values]:
        problems.append(f"the module lacks {_listed(surplus)}")
    problems += [
        f"'{name}' is {tuple(value.shape)} {value.dtype} in the file and"
        f" {tuple(expected[name].shape)} {expected[name].dtype} in the module"
        for name, value in values.items()
        if value.shape != expected[name].shape or value.dtype != expected[name].dtype
    ]
    if problems:
        raise Problem(f"'{path}' does not fit the module: {'; '.join(problems[:5])}")
    return values


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:5]) + (" and others" if len(names) > 5 else "")


def _check_outputs(module: nn.Module, task: Task, expected: np.ndarray, path: str | Path) -> None:
    """Raise `Problem` if a module computes something other than the module that was trained."""
    try:
        with torch.no_grad():
            outputs = module(_trial(task.shape)).double().numpy()
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise Problem(f"'{path}' does not fit the module: {str(error).splitlines()[0]}") from error
    outputs = np.where(np.isfinite(outputs), outputs, np.nan)
    size = max(1.0, float(np.nan_to_num(np.abs(expected)).max(initial=0.0)))
    if outputs.shape != expected.shape or not np.allclose(
        outputs, expected, rtol=1e-3, atol=1e-4 * size, equal_nan=True
    ):
        raise Problem(
            f"'{path}' does not fit the module: names and shapes agree, but the module computes something"
            " other than the one that was trained (only parameters and buffers are saved)"
        )
