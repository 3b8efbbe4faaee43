"""Small federations of real guards, for the tests of deployments."""

from __future__ import annotations

from pathlib import Path

import coterie as ct
from coterie.deploy.coordinator import Coordinator
from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import POLICY, GuardFolder, make_guard
from coterie.deploy.make_plan import make_plan
from coterie.deploy.plan_file import PlanFile
from coterie.deploy.policy import members_text, policy_text
from coterie.experiment.config.schema import check
from coterie.network.transport import DirectTransport
from coterie.privacy.keys import Key, draw_key, read_public_key
from coterie.protocol.streams import SeededStreams

BUDGET = (100.0, 0.5)


def digits(silos: int = 3, rows: int = 240, **options) -> ct.Federation:
    return ct.load("digits", silos=silos, partition="dirichlet", alpha=0.5, rows=rows, **options)


def config_of(method: dict | None = None, privacy: dict | None = None, train: dict | None = None, **tables):
    return check(
        {
            "data": {"source": "digits"},
            "method": [method or {"name": "fedavg"}],
            "privacy": {"epsilon": 4.0, "delta": 1e-3, **(privacy or {})},
            "train": {"rounds": 3, "lr": 0.5, "batch": 16, **(train or {})},
            **tables,
        }
    )


def seeded(experiment, silo, row, number):
    """Streams whose noise the test knows."""
    return SeededStreams(experiment.keys)


class Small:
    """A federation in one process: a guard per silo, a coordinator's key, and a plan."""

    def __init__(
        self, folder: Path, config=None, federation=None, *, approve="policy", seconds=5.0, **policy
    ):
        self.folder, self.federation = folder, federation or digits()
        self.key: Key = draw_key("coordinator")
        self.config = config or config_of()
        for silo in self.federation.silos:
            allowed = {"fewest": policy.get("fewest", 2), "scores": policy.get("scores", False)}
            limits = policy_text(20.0, 50.0, approve=approve, **allowed)
            make_guard(
                folder / silo.name,
                silo,
                self.federation.classes,
                "records",
                self.key.public,
                BUDGET,
                limits,
                unit=self.config.privacy.unit,
            )
        self.keys = {
            name: read_public_key(folder / name / "keys" / f"{name}.pub") for name in self.federation.names
        }
        if self.config.privacy.noise_by == "secure":
            known = members_text({name: key.id for name, key in self.keys.items()})
            for name in self.federation.names:
                with (folder / name / POLICY).open("a") as file:
                    file.write(known)
        self.plan: PlanFile = self.new_plan(seconds=seconds)

    def new_plan(self, config=None, **options) -> PlanFile:
        options.setdefault("seconds", 5.0)
        return make_plan(config or self.config, self.federation, self.key.public, self.keys, **options)

    def guards(self, streams=seeded) -> dict[str, Guard]:
        return {name: Guard(GuardFolder(self.folder / name), streams) for name in self.federation.names}

    def coordinator(
        self, transport=None, guards=None, plan=None, name="coordinator", **options
    ) -> Coordinator:
        if transport is None:
            guards = guards or self.guards()
            transport = DirectTransport({name: guard.answer for name, guard in guards.items()})
        return Coordinator(plan or self.plan, self.folder / name, self.key, transport, **options)
