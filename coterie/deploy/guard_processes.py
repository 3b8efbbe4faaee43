"""Guards as processes on one machine, each as its own user if there are accounts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..errors import Problem
from ..network.frames import Broken, connect
from .accounts import Accounts, environment, identity
from .guard_folder import GuardFolder

START = 120.0  # seconds in which a guard must answer


@contextmanager
def running(
    guards: Mapping[str, GuardFolder], accounts: Mapping[str, Accounts] | None = None
) -> Iterator[None]:
    """Run a process per guard, each as its own user if there are accounts; stop them all at the end."""
    processes: list[subprocess.Popen[bytes]] = []
    threads = max(1, (os.cpu_count() or 1) // len(guards))
    try:
        for name, guard in guards.items():
            processes.append(_start(guard, None if accounts is None else accounts[name].guard, threads))
        for guard, process in zip(guards.values(), processes, strict=True):
            _await(guard, process)
        yield
    finally:
        stop_all(processes)


def _start(guard: GuardFolder, user: int | None, threads: int) -> subprocess.Popen[bytes]:
    """Start a guard's process.

    Guards on one machine share its cores: threads that wait for a busy core cost more than they gain.
    """
    share = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    with (guard.path / "process.txt").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "coterie.cli.main", "guard", "run", str(guard.path)],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            cwd=guard.path,
            start_new_session=True,
            env={**environment(user, guard.path), **share},
            **identity(user),
        )


def _await(guard: GuardFolder, process: subprocess.Popen[bytes]) -> None:
    """Wait until a guard answers; raise `Problem` with its last words if it does not."""
    until = time.monotonic() + START
    while time.monotonic() < until:
        if process.poll() is not None:
            words = (guard.path / "process.txt").read_text().strip().splitlines()
            why = words[-1] if words else "no reason given"
            raise Problem(f"the guard of '{guard.silo}' did not start: {why}")
        try:
            connect(guard.socket, 1.0).close()
            return
        except Broken:
            time.sleep(0.05)
    raise Problem(f"the guard of '{guard.silo}' did not answer within {START:g} seconds")


def stop_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes, by force if they take too long."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
