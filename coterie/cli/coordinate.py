"""`coterie propose` and `coterie coordinate`: a plan for real silos, and the training that follows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ..deploy.coordinator import Coordinator
from ..deploy.facts import federation_of, read_facts
from ..deploy.make_plan import ignored, make_plan
from ..deploy.plan_file import PlanFile, read_plan
from ..errors import Problem
from ..experiment.config.schema import Config
from ..network.flower.transport import FlowerTransport
from ..network.transport import SocketTransport, Transport
from ..privacy.keys import read_key
from .progress import progress_bar, tell


def propose_plan(
    config: Config,
    name: str,
    silos: Sequence[Path],
    key: Path,
    out: Path,
    fewest: int | None,
    seconds: float,
    on_note: Callable[[str], None],
) -> PlanFile:
    """Write a plan for silos that were described by their facts; tell what it does not use."""
    for line in ignored(config):
        on_note(line)
    if config.data.model_fields_set:
        on_note("data: not used here: silos prepare their own examples")
    facts = [read_facts(path) for path in silos]
    keys = {each.name: each.public for each in facts}
    federation = federation_of(facts, name)
    plan = make_plan(config, federation, read_key(key).public, keys, fewest=fewest, seconds=seconds)
    plan.save(out)
    return plan


def coordinate(
    plan_path: Path,
    folder: Path,
    key: Path,
    sockets: Sequence[str],
    kit: Path | None,
    flower: str | None,
    patience: float,
    skip_round: bool,
    as_json: bool,
) -> None:
    """Run a training to its end, or resume it."""
    plan, console = read_plan(plan_path), Console(stderr=as_json)

    def on_note(line: str) -> None:
        tell(console, line, "yellow")

    transport = _transport(plan, sockets, kit, flower, patience, on_note)
    try:
        with progress_bar(console) as progress:
            task = progress.add_task(
                plan.blank.labels[0], total=plan.blank.training.rounds, score="waiting for silos"
            )

            def on_round(done: int, names: tuple[str, ...]) -> None:
                progress.update(task, completed=done, score=f"{len(names)} silos")

            coordinator = Coordinator(
                plan,
                folder,
                read_key(key),
                transport,
                on_round=on_round,
                skip_round=skip_round,
                on_note=on_note,
            )
            outcome = coordinator.run()
    finally:
        transport.close()
    if as_json:
        facts = {"training": outcome.training, "rounds": outcome.rounds, "missing": list(outcome.missing)}
        facts |= {} if outcome.scores is None else {"scores": dict(outcome.scores)}
        typer.echo(json.dumps({**facts, "finished": dict(outcome.finished)}))
        return
    tell(
        console,
        f"{len(outcome.finished)} silos finished {outcome.rounds} rounds; their models stay with them",
    )
    if outcome.scores is not None:
        tell(console, scores_line(outcome.scores))
        for line in measure_lines(outcome.scores):
            tell(console, line)
    for name in outcome.missing:
        tell(console, f"'{name}' did not finish: {coordinator.refusals.get(name, 'no answer')}", "yellow")


def scores_line(scores: Mapping[str, Any]) -> str:
    """Return in words what silos told about their models."""
    if scores["all"] is None:
        return "no silo told a score"
    every, count = scores["all"], len(scores["silos"])
    likely = f"{every['low']:.3f} to {every['high']:.3f} with a chance of {scores['chance']:.0%}"
    return (
        f"{count} silo{'s' if count > 1 else ''} told a noised {scores['metric']}: {every['value']:.3f} over"
        f" all {every['tests']} test examples ({likely})"
    )


def measure_lines(scores: Mapping[str, Any]) -> list[str]:
    """Return in words which measures follow from what silos told, over all of them."""
    if scores["all"] is None:
        return []
    known = scores["all"].get("measures", {})
    found = {name: each for name, each in known.items() if "@" not in name and name != scores["metric"]}
    return [
        f"noised {name}: nothing is left of it after the noise"
        if each is None
        else f"noised {name}: {each['value']:.3f} ({each['low']:.3f} to {each['high']:.3f}, noise included)"
        for name, each in found.items()
    ]


def _transport(
    plan: PlanFile,
    sockets: Sequence[str],
    kit: Path | None,
    flower: str | None,
    patience: float,
    on_note: Callable[[str], None],
) -> Transport:
    """Return how silos are reached: by sockets on this machine, by NVFlare's kit, or through Flower."""
    if sum(map(bool, (sockets, kit, flower))) > 1:
        raise Problem("--kit, --flower, --socket: give one of them")
    if kit is not None:
        return _by_kit(plan, kit, patience, on_note)
    if flower is not None:
        return FlowerTransport(flower, plan.names, patience=patience, most=plan.most_bytes)
    found = {}
    for text in sockets:
        name, equals, path = text.partition("=")
        if not equals:
            raise Problem(f"--socket: expected SILO=PATH, got '{text}'")
        plan.place(name)
        found[name] = Path(path)
    if not found:
        raise Problem(
            "say how silos are reached: --kit FOLDER, --flower CONNECTION, or --socket SILO=PATH for each"
        )
    return SocketTransport(found, plan.most_bytes)


def _by_kit(plan: PlanFile, kit: Path, patience: float, on_note: Callable[[str], None]) -> Transport:
    """Return how silos are reached through NVFlare."""
    try:
        from ..network.nvflare.transport import NVFlareTransport
    except ImportError as error:
        raise Problem("--kit: NVFlare is not installed: pip install 'coterie[nvflare]'") from error
    return NVFlareTransport(
        kit, plan.names, patience=patience, least=plan.fewest, most=plan.most_bytes, on_note=on_note
    )
