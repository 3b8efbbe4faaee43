"""What a plan says about bytes is what crosses the wire."""

from __future__ import annotations

import pytest

from coterie.deploy.plan_file import plan_of
from coterie.deploy.traffic import traffic
from coterie.network.transport import DirectTransport
from tests.federations import Small, config_of, digits

LARGE = {"name": "mlp", "hidden": 1400}  # 105,010 numbers


class Counted(DirectTransport):
    """A transport that counts what it carries."""

    def __init__(self, silos):
        super().__init__(silos)
        self.down, self.up = dict.fromkeys(silos, 0), dict.fromkeys(silos, 0)

    def exchange(self, messages, seconds):
        answers = super().exchange(messages, seconds)
        for name, message in messages.items():
            self.down[name] += len(message)
            self.up[name] += len(answers[name])
        return answers


@pytest.mark.parametrize(
    ("method", "privacy", "train"),
    [
        ({"name": "fedavg"}, {}, {}),
        ({"name": "mr-mtl", "lam": 0.2}, {}, {}),
        ({"name": "ifca", "clusters": 2}, {}, {}),
        ({"name": "fedavg"}, {"unit": "silo", "noise_by": "server"}, {}),
        ({"name": "fedavg"}, {"unit": "silo", "noise_by": "silos"}, {}),
        ({"name": "fedavg"}, {}, {"participation": 0.67}),
    ],
    ids=str,
)
def test_bytes_agree_with_the_plan_within_a_tenth(tmp_path, method, privacy, train):
    config = config_of(method, privacy, {"rounds": 4, "batch": 4, **train}, model=LARGE)
    small = Small(tmp_path, config, digits(3, 60), seconds=60.0)
    planned = plan_of(small.plan.blank, small.plan)
    assert small.plan.blank.task.layout.size >= 100_000
    guards = small.guards()
    transport = Counted({name: guard.answer for name, guard in guards.items()})
    small.coordinator(transport).run()
    for k, name in enumerate(small.federation.names):
        up, down = traffic(planned, k)
        assert transport.up[name] == pytest.approx(up, rel=0.1)
        assert transport.down[name] == pytest.approx(down, rel=0.1)
