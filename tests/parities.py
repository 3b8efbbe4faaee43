"""One plan, trained in the simulation and by guards with a coordinator, with the same random streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from coterie.data.federation import Federation, from_table
from coterie.data.sources.table import Table
from coterie.experiment.experiment import Experiment
from coterie.experiment.saved_models import load_model
from coterie.guard.meter import Meter, make_meter
from coterie.guard.session import OpenSession, Session
from coterie.methods import METHODS
from coterie.network.transport import DirectTransport
from coterie.privacy.adversaries import ADVERSARIES
from coterie.privacy.ledger.ledger import Ledger
from coterie.protocol.streams import SeededStreams
from tests.federations import BUDGET, Small, config_of, seeded
from tests.helpers import UNSOUND_FOR_SILOS, refused

UNEQUAL = {"silo-0": 1.0, "default": 4.0}
BY_BUDGET = ("weiavg", "pfa", "pfa+", "random-projection")  # these weight silos by their budgets
COSTLY = ("ditto", "ifca", "mr-mtl-auto")  # their noise is found at once if batches are whole
WIDE = {"divide": "top", "top": 0.7}
TABLES: dict[str, dict[str, Any]] = {
    "tune": {"name": "tune", "after": {"name": "mr-mtl", "share": 0.5}},  # unit silo: PMTL, then tuning
    "ifca": {"name": "ifca", "clusters": 2, "choosing": 0.5},
    "pfa": {"name": "pfa", **WIDE},
    "pfa+": {"name": "pfa+", **WIDE},
    "random-projection": {"name": "random-projection", **WIDE},
}
MORE = [
    {"name": "mr-mtl", "after": {"name": "ifca", "clusters": 2, "choosing": 0.5, "share": 0.5}},
    {"name": "tune", "how": "ewc", "after": {"name": "fedavg", "share": 0.5}},
    {"name": "tune", "how": "kl", "after": {"name": "fedprox", "share": 0.5}},
    {"name": "related", "relations": {"silos": ["silo-0", "silo-1", "silo-2"], "groups": ["a", "b", "b"]}},
]
PLACES = {
    "example": {},
    "person": {"unit": "person"},
    "silo, noise by server": {"unit": "silo", "noise_by": "server"},
    "silo, noise by silos": {"unit": "silo", "noise_by": "silos"},
}


def every_table() -> list[dict[str, Any]]:
    """Return the table of every registered method, and of chains and settings of note."""
    return [TABLES.get(name, {"name": name}) for name in METHODS] + MORE


def title(table: Mapping[str, Any]) -> str:
    """Return the name of a case."""
    after = table.get("after")
    own = "-".join(str(value) for key, value in table.items() if key in ("name", "how"))
    own += "-in-groups" if "relations" in table else ""
    return own if after is None else f"{own}-after-{after['name']}"


# Refused in the simulation and in a deployment alike, each in one sentence.
AT_HOME = "noise that silos add goes with the mean over all: take noise_by = 'server' here"
FISHER = "'fisher' returns raw values, which have no sound release under the unit 'example'"


def refusal(table: Mapping[str, Any], place: str) -> str | None:
    """Return why a method is refused in a place, in the simulation as in a deployment."""
    if place in ("example", "person"):
        return FISHER.replace("example", place) if table.get("how") == "ewc" else None
    if place == "silo, noise by silos" and table["name"] in ("related", "joint"):
        return AT_HOME  # each silo's target is a sum of its own, so there is no mean over all
    names = (table["name"], table.get("after", {}).get("name"))
    return next((UNSOUND_FOR_SILOS[name] for name in names if name in UNSOUND_FOR_SILOS), None)


def federation(persons: bool = False) -> Federation:
    """Return three silos of unequal size, three classes, and features of norm at most 1.

    With `persons`, some rows are about the same person, and a third of these rows are not used.
    """
    generator = np.random.default_rng(3)
    y = generator.integers(0, 3, size=80)
    x = generator.normal(size=(80, 4)) + np.eye(3, 4)[y]
    x = (x / (1.01 * np.linalg.norm(x, axis=1, keepdims=True))).astype(np.float32)
    silo = np.repeat(["silo-0", "silo-1", "silo-2"], [20, 20, 40])
    if not persons:
        return from_table(Table("made", x, y, silo))
    return from_table(Table("made", x, y, silo, person=np.arange(80) // 3), rows_per_person=2)


def configured(table: dict[str, Any], privacy: dict[str, Any], **train: Any):
    """Return the configuration of a small training."""
    linear = METHODS[table["name"]].linear
    model = {"name": "linear", "loss": "one-against-rest"} if linear else {"name": "mlp", "hidden": 3}
    whole = table["name"] in BY_BUDGET or table.get("after", table)["name"] in COSTLY
    settings = {"rounds": 3, "batch": 32 if whole else 8, "steps": 1, "lr": 0.3, **train}
    if table["name"] in BY_BUDGET:
        privacy = {"epsilon": UNEQUAL, **privacy}
    data = {"source": "made"} | ({"rows_per_person": 2} if privacy.get("unit") == "person" else {})
    return config_of(table, privacy, settings, model=model, data=data)


@dataclass(frozen=True)
class KnownStreams(SeededStreams):
    """Streams of a meter whose noise the test knows."""

    secrets: dict[str, bytes] = field(default_factory=dict)

    def begin(self, silo: str, row: str, first: int = 0, last: int | None = None) -> None:
        """Do nothing: the streams need no reservation."""

    def end(self, silo: str) -> None:
        """Do nothing."""


class Charged(NamedTuple):
    """What a ledger says about a training: its claim, the rounds that were reserved, and the totals."""

    epsilon: float
    delta: float
    stages: object
    seen: frozenset[str]
    unprotected: frozenset[str]
    rounds: tuple[int, ...]
    totals: dict[str, tuple[float, float]]


def charged(ledger: Ledger, unit: str) -> Charged:
    """Return what a ledger with one run says."""
    state = ledger.state()
    (run,) = state.runs
    claim = state.claim_of(run)
    rounds = [number for first, last in state.reserved(run) for number in range(first, last)]
    released = tuple(number for number in sorted(rounds) if claim.events(number, number + 1))
    assert set(state.reservations) == state.committed
    totals = {name: state.total(unit, name) for name in ADVERSARIES}
    sides = frozenset(claim.seen), frozenset(claim.unprotected)
    return Charged(claim.epsilon, claim.delta, claim.stages, *sides, released, totals)


class Twin(NamedTuple):
    """Models `[silos, P]`, what each ledger says, and who took part in each round."""

    vectors: torch.Tensor
    charges: list[Charged]
    present: list[tuple[str, ...]]


def simulated(made: Experiment, folder: Path, absent: Callable[[int], Sequence[str]] | None = None) -> Twin:
    """Train in the simulation, with ledgers; silos that are `absent` from a round do not come."""
    names, unit = made.federation.names, made.privacy.unit
    plan = made.plan()
    meter: Meter = make_meter(folder, made.federation, [BUDGET] * len(names), unit)
    meter.streams = KnownStreams(made.keys)
    present = []

    class Watched(OpenSession):
        def before(self, number: int) -> list[int]:
            gone = absent(number) if absent is not None else ()
            places = [k for k in super().before(number) if names[k] not in gone]
            here = plan.present_at(number, 1, places)
            came = [k for k in range(len(names)) if here is None or bool(here[0, k])]
            present.append(tuple(names[k] for k in came))
            return places

    class Watching(Session):
        def begin(self, label, plan):
            opened = super().begin(label, plan)
            return Watched(opened.session, opened.plan, opened.blocks, opened.checkpoint)

    result = made.train(plan, session=Watching(meter=meter, every=1))
    charges = [charged(ledger, unit) for ledger in meter.ledgers]
    meter.close()
    return Twin(result.vectors[0], charges, present)


class Clock:
    """A clock that jumps instead of waiting."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def deployed(small: Small, made: Experiment, absent: Callable[[int], Sequence[str]] | None = None) -> Twin:
    """Train with guards and a coordinator; silos that are `absent` from a round do not answer."""
    guards, present = small.guards(), []
    plan = small.plan if absent is None else small.new_plan(fewest=1, seconds=1.0)

    class Sometimes(DirectTransport):
        def exchange(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, bytes]:
            gone = absent(len(present)) if absent is not None else ()
            here = {name: message for name, message in messages.items() if name not in gone}
            return super().exchange(here, seconds)

    coordinator = small.coordinator(
        Sometimes({name: guard.answer for name, guard in guards.items()}),
        plan=plan,
        clock=Clock(),
        on_round=lambda done, names: present.append(names),
    )
    coordinator.streams = seeded(made, "", "", 0)
    outcome = coordinator.run()
    assert not outcome.missing, coordinator.refusals
    vectors = []
    for guard in guards.values():
        saved = load_model(guard.folder.path / "results" / plan.training / "model.safetensors")
        vectors.append(torch.cat([value.reshape(-1) for value in saved.module.state_dict().values()]))
    charges = [charged(guard.ledger, made.privacy.unit) for guard in guards.values()]
    for guard in guards.values():
        guard.close()
    return Twin(torch.stack(vectors), charges, present)


def both(config, folder: Path, absent: Callable[[int], Sequence[str]] | None = None) -> tuple[Twin, Twin]:
    """Train a configuration in both ways."""
    small = Small(folder / "guards", config, federation(config.privacy.unit == "person"))
    made = replace(small.plan.experiment(), federation=small.federation)
    return simulated(made, folder / "ledgers", absent), deployed(small, made, absent)


def assert_same(first: Twin, second: Twin, absent: bool = False) -> None:
    """Compare models, participation and charges; of rounds that silos missed, only a simulation is charged."""
    torch.testing.assert_close(second.vectors, first.vectors, atol=1e-5, rtol=1e-5)
    assert second.present == first.present
    for one, other in zip(first.charges, second.charges, strict=True):
        assert other == (one._replace(rounds=other.rounds) if absent else one)


def check_parity(folder: Path, table: dict[str, Any], place: str) -> None:
    """Check that a deployment trains and charges what a simulation does, or refuses it in the same words."""
    config, why = configured(table, PLACES[place]), refusal(table, place)
    if why is None:
        assert_same(*both(config, folder))
        return
    with refused(why):
        Small(folder, config, federation(place == "person"))
