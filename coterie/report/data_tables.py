"""Terminal tables of loadable data sets and of a federation; quick to import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from .terminal import MOST_SILOS, compact

if TYPE_CHECKING:
    from ..data.describe import Description
    from ..data.federation import Federation
    from ..data.sources.catalogue import Entry

SHADES = " ░▒▓█"


def data_table(entries: Sequence[Entry], folder: Path | None) -> Table:
    """Return a table of what can be loaded, with paths relative to the data folder, if there is one."""
    table = compact("Data" if folder is None else f"Data in {folder}")
    for name in ("name", "format", "rows", "silos", "where"):
        table.add_column(name, justify="right" if name in ("rows", "silos") else "left", overflow="fold")
    for entry in entries:
        rows = "" if entry.rows is None else f"{entry.rows:,}"
        silos = "" if entry.silos is None else (str(entry.silos) if entry.silos else "by partition")
        place = entry.place if folder is None else entry.place.removeprefix(f"{folder}/")
        table.add_row(*map(escape, (entry.name, entry.form, rows, silos, place)))
    return table


def columns_table(found: Description) -> Table:
    """Return a table of the columns of a file, and what each may be used as."""
    table = compact(f"{found.source}: {found.rows:,} rows")
    for name in ("column", "holds", "values", "missing", "use"):
        table.add_column(name, justify="right" if name in ("values", "missing") else "left", overflow="fold")
    for column in found.columns:
        missing = f"{column.missing:,}" if column.missing else ""
        table.add_row(escape(column.name), column.kind, f"{column.values:,}", missing, escape(column.use))
    return table


HEADS = {False: "target: mean (deviation)", True: "targets: means"}


def federation_table(federation: Federation) -> Table:
    """Return a table of silos with their sizes and their labels, drawn as shades."""
    shape = " x ".join(map(str, federation.shape))
    kind = f"{len(federation.classes)} classes" if federation.classes else "numeric target"
    several = bool(federation.targets)
    if several:
        kind = f"{len(federation.targets)} {'labels' if federation.classes else 'numeric targets'}"
    table = compact(f"{federation.name}: {len(federation)} silos, examples of {shape}, {kind}")
    table.add_column("silo", no_wrap=True)
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    table.add_column("size")
    table.add_column("labels " + ("".join(_short(c) for c in federation.classes) if _fits(federation) else "")
                     if federation.classes and not several else HEADS[several])  # fmt: skip
    largest = max(federation.sizes)
    for silo in federation.silos[: 2 * MOST_SILOS]:
        bar = "█" * max(1, round(20 * len(silo.y) / largest))
        if several:
            label = ", ".join(f"{float(mean):.3f}" for mean in silo.y.double().mean(0))
        elif federation.classes:
            counts = [int((silo.y == c).sum()) for c in range(len(federation.classes))]
            top = max(counts)
            picture = "".join(SHADES[min(4, math.ceil(4 * c / top))] for c in counts)
            label = " " * len("labels ") + picture if _fits(federation) else picture
        else:
            label = f"{float(silo.y.mean()):.3f} ({float(silo.y.std()) if len(silo.y) > 1 else 0:.3f})"
        table.add_row(escape(silo.name), str(len(silo.y)), str(len(silo.test_y)), bar, label)
    if len(federation) > 2 * MOST_SILOS:
        table.caption = f"{len(federation) - 2 * MOST_SILOS} more silos"
    return table


def _fits(federation: Federation) -> bool:
    return all(len(c) == 1 for c in federation.classes)


def _short(label: str) -> str:
    return label[:1]
