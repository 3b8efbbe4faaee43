"""Users of their own for guards and nodes, if root starts a deployment on one machine.

A guard's user owns its folder, and nobody else reads it. The node's user owns its kit. Both meet in a folder
that the guard's user owns and the node's group may enter, but not write: there the guard's socket is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIRST = 61_000  # the user id of the first guard


@dataclass(frozen=True)
class Accounts:
    """The user ids of a silo's guard and node; their groups have the same numbers."""

    guard: int
    node: int


def accounts_for(
    names: Sequence[str], place: Path, on_note: Callable[[str], None]
) -> dict[str, Accounts] | None:
    """Return accounts for each silo; None unless root asks and other users can work in this place."""
    if os.getuid() != 0:
        return None
    if not _others_can_work(place):
        on_note(
            "guards and nodes run as the same user: another one cannot read this installation of Python,"
            f" or cannot reach '{place}'"
        )
        return None
    return {name: Accounts(FIRST + 2 * k, FIRST + 2 * k + 1) for k, name in enumerate(names)}


def _others_can_work(place: Path) -> bool:
    """Return whether another user can run this Python with this package, and reach a folder."""
    command = [sys.executable, "-c", "import os, sys, coterie; os.stat(sys.argv[1] + '/.')", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, cwd="/", timeout=60, **identity(FIRST))
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def identity(user: int | None) -> dict[str, Any]:
    """Return how `subprocess` starts a process as a user with no other group; None is whoever asks."""
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def hand_over(folder: Path, user: int) -> None:
    """Give a folder and all that is in it to a user."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


def make_meeting_place(folder: Path, accounts: Accounts) -> Path:
    """Return a new folder for a guard's socket, which its node may enter but not write."""
    folder.mkdir(parents=True)
    os.chown(folder, accounts.guard, accounts.node)
    folder.chmod(0o2750)  # a socket made here belongs to the node's group, which may connect
    return folder


def environment(user: int | None, folder: Path) -> dict[str, str]:
    """Return the environment of a process; another user's home is its folder."""
    return {**os.environ} if user is None else {**os.environ, "HOME": str(folder)}
