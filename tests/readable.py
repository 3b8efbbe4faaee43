"""An environment of Python that every user of this machine can run, wherever the tests' own one lies."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sysconfig.get_path("purelib")
NOBODY = 65534
SCRIPT = "#!{python}\nimport sys\nfrom coterie.cli.main import main\nsys.exit(main())\n"


@contextmanager
def open_folder() -> Iterator[Path]:
    """A new folder that every user can reach and read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


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
