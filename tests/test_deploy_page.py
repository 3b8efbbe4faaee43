"""docs/deploy.md is followed literally: real users, networks of their own, and a training at the end."""

from __future__ import annotations

import json
import random
import subprocess

import pytest

from tests.deploy_page import HOME, MEETING, SILOS, Page, blocks, wait_for_socket, why_not
from tests.readable import environment, open_folder


def test_the_page_has_commands_for_every_step():
    found = blocks()
    text = "".join(block.text for block in found)
    for words in ("keys new", "kit make", "kit check", "guard init", "guard facts", "guard run", "server", "node",
                  "propose", "guard approve", "coordinate", "statement verify", "guard status"):  # fmt: skip
        assert f"coterie {words} " in text, words
    assert sum(block.lasting for block in found) == 3


def records(silo: str) -> str:
    """A table of invented patients."""
    dice = random.Random(silo)
    rows = [(dice.random(), dice.random(), dice.random()) for _ in range(120)]
    lines = [f"{a:.3f},{b:.3f},{c:.3f},{'ill' if a + b * c > 0.9 else 'well'}" for a, b, c in rows]
    return "\n".join(["age,dose,score,outcome", *lines]) + "\n"


@pytest.mark.deploy
def test_the_page_is_followed_to_a_trained_federation():
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with open_folder() as folder:
        programs = environment(folder / "environment")
        if programs is None:
            pytest.skip("no Python on this machine can be run by all users")
        page = Page(folder, programs, records)
        try:
            page.make_machines()
            for block in blocks():
                if "propose" in block.text:
                    for silo in SILOS:
                        wait_for_socket(MEETING / f"{silo}.sock", 120)
                page.follow(block)
                page.deliver()
            check(page)
        finally:
            page.remove()
            print("\n".join(page.said))


def check(page: Page) -> None:
    """What the page promises at its end."""
    assert "3 silos finished 10 rounds" in "".join(page.said)
    for silo in SILOS:
        (results,) = (HOME / "coterie-guard" / silo / "results").iterdir()
        report = json.loads((results / "report.json").read_text())
        assert report["silo"] == silo
        assert page.open_ports(silo) == set()
        assert page.received(silo) > 10_000  # it all came over the network
    for secret in (
        "coterie-guard/records.csv",
        "coterie-guard/north/data.npz",
        "coterie/keys/coordinator.key",
    ):
        words = page.at("north", "coterie-node", f"cat {HOME / secret}\n")
        said = subprocess.run(words, capture_output=True, text=True)
        assert "Permission denied" in said.stderr
    assert page.open_ports("coordinator") == {"8002"}
