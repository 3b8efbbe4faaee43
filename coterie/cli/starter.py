"""What `coterie init` does: write a configuration to begin with."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..experiment.starter import list_examples, new_config


def list_all_examples(as_json: bool) -> None:
    """Print the names of the examples that come with Coterie."""
    names = list_examples()
    print(json.dumps(names) if as_json else "\n".join(names))


def write_new(
    out: Path,
    data: Path | None,
    example: str | None,
    changes: Sequence[str],
    columns: Mapping[str, str | None],
    as_json: bool,
) -> None:
    """Write a configuration, and say what to check in it."""
    made = new_config(out, data, example=example, changes=changes, **columns)
    for remark in made.remarks:
        print(f"note: {remark}", file=sys.stderr)
    if as_json:
        print(json.dumps({"files": [str(path) for path in made.files], "remarks": list(made.remarks)}))
        return
    first, *others = made.files
    print(f"Wrote {first}" + "".join(f" and {path}" for path in others) + ".")
    if first.suffix == ".toml":
        print(f"Read it, then see what it costs: coterie plan {first}")
