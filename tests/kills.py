"""Kill trainings at random instants, go on, and compare: `python -m tests.kills simulated|metered KILLS SEED FOLDER`.

Children are forked, so that a kill costs no new start. Prints JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from coterie.data.federation import from_table
from coterie.data.sources.table import Table
from coterie.guard.checkpoint import load
from coterie.guard.meter import make_meter
from coterie.guard.session import Session
from coterie.methods import MRMTL
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.ledger.ledger import read_ledger
from coterie.protocol.messages import pack
from tests.books import custody
from tests.helpers import experiment
from tests.releases import assert_charged

ROUNDS = 12


def made_up():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 4)).astype(np.float32)
    return from_table(Table("made up", x, x.sum(1), np.repeat(["a", "b", "c"], 20)))


def made_up_events():
    return (Event("gaussian", 3.0, 0.3, 7),)


def train(made, plan, folder: Path, metered: bool) -> None:
    """Train in a child: every round is logged after it was done, before the next begins."""
    meter = None
    if metered:
        meter = make_meter(folder / "ledgers", made.federation, [(1e6, 0.5)] * 3, custody=custody(folder))
    log = os.open(folder / "released", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    began = []

    def hear(number, _score):
        if began:  # the first state is where it starts
            os.write(log, b"%d\n" % number)
        began.append(number)

    result = made.train(plan, hear, Session(folder / "checkpoint", "key", meter, every=3))
    (folder / "nearly").write_bytes(pack(result.vectors))
    (folder / "nearly").rename(folder / "done")


def attempt(made, plan, folder: Path, metered: bool, seconds: float) -> bool:
    """Fork a training and kill it after some time; give whether it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(made, plan, folder, metered)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                raise RuntimeError(f"a child failed with {status}")
            return False
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def check_ledgers(made, plan, folder: Path) -> None:
    """After a kill: every round that was released, as often as it was, is charged in every ledger."""
    released = Counter(int(line) - 1 for line in (folder / "released").read_text().split() if int(line))
    if not released:
        return
    for path in (folder / "ledgers").glob("*.sqlite"):
        ledger = read_ledger(path)
        assert_charged(ledger.state(), released)
        ledger.close()


def main() -> None:
    """Kill until enough were killed; every training must end with the vectors of one never killed."""
    mode, kills, seed, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    metered = mode == "metered"
    torch.set_num_threads(1)
    made = experiment(made_up(), MRMTL(lam=0.5), rounds=ROUNDS, batch=5)
    plan = made.plan()
    whole = pack(made.train(plan).vectors)
    epsilon_of(made_up_events(), 1e-5)  # imports what a child would import again and again
    chance = random.Random(seed)
    killed = trainings = points = 0
    longest = 0.1
    while killed < kills:
        folder = place / str(trainings)
        folder.mkdir(parents=True)
        trainings += 1
        if trainings == 1:  # learn how long a training takes
            began = time.monotonic()
            attempt(made, plan, folder, metered, 60)
            longest = time.monotonic() - began
        tries = 0
        while not (folder / "done").exists():
            tries += 1  # rounds that must be repeated are certified anew, which takes longer
            if attempt(made, plan, folder, metered, chance.uniform(0, longest * (1.2 + tries / 4))):
                killed += 1
                points += load(folder / "checkpoint", "key") is not None
                if metered and (folder / "ledgers").exists() and (folder / "released").exists():
                    check_ledgers(made, plan, folder)
        if not metered:
            assert (folder / "done").read_bytes() == whole, "the vectors differ"
    facts = {
        "killed": killed,
        "trainings": trainings,
        "with a checkpoint": points,
        "seconds a training": longest,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
