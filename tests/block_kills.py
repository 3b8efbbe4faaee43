"""Kill writers of ledgers: `python -m tests.block_kills FOLDER`. Prints JSON.

A training is killed at each draw of noise, and so within its blocks of rounds, and then resumed. Two writers
share a ledger, and one of them is killed. Children are forked, so that a kill costs no new start.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from coterie.guard.secret_streams import EntropyStreams
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.grants import grant
from coterie.privacy.ledger.ledger import open_ledger
from coterie.privacy.ledger.verify import check_ledger
from tests.books import WHO
from tests.faulty_books import claim
from tests.releases import DICE, assert_charged, custody_of, meter_at, prepare, train

ROUNDS_IN_BUDGET, DIES_AFTER = 40, 5


def size_of(log: Path) -> int:
    """How many rounds a writer has logged."""
    return log.stat().st_size if log.exists() else 0


def forked(action: Callable[[], None]) -> int:
    """Do something in a child; give its process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """Wait for a child, and give the signal that killed it; 0 if it ended by itself."""
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("a child failed")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def train_until(place: Path, draws: int) -> None:
    """Train, log every round of a silo when its noise is drawn, and be killed after some draws."""
    log = os.open(place / "released", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    drawn = set()

    def dice(self, run, silo, round_, call):
        found = DICE(self, run, silo, round_, call)
        if (silo, round_) not in drawn:
            os.write(log, f"{silo} {round_}\n".encode())
        drawn.add((silo, round_))
        if len(drawn) == draws:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    with mock.patch.object(EntropyStreams, "dice", dice):
        train(place)


def uncommitted(place: Path) -> int:
    """Check that the ledgers show all that was released; give how many reservations are not committed."""
    released = [line.split() for line in (place / "released").read_text().splitlines()]
    meter, found = meter_at(place), 0
    for name, ledger in zip(meter.names, meter.ledgers, strict=True):
        state = ledger.state()
        assert_charged(state, Counter(int(number) for silo, number in released if silo == name))
        found += len(state.reservations) - len(state.committed)
    meter.close()
    return found


def kill_in_blocks(place: Path) -> dict[str, list[int]]:
    """Kill a training at its first draw, another at its second, and so on; then resume it.

    Give the reservations that each kill left open, and those that are open in the end.
    """
    left, end = [], []
    for draws in (1, 2, 3, 5, 8):  # a block has four
        own = place / str(draws)
        shutil.copytree(place / "0", own)
        if ended(forked(lambda own=own, draws=draws: train_until(own, draws))) != signal.SIGKILL:
            raise RuntimeError("a training was not killed")
        left.append(uncommitted(own))
        if ended(forked(lambda own=own: train_until(own, 99))):
            raise RuntimeError("a training was killed")
        end.append(uncommitted(own))
    return {"left": left, "end": end}


def write(place: Path, log: Path, dies_after: int, other: Path | None = None) -> None:
    """Claim and reserve one round after the other until the budget is spent, and log each.

    After some of them, be killed within a change, when other writers wait for it. At half the budget, wait
    until the `other` writer has logged the rounds after which it dies, or it might find nothing left.
    """
    book, handle = open_ledger(place, WHO, custody=custody_of(place)), os.open(log, os.O_WRONLY | os.O_CREAT)
    for number in itertools.count():
        if number == dies_after:
            with book.change() as rows:
                grant(rows, claim(rounds=1), partial=False)
                book._write(rows, book._sign(rows))
                os.kill(os.getpid(), signal.SIGKILL)
        while number == ROUNDS_IN_BUDGET // 2 and other is not None and size_of(other) < DIES_AFTER:
            time.sleep(0.01)
        try:
            run = book.claim(claim(rounds=1)).run
        except Spent:
            return
        book.reserve(run, 0, 1)
        os.write(handle, b"x")


def kill_one_of_two(place: Path) -> dict[str, int]:
    """Have two writers spend a budget, of whom one is killed. Together they took no more than there was."""
    budget = ((ROUNDS_IN_BUDGET + 0.5) * claim(rounds=1).epsilon, 0.1)
    open_ledger(place, WHO, budget, custody=custody_of(place)).close()
    logs = place / "first", place / "second"
    first, second = (
        forked(lambda log=log, after=after, other=other: write(place, log, after, other))
        for log, after, other in zip(logs, (DIES_AFTER, 10**9), (None, logs[0]), strict=True)
    )
    killed = ended(first) == signal.SIGKILL
    ended(second)
    book = open_ledger(place, WHO, custody=custody_of(place))
    state = book.state()
    assert state.total("example", "server")[0] <= budget[0]
    check_ledger(book.path, custody_of(place).witness)
    book.close()
    counts = {log.name: log.stat().st_size for log in logs}
    return {"killed": int(killed), **counts, "runs": len(state.runs), "reserved": len(state.reservations)}


def main() -> None:
    """Do both, and print what happened."""
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    prepare(place / "blocks" / "0")
    shutil.copytree(place / "blocks" / "0", place / "blocks" / "warm")
    train(place / "blocks" / "warm")  # imports and compiles what each child would again
    print(
        json.dumps(
            {"blocks": kill_in_blocks(place / "blocks"), "writers": kill_one_of_two(place / "writers")}
        )
    )


if __name__ == "__main__":
    main()
