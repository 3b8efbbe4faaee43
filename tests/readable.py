"""An environment of Python that every user of this machine can run, wherever the tests' own one lies."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sysconfig.get_path("purelib")
NOBODY = 65534
PREFIX = "coterie-open-"
SETTLED = 60.0  # seconds after which a folder without a lock is nobody's
SCRIPT = "#!{python}\nimport sys\nfrom coterie.cli.main import main\nsys.exit(main())\n"


@contextmanager
def open_folder(parent: Path = Path("/tmp")) -> Iterator[Path]:
    """A new folder that every user can reach and read. Those of tests that were killed are removed first."""
    for old in parent.glob(f"{PREFIX}*"):
        if time.time() - old.stat().st_mtime > SETTLED and (lock := held(old)) is not None:
            shutil.rmtree(old, ignore_errors=True)
            os.close(lock)
    with tempfile.TemporaryDirectory(dir=parent, prefix=PREFIX) as name:
        lock = held(Path(name))
        assert lock is not None
        try:
            Path(name).chmod(0o755)
            yield Path(name)
        finally:
            os.close(lock)


def held(path: Path) -> int | None:
    """Return a lock on a file or folder; None if another process has it. The kernel frees it when a process dies."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def environment(folder: Path) -> Path | None:
    """Return the `bin` folder of a new environment with `python` and `coterie`; None if others could not run it."""
    for base in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            done = subprocess.run(
                [base, "-m", "venv", "--without-pip", "--clear", str(folder)], capture_output=True
            )
        except OSError:
            continue
        if done.returncode:
            continue
        place = next((folder / "lib").glob("python3.*/site-packages"))
        (place / "coterie.pth").write_text(f"{ROOT}\n{PACKAGES}\n")
        python, script = folder / "bin" / "python", folder / "bin" / "coterie"
        script.write_text(SCRIPT.format(python=python))
        script.chmod(0o755)
        probe = [str(python), "-c", "import coterie, nvflare, torch"]
        try:
            who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            if subprocess.run(probe, capture_output=True, cwd="/", **who).returncode == 0:
                return folder / "bin"
        except OSError:
            continue
    return None
