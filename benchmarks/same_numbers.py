"""Do two checkouts compute the same numbers? Scores, spending and models of four examples, compared to the bit.

    python -m benchmarks.same_numbers OLD NEW [--data-dir FOLDER] [--keep FOLDER]

Runs `coterie run` on the examples in both checkouts with this interpreter, and compares every run of
`result.json` and every saved parameter. Exits with 1 if anything differs. Examples whose data is not in
FOLDER are skipped, and the output says so. Both sides use one thread: torch adds up in another order with two.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

EXAMPLES: dict[str, list[str]] = {
    "digits": [],
    "school": [],
    "whole_silos": [],
    "har_dual": ["--set", "train.rounds=10", "--set", "train.seeds=2"],
}
NEEDS = {"school": "school.npz", "har_dual": "har.npz"}
# Entry points of the command line, newest first.
COMMAND = """
import sys
try:
    from coterie.cli.main import main
except ImportError:
    from coterie.cli import main
sys.exit(main())
"""
COMPARED = (
    "method",
    "settings",
    "seed",
    "metric",
    "score",
    "silos",
    "bytes_up",
    "bytes_down",
    "history",
    "gaps",
)


def run_example(checkout: Path, example: str, out: Path, data_dir: str | None) -> None:
    """Train one example with the code of a checkout."""
    arguments = ["run", str(checkout / "examples" / f"{example}.toml"), "--out", str(out), "--json"]
    arguments += [*(["--data-dir", data_dir] if data_dir else []), *EXAMPLES[example]]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COMMAND, *arguments]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{checkout}: coterie {' '.join(arguments)} failed:\n{done.stderr}")


def differences(old: Path, new: Path) -> list[str]:
    """List what differs between the folders of two runs."""
    before, after = (json.loads((folder / "result.json").read_text())["runs"] for folder in (old, new))
    if len(before) != len(after):
        return [f"{len(before)} runs before, {len(after)} after"]
    lines = []
    for one, other in zip(before, after, strict=True):
        name = f"{one['method']} {one['settings']} seed {one['seed']}"
        lines += [f"{name}: {key} differs" for key in COMPARED if one[key] != picked(other[key], one[key])]
    for path in sorted((old / "models").rglob("*.safetensors")):
        place = path.relative_to(old)
        lines += [f"{place}: {what}" for what in model_differences(path, new / place)]
    return lines


def picked(value: Any, like: Any) -> Any:
    """Return only those keys of a record that the older one has: new facts may be added."""
    if isinstance(value, dict) and isinstance(like, dict):
        return {key: picked(value[key], like[key]) for key in like if key in value}
    return value


def model_differences(old: Path, new: Path) -> list[str]:
    """List the parameters of the older file that the newer one lacks or has with other bits."""
    if not new.is_file():
        return ["missing"]
    before, after = load_file(str(old)), load_file(str(new))
    return [
        f"parameter '{name}' differs"
        for name, value in before.items()
        if name not in after or value.tobytes() != after[name].tobytes()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--data-dir")
    parser.add_argument("--keep", type=Path, help="folder for the results (reused if it has the old ones)")
    given = parser.parse_args()
    data_dir = str(Path(given.data_dir).resolve()) if given.data_dir else None
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        keep = (given.keep or Path(scratch)).resolve()
        for example in EXAMPLES:
            if example in NEEDS and not (data_dir and (Path(data_dir) / NEEDS[example]).is_file()):
                print(f"{example}: skipped, {NEEDS[example]} is not in --data-dir")
                continue
            folders = []
            for side, checkout in (("old", given.old), ("new", given.new)):
                out = keep / side / example
                if side == "new" or not (out / "result.json").is_file():
                    shutil.rmtree(out, ignore_errors=True)
                    run_example(checkout.resolve(), example, out, data_dir)
                folders.append(out)
            lines = differences(*folders)
            runs = len(json.loads((folders[1] / "result.json").read_text())["runs"])
            models = len(list((folders[0] / "models").rglob("*.safetensors")))
            verdict = "\n  ".join(["DIFFERS", *lines[:20]]) if lines else "the same to the bit"
            print(f"{example}: {runs} runs, {models} models: {verdict}", flush=True)
            failed |= bool(lines)
    sys.exit(failed)


if __name__ == "__main__":
    main()
