"""The folder of a study: its result, statements, models, plot and configuration."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import Problem
from ..experiment.experiment import Experiment
from ..experiment.files import json_text, write, write_json, write_text
from ..experiment.result import Result, RunRecord, SiloRecord, file_names, label_of
from ..experiment.run import WAITING
from ..experiment.saved_models import save_model
from ..experiment.study import Study
from ..experiment.trained import Trained
from ..planning.plan import Plan
from ..privacy.statement.build import text_of
from .statement_page import page


@dataclass(frozen=True)
class Folder:
    """The folder in which a study is saved."""

    path: Path

    def open(self, study: Study) -> list[RunRecord]:
        """Create the folder, or find an interrupted study in it; return the runs that are finished."""
        text = study.text
        kept, result = self.path / "config.toml", self.path / "result.json"
        if self.path.exists() and not self.path.is_dir():
            raise Problem(f"out: '{self.path}' is a file; expected a folder")
        if not self.path.exists() or not any(self.path.iterdir()):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self._keep_fingerprint(study.fingerprint)
                write_text(kept, text)
            except OSError as error:
                raise Problem(f"out: cannot write to '{self.path}': {error.strerror or error}") from error
            return []
        if not kept.is_file() or kept.read_text() != text or not self._fits(study.fingerprint):
            raise Problem(f"out: '{self.path}' holds something else: choose another folder")
        if not result.is_file():
            return []
        try:
            content = json.loads(result.read_text())
            runs, complete = [read_run(run) for run in content["runs"]], content["complete"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Problem(f"out: '{result}' is damaged; choose another folder ({error})") from error
        if complete:
            raise Problem(f"out: '{self.path}' already holds this result; choose another folder")
        return runs

    @property
    def _fingerprint(self) -> Path:
        """A digest of examples in memory: for the owner only, and removed when the result is complete."""
        return self.path / ".fingerprint"

    def _keep_fingerprint(self, fingerprint: str) -> None:
        if fingerprint:
            self._fingerprint.touch(mode=0o600)
            self._fingerprint.write_text(fingerprint)

    def _fits(self, fingerprint: str) -> bool:
        return not self._fingerprint.is_file() or self._fingerprint.read_text() == fingerprint

    def has(self, experiment: Experiment, plan: Plan, runs: list[RunRecord], metered: bool = False) -> bool:
        """Return whether an experiment is finished: every run is as planned and every file is in its place.

        What a metered run spent is recorded in the ledgers, and may differ from the plan.
        """
        finished = {(run.label, run.seed): run for run in runs}
        for (seed, v), silos in zip(experiment.keys, plan.silos, strict=True):
            run = finished.get((experiment.labels[v], seed))
            if run is None or set(run.silos) != {silo.name for silo in silos}:
                return False
            for silo in silos:
                record = run.silos[silo.name]
                spent = (record.epsilon, record.delta, record.noise)
                if not metered and spent != (silo.epsilon, silo.delta, silo.noise):
                    return False
        files = file_names(experiment.federation.names)
        return all(
            (self.path / folder / label / f"{name}.{ending}").is_file()
            for folder, ending in (("statements", "json"), ("models", "safetensors"))
            for label in file_names(experiment.labels)
            for name in files
        )

    def discard(self) -> None:
        """Remove a folder in which nothing was trained yet."""
        new = {"config.toml", self._fingerprint.name, WAITING}
        if self.path.is_dir() and {entry.name for entry in self.path.iterdir()} <= new:
            for name in new:
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()
            if self.path.parent.name == "runs" and not any(self.path.parent.iterdir()):
                self.path.parent.rmdir()

    def save(self, result: Result, complete: bool) -> None:
        """Write the plot (if the study is complete), the table and, last, `result.json`."""
        from .plot import draw
        from .summary import markdown

        if complete:
            write(self.path / "plot.png", lambda place: draw(result, place))
        write_text(self.path / "summary.md", markdown(result))
        write_json(self.path / "result.json", {"complete": complete, **result.to_json()})
        if complete:
            self._fingerprint.unlink(missing_ok=True)

    def save_whole(self, result: Result) -> None:
        """Write a complete result; a folder that holds the same one already is left as it is."""
        if result.study is None:
            raise Problem("this result cannot be saved: it does not come from run or sweep")
        result.state()
        saved = self.path / "result.json"
        if saved.is_file() and saved.read_text() == json_text({"complete": True, **result.to_json()}):
            return
        self.open(result.study)
        for first, trained in result.trained.items():
            self.save_experiment(trained, result, first)
        self.save(result, complete=True)

    def save_experiment(self, trained: Trained, result: Result, first: int = 0) -> None:
        """Write the statements of every variant, and the models of its first seed.

        `first` is the place in the result of the experiment's first run.
        """
        experiment = trained.experiment
        for label, run in trained.saved():
            self.save_run(experiment, label, trained.statements[run], result.vectors[first + run])
            if first + run in result.relations:
                self.save_relations(label, experiment.federation.names, result.relations[first + run])

    def read(self, trained: Trained) -> tuple[Trained, dict[int, Tensor]]:
        """Return a finished experiment with its statements, and the models of each variant's first seed."""
        from safetensors.torch import load_file

        experiment, layout = trained.experiment, trained.experiment.task.layout
        names = file_names(experiment.federation.names)
        statements, vectors = {}, {}
        for label, run in trained.saved():
            stated, models = self.path / "statements" / label, self.path / "models" / label
            try:
                statements[run] = [json.loads((stated / f"{name}.json").read_text()) for name in names]
                loaded = [load_file(str(models / f"{name}.safetensors")) for name in names]
                vectors[run] = torch.stack([layout.flatten(parameters) for parameters in loaded])
            except Exception as error:  # safetensors raises exceptions of its own
                raise Problem(f"out: '{self.path}' is damaged; choose another folder ({error})") from error
        return replace(trained, statements=statements), vectors

    def save_run(
        self, experiment: Experiment, label: str, statements: list[dict[str, Any]], vectors: Tensor
    ) -> None:
        """Write the statement and the model of every silo of a run."""
        names = file_names(experiment.federation.names)
        for name, content, vector in zip(names, statements, vectors, strict=True):
            text, shown = text_of(content), page(content)
            place = self.path / "statements" / label / f"{name}.json"
            write_text(place, text)
            write_text(place.with_suffix(".html"), shown)
            place = self.path / "models" / label / f"{name}.safetensors"
            method = label_of(content["method"], content["settings"])
            about = (experiment.task, vector, experiment.federation.preparation, content["silo"], method)
            write(place, lambda at, about=about: save_model(at, *about))  # type: ignore[misc]

    def save_relations(self, label: str, names: tuple[str, ...], omega: Tensor) -> None:
        """Write the relations between silos, as data and as a picture."""
        from .relations_plot import draw_relations, relations_facts

        place = self.path / "relations" / f"{label}.json"
        write_json(place, relations_facts(omega, names))
        write(place.with_suffix(".png"), lambda at: draw_relations(omega, names, label, at))


def read_run(content: dict[str, Any]) -> RunRecord:
    """Read a run back from `result.json`, where null is an infinite epsilon or a score that is no number."""
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
    return RunRecord(**{**content, "score": _score(content["score"]), "silos": silos, **pairs, **lists})


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
