"""What `coterie data show` does: show silos, or describe columns."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

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
