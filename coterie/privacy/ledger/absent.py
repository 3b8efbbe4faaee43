"""What the rows of ledgers cannot show: that no witness knows them, or that a ledger is gone from its folder.

A witness knows data sets, not folders. So a ledger is known to be gone only where something of it is left;
where nothing is, a reader is told which ledgers of the same data the witness knows and the folder lacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from ...errors import Problem
from .heads import SignedHead
from .verify import Report
from .witness import FolderWitness, Witness

SHOWN = 3  # silos that a sentence names


def no_witness(reports: Sequence[Report]) -> str | None:
    """Return the sentence that names the ledgers that no witness knows; None if there are none."""
    silos = [report.identity.silo for report in reports if report.witnessed is None]
    if not silos:
        return None
    whose = f"the ledger{'s' if len(silos) > 1 else ''} of {_names(silos)}"
    return f"no witness knows {whose}, so an old copy would not be noticed: give --witness FOLDER"


def gone_ledgers(folder: Path, witness: Witness) -> list[str]:
    """Return a sentence for each ledger that is gone from a folder, although something of it is left there.

    That is its silo's secret, or its key if the witness has seen the ledger.
    """
    left = {file.stem for ending in ("secret", "key", "pub") for file in folder.glob(f"*.{ending}")}
    paths = [folder / f"{stem}.sqlite" for stem in sorted(left)]
    found = [(path, _why_gone(path, witness)) for path in paths if not path.exists()]
    return [
        f"ledger '{path}' is missing, although {why}: restore it, or begin with what its witness knows by"
        f" `coterie ledger recover {path} --reason WHY`"
        for path, why in found
        if why is not None
    ]


def _why_gone(path: Path, witness: Witness) -> str | None:
    """Return why a ledger must have been here; None if it need not."""
    if path.with_suffix(".secret").exists():
        return "its silo was metered"
    try:
        seen = witness.latest(path.stem)
    except Problem:
        return None  # whoever asks the witness for a ledger that is there is told
    if seen is None:
        return None
    return f"its key is there and the witness '{witness}' has seen {seen.number} changes until {seen.time}"


def known_elsewhere(folder: Path, reports: Sequence[Report], witness: FolderWitness) -> list[str]:
    """Return a warning if the witness knows ledgers of the same data, and nothing of them is in a folder."""
    sources = {report.identity.source for report in reports}
    here = {file.stem for file in folder.iterdir()}
    heads = [head for name in witness.names() if name not in here and (head := _head(witness, name))]
    absent = [head.identity for head in heads if head.identity.source in sources]
    if not absent:
        return []
    first = folder / f"{absent[0].fingerprint}.sqlite"
    return [
        f"the witness '{witness}' also knows ledgers of this data that '{folder}' does not have, of"
        f" {_names([who.silo for who in absent])}: if they are in no other folder, restore them, or begin"
        f" with what the witness knows, such as by `coterie ledger recover {first} --reason WHY`"
    ]


def _head(witness: Witness, name: str) -> SignedHead | None:
    """Return the last head of a data set; None if its record is damaged."""
    with contextlib.suppress(Problem):
        return witness.latest(name)
    return None


def _names(silos: Sequence[str]) -> str:
    """Return the first names of silos, and how many there are besides.

    >>> _names(["a", "b", "c", "d"])
    "'a', 'b', 'c' and 1 more"
    """
    more = f" and {len(silos) - SHOWN} more" if len(silos) > SHOWN else ""
    return ", ".join(f"'{silo}'" for silo in silos[:SHOWN]) + more
