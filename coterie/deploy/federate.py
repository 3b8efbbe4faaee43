"""A whole deployment on one machine: guards as processes of their own, and a coordinator that reaches them.

It is for trying a deployment before there is one. Every message is signed, and every guard has its own
folder, key, ledger and policy; if root starts them, guards and nodes have users of their own. Everything that
was started is stopped at the end.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.federation import Federation
from ..errors import Problem
from ..experiment.config.schema import Config, check
from ..experiment.from_config import load_federation
from ..network.transport import SocketTransport, Transport
from ..privacy.keys import Key, draw_key, read_public_key
from .accounts import Accounts, accounts_for, hand_over, make_meeting_place
from .by_flower import carried_by_flower
from .by_nvflare import carried_by_nvflare
from .coordinator import Coordinator, Outcome
from .guard_folder import POLICY, GuardFolder, make_guard
from .guard_processes import running
from .make_plan import check_used, ignored, make_plan
from .plan_file import PlanFile, plan_of
from .policy import members_text, policy_text

SPARE = 1.000001  # a budget pays for its plans in spite of rounding


@dataclass(frozen=True)
class Training:
    """One training of a deployment: its plan, how it ended, and each silo's own report."""

    label: str
    plan: PlanFile
    outcome: Outcome
    reports: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Listening:
    """What a person hears while a deployment runs."""

    on_note: Callable[[str], None] = lambda line: None
    on_round: Callable[[str, int, int], None] = lambda label, done, rounds: None


def single_runs(config: Config) -> list[Config]:
    """Return a configuration for each method and each value in its lists, with the first seed."""
    tables = config.model_dump(exclude_none=True)
    tables["train"]["seeds"] = [config.train.seeds[0]]
    for name in ("ledger", "keys", "witness"):
        tables["privacy"].pop(name, None)
    single = []
    for method in config.method:
        axes = [value if isinstance(value, list) else [value] for value in method.values()]
        for values in itertools.product(*axes):
            chosen = dict(zip(method, values, strict=True))
            single.append(check({**tables, "method": [chosen]}, allowed=config.allowed))
    return single


def federate(
    config: Config,
    folder: str | Path,
    *,
    engine: str = "local",
    data_dir: str | Path | None = None,
    seconds: float = 600.0,
    listening: Listening | None = None,
) -> list[Training]:
    """Train every method of a configuration in a deployment on this machine; return how each ended.

    With the engine "local" the coordinator asks the guards itself. With "nvflare" or "flower", a server and a
    node per silo carry the messages. `folder` must be new. It keeps the guards' folders (with models, reports
    and statements) and the coordinator's (with plans, checkpoints and transcripts).
    """
    if engine not in ENGINES:
        raise Problem(f"engine: expected one of {', '.join(ENGINES)}, got '{engine}'")
    listening, place = listening or Listening(), Path(folder).absolute()
    if place.exists() and any(place.iterdir()):
        raise Problem(f"'{place}' is not empty: choose a new folder")
    check_used(config)
    for line in [*ignored(config), *_other_seeds(config)]:
        listening.on_note(line)
    federation, configs = load_federation(config, data_dir), single_runs(config)
    key = draw_key("coordinator")
    place.mkdir(parents=True, exist_ok=True)
    accounts = accounts_for(federation.names, place, listening.on_note)
    guards = make_guards(federation, configs, place / "guards", key, accounts)
    keys = {name: read_public_key(next((at.path / "keys").glob("*.pub"))) for name, at in guards.items()}
    plans = [make_plan(each, federation, key.public, keys, seconds=seconds) for each in configs]
    trainings = []
    with running(guards, accounts), ENGINES[engine](guards, place, accounts) as transport:
        for plan in plans:
            at = place / "coordinator" / plan.training
            trainings.append(_train(plan, at, key, transport, guards, listening))
    return trainings


def _other_seeds(config: Config) -> list[str]:
    """Return a sentence about the seeds that are not trained, if there are any."""
    first, *others = config.train.seeds
    if not others:
        return []
    return [f"train.seeds: a deployment trains one seed, {first}; left out: {', '.join(map(str, others))}"]


def _train(
    plan: PlanFile,
    folder: Path,
    key: Key,
    transport: Transport,
    guards: dict[str, GuardFolder],
    listening: Listening,
) -> Training:
    """Train one plan, and read what each silo reported at home."""
    label, rounds = plan.blank.labels[0], plan.blank.training.rounds
    coordinator = Coordinator(
        plan, folder, key, transport, on_round=lambda done, names: listening.on_round(label, done, rounds)
    )
    outcome = coordinator.run()
    for name in outcome.missing:
        listening.on_note(f"'{name}' did not finish: {coordinator.refusals.get(name, 'no answer')}")
    reports = {
        name: json.loads((guards[name].path / "results" / plan.training / "report.json").read_text())
        for name in outcome.finished
    }
    return Training(label, plan, outcome, reports)


def make_guards(
    federation: Federation,
    configs: Sequence[Config],
    folder: Path,
    key: Key,
    accounts: Mapping[str, Accounts] | None = None,
) -> dict[str, GuardFolder]:
    """Make a guard for every silo, whose ledger and policy allow the trainings of the configurations.

    With accounts, its folder belongs to its own user, and its socket is where its node may reach it.
    """
    blank = dict.fromkeys(federation.names, draw_key().public)
    files = [make_plan(each, federation, key.public, blank) for each in configs]
    plans = [plan_of(file.blank, file) for file in files]
    guards = {}
    for k, silo in enumerate(federation.silos):
        spent = [plan.silos[0][k] for plan in plans]
        epsilon = SPARE * sum(each.epsilon for each in spent)
        delta = min(0.999, SPARE * sum(each.delta for each in spent))
        fewest = min(3, len(federation))
        most, scores = SPARE * max(each.epsilon for each in spent), configs[0].scores is not None
        policy = policy_text(most, epsilon, fewest, approve="policy", scores=scores)
        own = None if accounts is None else accounts[silo.name]
        sockets = None if own is None else make_meeting_place(folder.parent / "sockets" / f"silo-{k}", own)
        guards[silo.name] = make_guard(
            folder / f"silo-{k}",
            silo,
            federation.classes,
            federation.name,
            key.public,
            (epsilon, delta),
            policy,
            unit=configs[0].privacy.unit,
            users=[str(os.getuid())] if own is None else [str(os.getuid()), str(own.node)],
            scale=federation.scale,
            socket=None if sockets is None else str(sockets / "guard.sock"),
            preparation=federation.preparation and federation.preparation.pick([silo.name]),
        )
        if own is not None:
            hand_over(folder / f"silo-{k}", own.guard)
    keys = {name: read_public_key(next((at.path / "keys").glob("*.pub"))).id for name, at in guards.items()}
    for at in guards.values():
        with (at.path / POLICY).open("a") as file:
            file.write(members_text(keys))
    return guards


@contextmanager
def asked_directly(
    guards: Mapping[str, GuardFolder], place: Path, accounts: Mapping[str, Accounts] | None = None
) -> Iterator[Transport]:
    """Reach guards by their sockets."""
    yield SocketTransport({name: at.socket for name, at in guards.items()})


ENGINES = {"local": asked_directly, "nvflare": carried_by_nvflare, "flower": carried_by_flower}
