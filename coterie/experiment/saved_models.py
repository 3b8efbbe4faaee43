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

from .._inputs import Input, inputs_from_json, inputs_to_json
from ..data.new_rows import Rows
from ..data.preparation import Preparation
from ..errors import Problem, as_path, plain_methods, plainly, reason
from ..tasks.layers import restored
from ..tasks.layers.unpack import unpacked
from ..tasks.layout import fill, tensors_of
from ..tasks.losses import PROBABILITIES, class_scores, predicted_class, predicted_number
from ..tasks.models import MODELS, Factory, qualified_name
from ..tasks.task import Task, make_task
from ..tasks.trials import REFUSALS, kind_of
from .files import OWNER_ONLY
from .probes import differs, probe, read_probes
from .several import columns_of

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "coterie-model/1"
KEY = "coterie"  # of the record among the file's metadata
CHUNK = 1024  # examples that go through a module at a time
HOLDS_STATISTICS = (
    "this file holds the mean and deviation of the silo's own training examples, which no budget covers"
)
RAW = (
    "no privacy protects this model: it was fitted to the silo's own examples without noise, so it must not"
    " leave the silo"
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
    inputs: tuple[Input, ...] = ()

    def __call__(self, x: Tensor | dict[str, Tensor]) -> Tensor:
        """Return the module's outputs for prepared examples; several inputs are a dict, or flat rows."""
        flat = isinstance(x, Tensor) and bool(self.inputs)
        output: Tensor = self.module(unpacked(x, self.inputs) if flat else x)  # type: ignore[arg-type]
        return output

    def predict(self, rows: Rows) -> pd.DataFrame:
        """Return predictions for raw rows, one row each, in the column `prediction`.

        `rows` is a DataFrame, the path of a CSV or Parquet file, or an array (see `Preparation.prepare`).
        For classes, the prediction is a class name, and each class has a further column with its probability,
        or its score if the loss has no probabilities. For a number, it is the value on the scale of the raw
        target. If there are several targets, each has a column `prediction of NAME`.
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
        if preparation.targets:
            return pd.DataFrame(columns_of(preparation, self.loss, output), index=index)
        if not preparation.classes:
            low, high = preparation.target_range or (0.0, 1.0)
            values = low + predicted_number(self.loss, output).double().numpy() * (high - low)
            return pd.DataFrame({"prediction": values}, index=index)
        names = np.array(preparation.classes, dtype=object)
        columns = {"prediction": names[predicted_class(self.loss, output).numpy()]}
        kind = "probability" if self.loss in PROBABILITIES else "score"
        scores = class_scores(self.loss, output).numpy()
        columns |= {f"{kind} of {name}": scores[:, place] for place, name in enumerate(names)}
        return pd.DataFrame(columns, index=index)

    def _outputs(self, x: Tensor) -> Tensor:
        try:
            with torch.no_grad():
                output = torch.cat([self(x[start : start + CHUNK]) for start in range(0, len(x), CHUNK)])
        except IndexError as error:
            raise Problem(
                f"rows: an id has no row in a table of the model of '{self.silo}' ({error})"
            ) from error
        if not torch.isfinite(output).all():
            raise Problem(f"the model of '{self.silo}' gives numbers that are not finite: it diverged")
        return output


def personal_model(
    task: Task, vector: Tensor, preparation: Preparation | None, silo: str, method: str
) -> PersonalModel:
    """Return the personal model of one vector."""
    own = None if preparation is None else preparation.pick([silo])
    return PersonalModel(task.to_module(vector), silo, method, task.loss, own, task.inputs)


def save_model(
    path: str | Path,
    task: Task,
    vector: Tensor,
    preparation: Preparation | None,
    silo: str,
    method: str,
    raw: bool = False,
) -> None:
    """Save the model of one vector, whole, with the record of what it is.

    A `raw` model, which no privacy protects, is marked and readable by its owner only.
    """
    from safetensors.torch import save_file

    record = record_of(task, vector, preparation, silo, method)
    record["notes"] += [RAW] * raw
    folder = Path(path).parent
    if not folder.is_dir():
        raise Problem(f"cannot save the model as '{path}': there is no folder '{folder}'")
    try:
        # One entry only: safetensors writes several in any order, and equal models should be equal files.
        if raw:
            Path(path).touch(OWNER_ONLY)
            Path(path).chmod(OWNER_ONLY)
        save_file(task.state(vector), str(path), {KEY: json.dumps(record, allow_nan=False)})
        if raw:
            Path(path).chmod(OWNER_ONLY)
    except Exception as error:  # safetensors raises its own kinds
        raise Problem(f"cannot save the model as '{path}': {reason(error)}") from error


def record_of(
    task: Task, vector: Tensor, preparation: Preparation | None, silo: str, method: str
) -> dict[str, Any]:
    """Return what a file records about its numbers, as plain data.

    `trained` are the names of the trained parameters, `tied` the further names of tensors that have
    several. `probes` are outputs for made-up examples, by which loading recognises another module.
    """
    own = None if preparation is None else preparation.pick([silo])
    kind: dict[str, Any] = {"ids": True} if task.ids else {}
    kind |= {"inputs": inputs_to_json(task.inputs)} if task.inputs else {}
    parameters = task.layout.unflatten(vector.detach().to(task.device))
    return {
        "schema": SCHEMA,
        "silo": silo,
        "method": method,
        "task": "classification" if task.classes else "regression",
        "loss": task.loss,
        "classes": list(_class_names(task.classes, own)),
        "shape": list(task.shape),
        **({"targets": task.targets} if task.targets else {}),
        "model": _model_of(task),
        "trained": task.trained_names,
        "tied": task.tied,
        "probes": probe(lambda x: task.predict(parameters, x.to(task.device)), task.shape, task.kind),
        "preparation": None if own is None else own.to_json(),
        **kind,
        "notes": [HOLDS_STATISTICS] if own is not None and own.steps_of(silo).mean is not None else [],
    }


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
    path: str | Path,
    module: str | Callable[..., nn.Module] | nn.Module | None = None,
    options: Mapping[str, Any] | None = None,
) -> PersonalModel:
    """Load a saved model.

    A built-in model needs the file only. For a user's module, `module` is its class, the function that makes
    it (also as "package.module:function") or an instance, which is copied; `options` are the arguments of the
    class or function, as `model_options` were when it was trained. It must be the module that was trained:
    options, names and shapes are compared, and what it computes on made-up examples.
    """
    record, tensors = _read(as_path("path", path))
    try:
        task = _task_of(record, module, options, path)
        preparation = None
        if record["preparation"] is not None:
            preparation = Preparation.from_json(record["preparation"])
            _check_preparation(preparation, record)
        model = PersonalModel(
            restored(task.seeded_module()),
            str(record["silo"]),
            str(record["method"]),
            record["loss"],
            preparation,
            task.inputs,
        )
        values = _values_for(model.module, tensors, dict(record["tied"]), path)
        expected = read_probes(record)
    except Problem:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Problem(f"the model '{path}' is damaged: {type(error).__name__}: {error}") from error
    fill(model.module, values)
    try:
        other = differs(model, task.shape, expected, kind_of(model.module, task.ids, task.inputs))
    except REFUSALS as error:
        raise Problem(f"'{path}' does not fit the module: {str(error).splitlines()[0]}") from error
    if other:
        raise Problem(
            f"'{path}' does not fit the module: names and shapes agree, but the module computes something"
            " other than the one that was trained (only parameters and buffers are saved)"
        )
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


def _task_of(record: Mapping[str, Any], module: Any, options: Any, path: str | Path) -> Task:
    """Return the task of a record, with the model that it names or that the caller gives.

    The file decides on the settings of a built-in model only.
    """
    about = record["model"]
    if options is not None and not isinstance(options, Mapping):
        raise Problem(f"options: expected a dict of settings, got {type(options).__name__}")
    if options and (module is None or isinstance(module, nn.Module)):
        raise Problem("options: they are for a class or function that makes a module; give it as module=")
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
    built_in = isinstance(module, str) and module in MODELS
    settings = dict(about["settings"] if built_in else options or {})
    if not isinstance(module, nn.Module) and not built_in:
        _check_options(about, {**getattr(module, "keywords", {}), **settings}, settings, path)
    shape, classes, loss = tuple(map(int, record["shape"])), len(record["classes"]), str(record["loss"])
    if ":" in loss:  # one of the user's own, which predictions do not need
        loss = "auto"
    ids = bool(record.get("ids", False))  # older files have none
    inputs, several = inputs_from_json(record.get("inputs", [])), int(record.get("targets", 0))
    return make_task(
        module,
        shape=shape,
        classes=classes,
        loss=loss,
        options=settings,
        ids=ids,
        inputs=inputs,
        targets=several,
    )


def _check_options(
    about: Mapping[str, Any], known: Mapping[str, Any], given: Mapping[str, Any], path: str | Path
) -> None:
    """Raise `Problem` unless a factory has the options with which the module was trained."""
    settings, left_out = dict(about["settings"]), list(about["left_out"])
    other = [key for key, value in settings.items() if key not in known or _plain(known[key]) != value]
    other += [key for key in left_out if key not in known]
    if other:
        said = f" ({json.dumps(settings[other[0]])})" if other[0] in settings else ""
        raise Problem(
            f"'{path}' was trained with another '{other[0]}'{said} than the module has: give it as options="
            f"{{'{other[0]}': ...}} in Python, or as --option {other[0]}=VALUE on the command line"
        )
    if surplus := [key for key in given if key not in settings and key not in left_out]:
        raise Problem(f"options: '{path}' was trained without '{surplus[0]}': leave it out")


def _plain(value: Any) -> Any:
    """Return a setting as a file gives it back."""
    return json.loads(json.dumps(value)) if _is_plain(value) else None


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
