"""Federations whose guards mask their uploads, for the tests of deployed secure sums."""

from __future__ import annotations

import copy
import shutil
from dataclasses import dataclass, replace

import numpy as np
import torch

from coterie.deploy.calls import CALLS
from coterie.deploy.guard import Guard
from coterie.engines.simulation import personal_vectors, simulate
from coterie.experiment.saved_models import load_model
from coterie.guard.secret_streams import COINS
from coterie.network.transport import DirectTransport
from coterie.protocol.envelope import Envelope, seal, unseal
from coterie.protocol.messages import addressed, pack
from coterie.protocol.streams import SeededStreams
from tests.federations import Small, config_of, digits

MOST = 2**24
SECURE = {"unit": "silo", "noise_by": "secure", "dropouts": 1, "colluding": 1, "epsilon": 8.0, "delta": 1e-2}


def secure_config(method=None, privacy=None, **train):
    return config_of(method, {**SECURE, **(privacy or {})}, train)


def five(folder, method=None, privacy=None, seconds=0.5, **train) -> Small:
    """Five silos, of which one may drop out and one may collude."""
    small = Small(folder, secure_config(method, privacy, **train), digits(5, 200), seconds=seconds)
    small.cache = {}
    return small


@dataclass(frozen=True)
class GridDice:
    """A simulation's noise, moved to the nearest point of the public grid."""

    seeded: object

    def noisy(self, sums, deviation, exponent=None):
        noisy = self.seeded.noisy(sums, deviation)
        return np.ldexp(np.rint(np.ldexp(noisy, -exponent)), exponent)


@dataclass(frozen=True)
class Coin:
    """A coin that shows what a plan's public schedule says."""

    drawn: bool

    def random(self, count):
        return np.full(count, 0.0 if self.drawn else 1.0)


@dataclass(frozen=True)
class KnownStreams:
    """The streams of a simulation, as guards need them: noise on the grid, and coins of the schedule."""

    seeded: SeededStreams
    present: object
    place: int
    masked: bool

    def dice(self, *which):
        return self.seeded.dice(*which)

    def merging(self, run, silo, number):
        if silo == COINS:
            return Coin(self.present is None or bool(self.present[number, 0, self.place]))
        dice = self.seeded.merging(run, silo, number)
        return GridDice(dice) if self.masked else dice


def known(experiment, silo, row, number):
    """Streams of a guard that draw what a simulation draws."""
    place, masked = experiment.roster.names.index(silo), experiment.privacy.noise_by == "secure"
    return KnownStreams(SeededStreams(experiment.keys), experiment.schedule.present, place, masked)


def simulated(small: Small, present=None) -> torch.Tensor:
    """What a simulation of the plan trains, `[silos, P]`; `present` `[rounds, 1, silos]` says who takes part."""
    made = replace(small.plan.experiment(), federation=small.federation)
    plan = made.plan()
    plan = plan if present is None else replace(plan, present=present)
    seeds = [seed for seed, _ in made.keys]
    *_, last = simulate(made.running, made.cohort(plan), plan, made.roster, seeds, SeededStreams(made.keys))
    return personal_vectors(made.running, last, len(made.federation))[0]


def own_model(guard: Guard, small: Small) -> torch.Tensor:
    """The model that a silo kept at home."""
    saved = load_model(guard.folder.path / "results" / small.plan.training / "model.safetensors")
    return torch.cat([value.reshape(-1) for value in saved.module.state_dict().values()])


def copied(small: Small, folder) -> Small:
    """A federation of its own with the plan, keys and examples of another, which it need not prepare again."""
    made = copy.copy(small)
    made.folder = folder
    for name in small.federation.names:
        shutil.copytree(small.folder / name, folder / name)
    return made


def guards_of(small: Small, streams=known) -> dict[str, Guard]:
    """The guards of a federation; trainings that its copies prepared are prepared here too."""
    guards = small.guards(streams)
    for name, guard in guards.items():
        guard._prepared = small.cache.setdefault(name, {})
    return guards


class Wire(DirectTransport):
    """Guards in this process; `lost(silo, kind, round)` says which messages are lost. What left is kept."""

    def __init__(self, guards, lost=lambda *which: False, key=None):
        super().__init__({name: guard.answer for name, guard in guards.items()})
        self.guards, self.lost, self.left = guards, lost, []

    def exchange(self, messages, seconds):
        answers = {}
        for name, message in messages.items():
            asked = unseal(message, self.guards[name].coordinator, MOST)
            if not self.lost(name, asked.kind, asked.round):
                answers[name] = self.silos[name](message)
                self.left.append(unseal(answers[name], self.guards[name].key.public, MOST))
        return answers


def first_tree(small: Small, k: int = 0) -> bytes:
    """What the coordinator broadcasts first."""
    side = small.coordinator(DirectTransport({}))._side()
    return pack(addressed(side.method.broadcast(side.begin().shared), k, len(small.federation)))


def ask(small: Small, guard: Guard, kind: str, number: int = 0, body: bytes = b"", **facts):
    """Send a guard a request of the coordinator; return the opened answer."""
    request = Envelope(small.plan.training, number, CALLS[kind], kind, "coordinator", guard.silo, facts, body)
    return unseal(guard.answer(seal(request, small.key)), guard.key.public, MOST, "coordinator")


def reserved(guard: Guard) -> int:
    state = guard.ledger.state()
    return sum(last - first for run in state.runs for first, last in state.reserved(run))
