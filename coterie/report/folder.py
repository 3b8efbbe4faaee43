"""The folder of a study: its result, statements, models, plot and configuration."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import Problem, reason
from ..experiment.digest import SALT_BYTES, examples_digest
from ..experiment.file_names import file_names
from ..experiment.files import EVERYBODY, OWNER_ONLY, json_text, write, write_json, write_text
from ..experiment.result import Result, RunRecord, SiloRecord, label_of
from ..experiment.run import WAITING
from ..experiment.saved_models import save_model
from ..experiment.study import Study
from ..experiment.trained import Trained
from ..measures.measured import read_measured
from ..privacy.statement.build import text_of
from .statement_page import page


@dataclass(frozen=True)
class Folder:
    """The folder in which a study is saved."""

    path: Path

    def open(self, study: Study) -> list[RunRecord]:
        """Create the folder, or find an interrupted study in it; return the runs that are finished."""
        if self._make(study, resumable=True):
            return []
        kept, result = self.path / "config.toml", self.path / "result.json"
        if not kept.is_file() or kept.read_text() != study.text:
            raise Problem(f"out: '{self.path}' holds something else: choose another folder")
        if not result.is_file():
            runs, complete = [], False
        else:
            try:
                content = json.loads(result.read_text())
                runs, complete = [read_run(run) for run in content["runs"]], content["complete"]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise Problem(f"out: '{result}' is damaged; choose another folder ({error})") from error
        if complete:
            raise Problem(f"out: '{self.path}' already holds this result; choose another folder")
        if not self._digest.is_file():
            self._keep_digest(study)
        elif not self._has_digest_of(study):
            raise Problem(
                f"out: '{self.path}' holds a study that began with other examples, or another module: restore"
                " them, or choose another folder"
            )
        return runs

    def _make(self, study: Study, resumable: bool = False) -> bool:
        """Create the folder with the study's description; return False if it holds something already."""
        if self.path.exists() and not self.path.is_dir():
            raise Problem(f"out: '{self.path}' is a file; expected a folder")
        if self.path.exists() and any(self.path.iterdir()):
            return False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_text(self.path / "config.toml", study.text, lasting=resumable)
            if resumable:
                self._keep_digest(study)
        except OSError as error:
            raise Problem(f"out: cannot write to '{self.path}': {reason(error)}") from error
        except Problem as problem:
            self.discard()
            raise Problem(f"out: {problem}") from None
        return True

    @property
    def _digest(self) -> Path:
        """A digest of the examples and its salt: for the owner only, and removed when all is complete."""
        return self.path / ".fingerprint"

    @property
    def examples(self) -> str:
        """The digest of what the study works on, with its salt."""
        return self._digest.read_text()

    def _keep_digest(self, study: Study) -> None:
        salt = os.urandom(SALT_BYTES)
        text = f"{salt.hex()} {examples_digest(study, salt)}"
        write_text(self._digest, text, OWNER_ONLY, lasting=True)

    def _has_digest_of(self, study: Study) -> bool:
        salt, _, digest = self.examples.partition(" ")
        try:
            return examples_digest(study, bytes.fromhex(salt)) == digest
        except ValueError:
            return False

    def has(self, trained: Trained, runs: list[RunRecord]) -> bool:
        """Return whether an experiment is finished: every run is as planned and every file is in its place.

        Spending of metered runs is not compared: the ledgers record it, and it may differ from the plan.
        """
        experiment = trained.experiment
        finished = {(run.label, run.seed): run for run in runs}
        for (seed, v), silos in zip(experiment.keys, trained.plan.silos, strict=True):
            run = finished.get((experiment.labels[v], seed))
            if run is None or set(run.silos) != {silo.name for silo in silos}:
                return False
            for silo in silos:
                record = run.silos[silo.name]
                spent = (record.epsilon, record.delta, record.noise)
                if not trained.metered and spent != (silo.epsilon, silo.delta, silo.noise):
                    return False
        files = file_names(experiment.federation.names)
        return all(
            (self.path / folder / label / f"{name}.{ending}").is_file()
            for folder, ending, places in (
                ("statements", "json", trained.stated_runs()),
                ("models", "safetensors", trained.saved()),
            )
            for label, _ in places
            for name in files
        )

    def discard(self) -> None:
        """Remove a folder in which nothing was trained yet, as far as that is allowed."""
        new = {"config.toml", self._digest.name, WAITING}
        if self.path.is_dir() and {entry.name for entry in self.path.iterdir()} <= new:
            with contextlib.suppress(OSError):
                for name in new:
                    (self.path / name).unlink(missing_ok=True)
                self.path.rmdir()
                if self.path.parent.name == "runs" and not any(self.path.parent.iterdir()):
                    self.path.parent.rmdir()

    def save(self, result: Result, complete: bool) -> None:
        """Write the plot (if the study is complete), the table and, last, `result.json`."""
        from .measures_plot import draw_measures, has_measures
        from .plot import draw
        from .silos_plot import draw_silos, has_silos
        from .summary import markdown

        if complete:
            write(self.path / "plot.png", lambda place: draw(result, place))
            if has_measures(result):
                write(self.path / "measures.png", lambda place: draw_measures(result, place))
            if has_silos(result):
                write(self.path / "silos.png", lambda place: draw_silos(result, place))
        write_text(self.path / "summary.md", markdown(result))
        write_json(self.path / "result.json", {"complete": complete, **result.to_json()})
        if complete:
            self.close()

    def is_complete(self) -> bool:
        """Return whether the folder holds a complete result."""
        try:
            return json.loads((self.path / "result.json").read_text())["complete"] is True
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def close(self) -> None:
        """Remove the digest of the examples: a complete study does not resume."""
        self._digest.unlink(missing_ok=True)

    def save_whole(self, result: Result) -> None:
        """Write a complete result; leave a folder alone that already holds the same one."""
        if result.study is None:
            raise Problem("this result cannot be saved, because it does not come from run or sweep")
        result.state()
        saved = self.path / "result.json"
        if saved.is_file() and saved.read_text() == json_text({"complete": True, **result.to_json()}):
            return
        if not self._make(result.study):
            raise Problem(f"out: '{self.path}' holds something else: choose another folder")
        for first, trained in result.trained.items():
            self.save_experiment(trained, result, first)
        self.save(result, complete=True)

    def save_experiment(self, trained: Trained, result: Result, first: int = 0) -> None:
        """Write the statements of every variant, and the models of its first seed.

        A metered training has statements of all seeds.

        `first` is the index of the experiment's first run in the result.
        """
        experiment = trained.experiment
        for place, run in trained.stated_runs():
            self._save_statements(trained, place, run)
        for label, run in trained.saved():
            self._save_models(trained, label, run, result.vectors[first + run])
            if first + run in result.relations:
                self.save_relations(label, experiment.federation.names, result.relations[first + run])

    def read(self, trained: Trained) -> tuple[Trained, dict[int, Tensor]]:
        """Return a finished experiment with its statements, and the models of each variant's first seed."""
        from safetensors.torch import load_file

        experiment, layout = trained.experiment, trained.experiment.task.layout
        names = file_names(experiment.federation.names)
        statements, vectors = {}, {}
        for place, run in trained.stated_runs():
            stated = self.path / "statements" / place
            try:
                statements[run] = [json.loads((stated / f"{name}.json").read_text()) for name in names]
            except (OSError, ValueError) as error:
                raise Problem(f"out: '{self.path}' is damaged; choose another folder ({error})") from error
        for label, run in trained.saved():
            models = self.path / ("adapters" if experiment.task.adaptation.lora else "models") / label
            try:
                loaded = [load_file(str(models / f"{name}.safetensors")) for name in names]
                vectors[run] = torch.stack([layout.flatten(parameters) for parameters in loaded])
            except Exception as error:  # safetensors raises exceptions of its own
                raise Problem(f"out: '{self.path}' is damaged; choose another folder ({error})") from error
        return replace(trained, statements=statements), vectors

    def _save_statements(self, trained: Trained, folder: str, run: int) -> None:
        """Write the statement of every silo of a run, as data and as a page."""
        names = file_names(trained.experiment.federation.names)
        for name, content in zip(names, trained.statements[run], strict=True):
            place = self.path / "statements" / folder / f"{name}.json"
            write_text(place, text_of(content))
            write_text(place.with_suffix(".html"), page(content))

    def _save_models(self, trained: Trained, label: str, run: int, vectors: Tensor) -> None:
        """Write the model of every silo of a run."""
        experiment, statements = trained.experiment, trained.statements[run]
        names = file_names(experiment.federation.names)
        for k, (name, content, vector) in enumerate(zip(names, statements, vectors, strict=True)):
            place = self.path / "models" / label / f"{name}.safetensors"
            if experiment.task.adaptation.lora:
                tensors = experiment.task.layout.unflatten(vector.detach().cpu())
                adapters = functools.partial(_save_tensors, tensors)
                secret = OWNER_ONLY if trained.is_raw(run, k) else EVERYBODY
                write(self.path / "adapters" / label / place.name, adapters, secret)
            method, raw = label_of(content["method"], content["settings"]), trained.is_raw(run, k)
            about = (experiment.task, vector, experiment.federation.preparation, content["silo"], method, raw)
            fill = functools.partial(_save_model, about)
            write(place, fill, OWNER_ONLY if raw else EVERYBODY)

    def save_relations(self, label: str, names: tuple[str, ...], omega: Tensor) -> None:
        """Write the relations between silos, as data and as a picture."""
        from .relations_plot import draw_relations, relations_facts

        place = self.path / "relations" / f"{label}.json"
        write_json(place, relations_facts(omega, names))
        write(place.with_suffix(".png"), lambda at: draw_relations(omega, names, label, at))


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Save the trained tensors of a model with adapters, which its whole model no longer tells apart."""
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(path))


def _save_model(about: tuple[Any, ...], path: Path) -> None:
    save_model(path, *about)


def read_run(content: dict[str, Any]) -> RunRecord:
    """Return a run read from `result.json`, where null means an infinite epsilon or a score that is NaN."""
    silos = {
        name: SiloRecord(
            _score(record["score"]), *(_spent(record[key]) for key in ("epsilon", "delta", "noise"))
        )
        for name, record in content["silos"].items()
    }
    pairs = {key: [(number, _score(value)) for number, value in content[key]] for key in ("history", "gaps")}
    lists = {
        key: {name: [_score(value) for value in values] for name, values in content.get(key, {}).items()}
        for key in ("curves", "losses")
    }
    more = {
        "score": _score(content["score"]),
        "measures": {name: read_measured(each) for name, each in content.get("measures", {}).items()},
        "constant": _score(content.get("constant")),
        "no_better": tuple(content.get("no_better", ())),
    }
    return RunRecord(**{**content, **more, "silos": silos, **pairs, **lists})


def _score(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _spent(value: float | None) -> float:
    return math.inf if value is None else value


def next_free(name: str) -> Path:
    """Return a folder under `runs/` that does not exist yet."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path
