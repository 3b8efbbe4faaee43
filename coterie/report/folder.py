"""The folder of a run: result, statements, models, plot, configuration.

Each file is written beside its place and moved there, so a folder never holds half a file.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import Config
from ..doors import SAMPLED
from ..errors import Problem
from ..experiment import Experiment
from ..jsonable import finite
from ..metering import Account, Meter, run_plans
from ..plan import Plan
from ..privacy.kept import Kept
from ..privacy.statement import Door, kept_numbers, merge_door, statement, text_of
from ..result import Result, RunRecord, SiloRecord, file_names, save_vector
from ..silo_metering import merges_done
from .statement_page import page


def write(path: Path, fill: Callable[[Path], None]) -> None:
    """Write a file in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    os.close(handle)
    try:
        fill(Path(name))
        Path(name).chmod(0o644)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write plain data as JSON."""
    text = json.dumps(finite(content), indent=2, allow_nan=False) + "\n"
    write(path, lambda place: _put(place, text))


def _put(place: Path, text: str) -> None:
    place.write_text(text)


@dataclass(frozen=True)
class Folder:
    """Where a run is saved."""

    path: Path

    def open(self, config: Config) -> list[RunRecord]:
        """Make the folder, or go on with one that was left unfinished; give its finished runs."""
        text = config.to_toml()
        kept, result = self.path / "config.toml", self.path / "result.json"
        if self.path.exists() and not self.path.is_dir():
            raise Problem(f"--out: '{self.path}' is a file: name a folder")
        if not self.path.exists() or not any(self.path.iterdir()):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                write(kept, lambda place: _put(place, text))
            except OSError as error:
                raise Problem(f"--out: cannot write to '{self.path}': {error.strerror or error}") from error
            return []
        if not kept.is_file() or kept.read_text() != text:
            raise Problem(f"--out: '{self.path}' holds something else: choose another folder")
        if not result.is_file():
            return []
        try:
            content = json.loads(result.read_text())
            runs, complete = [read_run(run) for run in content["runs"]], content["complete"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Problem(f"--out: '{result}' is damaged: choose another folder ({error})") from error
        if complete:
            raise Problem(f"--out: '{self.path}' already holds this result: choose another folder")
        return runs

    def has(self, experiment: Experiment, plan: Plan, runs: list[RunRecord], metered: bool = False) -> bool:
        """Whether an experiment is finished here: every run as planned, every file in its place.

        What a metered run spent is in the ledgers, and may differ from the plan.
        """
        found = {(run.label, run.seed): run for run in runs}
        for (seed, v), silos in zip(experiment.keys, plan.silos, strict=True):
            run = found.get((experiment.labels[v], seed))
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
        if self.path.is_dir() and {entry.name for entry in self.path.iterdir()} == {"config.toml"}:
            (self.path / "config.toml").unlink()
            self.path.rmdir()
            if self.path.parent.name == "runs" and not any(self.path.parent.iterdir()):
                self.path.parent.rmdir()

    def save(self, result: Result, complete: bool) -> None:
        """Write the plot (of what is complete), the table and `result.json`, which comes last."""
        from .plot import draw
        from .swept import markdown

        if complete:
            write(self.path / "plot.png", lambda place: draw(result, place))
        write(self.path / "summary.md", lambda place: _put(place, markdown(result)))
        write_json(self.path / "result.json", {"complete": complete, **result.to_json()})

    def save_experiment(
        self, experiment: Experiment, plan: Plan, result: Result, meter: Meter | None = None
    ) -> None:
        """Write the statements of every variant, and the models of its first seed."""
        seeds = len(experiment.training.seeds)
        labels = file_names(experiment.labels)
        kept = kept_numbers()
        for number in range(len(experiment.variants)):
            run = number * seeds
            silos = range(len(plan.silos[run]))
            contents = [statement_of(experiment, plan, run, k, meter, kept) for k in silos]
            self.save_run(experiment, labels[number], contents, result.vectors[run])
            if run in result.relations:
                self.save_relations(labels[number], experiment.federation.names, result.relations[run])
            result.published[experiment.labels[number]] = {
                content["silo"]: published_facts(content) for content in contents
            }
        kept.save()

    def save_run(
        self, experiment: Experiment, label: str, statements: list[dict[str, Any]], vectors: Tensor
    ) -> None:
        """Write the statement and the model of every silo of a run."""
        names = file_names(experiment.federation.names)
        for name, content, vector in zip(names, statements, vectors, strict=True):
            text, shown = text_of(content), page(content)
            place = self.path / "statements" / label / f"{name}.json"
            write(place, lambda at, text=text: _put(at, text))  # type: ignore[misc]
            write(place.with_suffix(".html"), lambda at, text=shown: _put(at, text))  # type: ignore[misc]
            place = self.path / "models" / label / f"{name}.safetensors"
            write(place, lambda at, vector=vector: save_vector(experiment.task, vector, at))  # type: ignore[misc]

    def save_relations(self, label: str, names: tuple[str, ...], omega: Tensor) -> None:
        """Write how silos are related, as data and as a picture."""
        from .relations_plot import draw_relations, relations_facts

        place = self.path / "relations" / f"{label}.json"
        write_json(place, relations_facts(omega, names))
        write(place.with_suffix(".png"), lambda at: draw_relations(omega, names, label, at))


def published_facts(statement: dict[str, Any]) -> dict[str, Any]:
    """Give what papers' formulas say of a statement's events, and where that is too little."""
    found = {one["paper"]: one["epsilon"] for one in statement["published"]}
    return {"epsilon": found, "warnings": statement["warnings"]}


def statement_of(
    experiment: Experiment,
    plan: Plan,
    run: int,
    k: int,
    meter: Meter | None = None,
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Give the statement of one silo in one run."""
    silo = plan.silos[run][k]
    if silo.merges is not None:
        return silo_statement(experiment, plan, run, k, meter, kept)
    asked = run_plans(experiment.method.name, plan, k)[run]
    account = Account(
        asked.events(0, asked.rounds), silo.epsilon, silo.delta, silo.budget, ((0, asked.rounds),), None
    )
    if meter is not None:
        account = meter.account(k, run)
    return statement_for(experiment, plan, run, k, account, asked.seen, kept=kept)


def silo_statement(
    experiment: Experiment, plan: Plan, run: int, k: int, meter: Meter | None, kept: Kept | None
) -> dict[str, Any]:
    """Give the statement of a whole silo in one run, from the plan or, if it was metered, from its ledger."""
    silo = plan.silos[run][k]
    merges, epsilon, delta = silo.merges, 0.0, silo.delta
    budget, facts = silo.budget if math.isfinite(silo.budget) else silo.epsilon, None
    if meter is not None:
        _, epsilon, delta, budget, rounds, facts = meter.account(k, run)
        merges = merges_done(plan, run, k, rounds)
    assert merges is not None
    return statement(
        silo=silo.name,
        method=experiment.method.title,
        settings=experiment.variants[experiment.keys[run][1]].shown,
        size=silo.work.size,
        doors=merge_door(merges),
        events=merges.strongest(),
        seen=(),
        budget=budget,
        delta=delta,
        not_covered=experiment.not_covered(run, k),
        charged=epsilon,
        ledger=facts,
        kept=kept,
        merges=merges,
    )


def statement_for(
    experiment: Experiment,
    plan: Plan,
    run: int,
    k: int,
    account: Account,
    seen: tuple[str, ...],
    tuning: dict[str, Any] | None = None,
    scored: bool = False,
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Give the statement of one silo from its account; `scored` if it releases scores.

    How often doors were opened is counted from the dry run, not from the events.
    """
    silo = plan.silos[run][k]
    trials = 1 if tuning is None else tuning["ran"]
    rounds = [number for first, last in account.rounds for number in range(first, last)]
    scores = trials * rounds.count(len(plan.counts.calls) - 1) if scored else 0
    tests = len(experiment.federation.silos[k].test_y)
    doors = [
        *opened_doors(plan, run, k, rounds, trials, float(experiment.clip[run, k])),
        Door("score", scores, 1, "all test examples", 1.0, tests, 1.0),
    ]
    return statement(
        silo=silo.name,
        method=experiment.method.title,
        settings=experiment.variants[experiment.keys[run][1]].shown,
        size=silo.work.size,
        doors=[door for door in doors if door.calls],
        events=account.events,
        seen=seen,
        budget=account.budget,
        delta=account.delta,
        not_covered=experiment.not_covered(run, k),
        charged=account.epsilon,
        ledger=account.facts,
        tuning=tuning,
        kept=kept,
    )


def opened_doors(plan: Plan, run: int, k: int, rounds: list[int], trials: int, clip: float) -> list[Door]:
    """Give the doors that a silo opened in some rounds, by the dry run; where steps differ, each apart."""
    silo = plan.silos[run][k]
    counts: Counter[tuple[str, int]] = Counter()
    for number in rounds:
        if plan.present is None or bool(plan.present[number, run, k]):
            steps = silo.work.steps if plan.steps is None else int(plan.steps[number, run, k])
            for door in plan.counts.calls[number]:
                counts[
                    door.split()[0] if door.startswith("select") else door, steps if door in SAMPLED else 1
                ] += trials
    found = []
    for (door, steps), calls in sorted(counts.items()):
        if door in SAMPLED:
            sample = ("poisson", silo.work.rate, silo.work.expected, clip)
        else:
            sample = ("all examples", 1.0, float(silo.work.size), 1.0 if door == "select" else clip)
        found.append(Door(door, calls, steps, *sample))
    return found


def read_run(content: dict[str, Any]) -> RunRecord:
    """Read a run back from `result.json`."""
    silos = {
        name: SiloRecord(*(float("inf") if record[key] is None else record[key] for key in _SILO))
        for name, record in content["silos"].items()
    }
    history = [(number, float(score)) for number, score in content["history"]]
    return RunRecord(**{**content, "silos": silos, "history": history})


_SILO = ("score", "epsilon", "delta", "noise")


def next_free(name: str) -> Path:
    """Give a folder under `runs/` that does not exist yet."""
    number = 1
    while (path := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return path
