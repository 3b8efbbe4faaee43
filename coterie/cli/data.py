"""What `coterie data show` does: show silos, or describe columns."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._json import finite
from ..data.sources.cells import listed
from ..privacy.budget import Privacy

if TYPE_CHECKING:
    from ..experiment.config.schema import Config

OWNER_ONLY = (
    "this was read from the file on this machine, and nothing was sent; counts and values are not private, so"
    " do not publish them"
)


def show_silos(source: str, options: Mapping[str, Any], as_json: bool) -> None:
    """Print the silos of a data set, with their sizes and labels."""
    from ..data.federation import load

    federation = load(source, **options)
    if as_json:
        print(json.dumps(federation.facts()))
        return
    from rich.console import Console

    from ..report.data_tables import federation_table

    Console().print(federation_table(federation))


def show_columns(source: str, named: Mapping[str, str | None], as_json: bool) -> None:
    """Print what the columns of a table look like, and a [data] table for a configuration."""
    from ..data.describe import describe
    from ..experiment.starter import data_table_of

    found = describe(source, **named)
    if as_json:
        print(json.dumps({**found.to_json(), "toml": data_table_of(found)}))
    else:
        from rich.console import Console

        from ..report.data_tables import columns_table

        Console().print(columns_table(found))
        print(data_table_of(found), end="")
    for remark in (*found.remarks, OWNER_ONLY):
        print(f"note: {remark}", file=sys.stderr)


def measure_config(
    config: Config, epsilon: float, out: Path | None, data_dir: str | None, as_json: bool
) -> None:
    """Measure the columns of a configuration's data, and print the key by which they are scaled."""
    from ..experiment.from_config import load_federation
    from ..experiment.starter import inline
    from ..report.measured_columns import measure_columns

    privacy = config.privacy
    data = config.data.model_copy(update={"standardize": {}})
    federation = load_federation(config.model_copy(update={"data": data}), data_dir)
    measured = measure_columns(
        federation,
        Privacy(epsilon=epsilon, delta=privacy.delta, unit=privacy.unit),
        ledger=privacy.ledger,
        keys=privacy.keys,
        witness=privacy.witness,
        out=out,
    )
    cost = measured.result.summary[0]["epsilon"]
    if as_json:
        columns = {name: vars(each) for name, each in measured.columns.items()}
        facts = {"columns": columns, "standardize": measured.standardize, "epsilon": cost}
        print(json.dumps(finite({**facts, "kind": measured.result.kind})))
    else:
        print(f"standardize = {inline(measured.standardize)}")
    how = (
        f"with noise, for epsilon at most {cost:.4g}" if math.isfinite(cost) else "without noise: not private"
    )
    notes = [f"measured {how}; add the line to [data] to use it"]
    if measured.lost:
        notes.append(
            f"the deviation of {listed(measured.lost)} is lost in the noise, so the line leaves them out:"
            " give more epsilon or narrower bounds"
        )
    if measured.result.kind == "simulation":
        notes.append("a simulation: no ledger was charged, so no later statement knows of this cost")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
