"""What node and server share: they stay in the foreground, end cleanly on SIGTERM, and are not root."""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import re
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import Problem, Refused
from .kit import check_kit, read_party
from .settings import Party

VERSION = "2.9.0"  # what is closed at a node was found by reading this version
ENDING = 5.0  # seconds that job processes have to end
RUN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def prepare(kit: Path, kind: str, federation: str | None, root: bool) -> Party:
    """Return whose kit it is; raise `Refused` if a process must not be started from it."""
    if found := check_kit(kit, federation, kind):
        raise Refused(f"the kit '{kit}' cannot be used: {'; '.join(found)}")
    if os.geteuid() == 0 and not root:
        raise Refused("NVFlare would run as root: start it as a user who can read nothing but its kit")
    try:
        installed = importlib.metadata.version("nvflare")
    except importlib.metadata.PackageNotFoundError:
        raise Problem("NVFlare is not installed: install coterie[nvflare]") from None
    if installed != VERSION:
        raise Refused(f"NVFlare {installed} is installed, but only {VERSION} was examined")
    for folder in kit.iterdir():
        if folder.is_dir() and RUN.fullmatch(folder.name):  # what an earlier job left behind
            shutil.rmtree(folder)
    for name in [name for name in os.environ if name.startswith("NVFLARE_") or name == "FL_LOG_LEVEL"]:
        del os.environ[name]
    os.umask(0o077)
    return read_party(kit)


def limit_memory(most: int) -> None:
    """Let this process and those it starts have at most so many bytes each."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))


def arguments(kit: Path, party: Party, **options: Any) -> argparse.Namespace:
    """Return what NVFlare's programs expect on their command line."""
    settings: Mapping[str, Any] = {
        "secure_train": "true",
        "config_folder": "config",
        "org": party.organisation,
        **options,
    }
    return argparse.Namespace(
        workspace=str(kit.resolve()),
        fed_client="fed_client.json",
        fed_server="fed_server.json",
        set=[f"{name}={value}" for name, value in settings.items()],
        local_rank=0,
    )


def run_until_stopped(main: Callable[..., Any], args: argparse.Namespace, leave: Callable[[], None]) -> int:
    """Run one of NVFlare's programs and return its exit code; SIGTERM and SIGINT end it with 0."""
    from nvflare.fuel.f3.mpm import MainProcessMonitor

    stop = threading.Event()

    def wait() -> None:
        stop.wait()
        try:
            _within(ENDING, leave)
            _end_children()
        finally:
            logging.shutdown()
            sys.stdout.flush()
            os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    code = MainProcessMonitor.run(main_func=main, run_dir=args.workspace, args=args)
    _end_children()
    return int(code or 0)


def _within(seconds: float, action: Callable[[], None]) -> None:
    """Do something, but do not wait for it longer than so many seconds."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)


def _end_children() -> None:
    """End the job processes that this process has started."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        child.terminate()
    for child in psutil.wait_procs(children, ENDING)[1]:
        child.kill()
