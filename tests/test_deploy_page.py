"""docs/deploy.md is followed literally: real users, networks of their own, and a training at the end."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import psutil
import pytest

from tests.deploy_page import (
    HOME,
    MARK,
    MEETING,
    SILOS,
    Page,
    alone,
    blocks,
    taken,
    wait_for_socket,
    why_not,
)
from tests.readable import PREFIX, ROOT, environment, open_folder


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


@pytest.fixture
def page():
    """The page on machines of its own, which are removed at the end, and at the next start if this is killed."""
    with alone() as reason, open_folder() as folder:
        if reason is not None:
            pytest.skip(reason)
        programs = environment(folder / "environment")
        if programs is None:
            pytest.skip("no Python on this machine can be run by all users")
        made = Page(folder, programs, records)
        try:
            made.make_machines()
            yield made
        finally:
            made.remove()
            print("\n".join(made.said))


@pytest.mark.deploy
def test_the_page_is_followed_to_a_trained_federation(page):
    for block in blocks():
        if "propose" in block.text:
            for silo in SILOS:
                wait_for_socket(MEETING / f"{silo}.sock", 120)
        page.follow(block)
        page.deliver()
    check(page)


KILLED = """
import os, subprocess, sys
from pathlib import Path
from tests.deploy_page import Page, alone, run
with alone() as reason:
    assert reason is None, reason
    page = Page(Path(sys.argv[1]), Path(sys.argv[1]), lambda silo: "")
    page.make_machines()
    run("useradd", "--system", "--create-home", "coterie-node")
    inside = ["ip", "netns", "exec", "coterie-north", "sleep", "1000"]
    print(subprocess.Popen(inside, start_new_session=True, stdout=-3, stderr=-3).pid, flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.deploy
def test_what_a_killed_test_left_behind_is_removed(tmp_path):
    if (reason := why_not() or taken()) is not None:
        pytest.skip(reason)
    words = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert killed.returncode == -9, killed.stderr
    sleeping = int(killed.stdout)
    assert taken() is not None
    assert psutil.pid_exists(sleeping)
    with alone() as reason:
        assert reason is None
        assert taken() is None
        with alone() as other:
            assert other == "this page is followed by another test at the moment"
    assert not psutil.pid_exists(sleeping) or psutil.Process(sleeping).status() == psutil.STATUS_ZOMBIE
    assert not MARK.exists()


def test_folders_of_killed_tests_are_removed(tmp_path):
    left, fresh = tmp_path / f"{PREFIX}left", tmp_path / f"{PREFIX}fresh"
    for folder in (left, fresh):
        folder.mkdir()
    os.utime(left, (0, 0))
    with open_folder(tmp_path) as used:
        assert not left.exists()
        assert fresh.exists()  # another test may be about to lock it
        os.utime(used, (0, 0))
        with open_folder(tmp_path):
            assert used.exists()
    assert not used.exists()


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
