"""What a plan says about bytes is what crosses the wire."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.deploy.plan_file import plan_of
from coterie.deploy.secure_rounds import first_point, next_point
from coterie.deploy.traffic import traffic
from coterie.network.transport import DirectTransport
from coterie.privacy.keys import draw_key
from coterie.secure_sum import (
    STEPS,
    Member,
    Silo,
    Terms,
    begin,
    confirm,
    mask_upload,
    offer_keys,
    recover_sum,
    reveal_shares,
    share_secrets,
    step_bytes,
)
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
        ({"name": "fedavg"}, {"unit": "silo", "noise_by": "secure"}, {}),
        ({"name": "mr-mtl", "lam": 0.2}, {"unit": "silo", "noise_by": "secure"}, {}),
        ({"name": "fedavg"}, {}, {"participation": 0.67}),
    ],
    ids=str,
)
def test_bytes_agree_with_the_plan_within_a_tenth(tmp_path, method, privacy, train):
    config = config_of(method, privacy, {"rounds": 4, "batch": 4, **train}, model=LARGE)
    small = Small(tmp_path, config, digits(3, 60), seconds=60.0)
    planned = plan_of(small.plan.blank, small.plan)
    assert small.plan.blank.task.layout.size >= 100_000
    guards = small.guards(None)
    transport = Counted({name: guard.answer for name, guard in guards.items()})
    small.coordinator(transport).run()
    for k, name in enumerate(small.federation.names):
        up, down = traffic(planned, k)
        assert planned.silos[0][k].bytes_up == pytest.approx(up, rel=0.1)  # what `coterie plan` shows
        assert transport.up[name] == pytest.approx(up, rel=0.1)
        assert transport.down[name] == pytest.approx(down, rel=0.1)


@pytest.mark.parametrize("members", [3, 5, 20])
def test_the_steps_of_a_sum_have_the_bytes_that_were_planned(members):
    """Whatever the upload: keys, shares, confirmations and headers of a sum over many silos, to a tenth."""
    keys = [draw_key(f"silo-{k}") for k in range(members)]
    names = tuple(Member(f"silo-{k}", key.public.public) for k, key in enumerate(keys))
    terms = Terms("training", 0, names, 1000, 1.0, 0.5, 0, 1)
    silos = {member.name: Silo(terms, member.name, key) for member, key in zip(names, keys, strict=True)}
    states = {name: begin(silo) for name, silo in silos.items()}
    up, down = 0, 0

    def ask(step, messages):
        nonlocal up, down
        work = {"keys": lambda silo, state, _: offer_keys(silo, state), "shares": share_secrets}
        work |= {"upload": lambda *given: mask_upload(*given, np.zeros(terms.size, dtype=np.int64))}
        work |= {"confirmation": confirm, "unmask": reveal_shares}
        answers = {}
        for name, message in messages.items():
            states[name], answers[name] = work[step](silos[name], states[name], message)
        up, down = up + len(answers["silo-1"]), down + len(messages["silo-1"])
        return answers

    point = first_point(terms)
    while point.step != STEPS[-1]:
        point = next_point(point, ask(point.step, point.messages))
    recover_sum(point.server, ask(point.step, point.messages))
    planned_up, planned_down = step_bytes(members)
    assert up - 8 * terms.size == pytest.approx(planned_up, rel=0.1)
    assert down == pytest.approx(planned_down, rel=0.1)
