"""How data is named in ledgers: by its name and, if silos were cut from it, by the cut.

A ledger belongs to rows. So the words of a cut hold all that decides which rows are in which silo, and
nothing else: settings that a partition does not use are left out, and so is how silos see their rows (a
rotated image is the same row).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from ..privacy.ledger.names import CUT, tidy
from .partition import BY_LABEL, Partition

DEFAULT_SILOS = 10


@dataclass(frozen=True)
class Cut:
    """The names of data, and what was asked of it.

    `names` are what ledgers call the data: first its own name, then those of older versions. `own_silos` says
    whether it has silos, `total` is its number of rows, and `labels` say how they were labelled. `partition`
    decides only if it was `asked` for, or if the data has no silos. `named` data had its cut in its name even
    if none was asked for, in older versions. `by_person` says that silos were cut between persons.
    """

    names: tuple[str, ...]
    own_silos: bool
    total: int
    partition: Partition
    asked: bool = False
    rows: int | None = None
    silos: int | None = None
    seed: int = 0
    labels: dict[str, Any] = field(default_factory=dict)
    named: bool = False
    by_person: bool = False

    @property
    def source(self) -> str:
        """The name in ledgers, "" for data without a name. Ledgers are found by it, so it must never change.

        >>> Cut(("clinics",), True, 60, Partition("iid"), rows=60, seed=3).source
        'clinics'
        >>> Cut(("clinics",), False, 60, Partition("iid")).source
        'clinics cut by {"of": 60, "partition": "iid", "seed": 0, "silos": 10}'
        """
        cut: dict[str, Any] = {}
        if self.rows is not None and self.rows != self.total:
            cut["rows"] = int(self.rows)
        if self.asked or not self.own_silos:
            setting = BY_LABEL.get(self.partition.name)
            cut |= {"partition": self.partition.name if setting else "iid"}
            cut |= {"silos": int(self.silos or DEFAULT_SILOS)}
            if setting is not None:
                value = getattr(self.partition, setting)
                cut |= {setting: int(value) if setting == "shards" else float(value), **self.labels}
            if self.by_person:
                cut |= {"persons": "together"}
        name = tidy(self.names[0])
        if not name or not cut:
            return name
        return (
            f"{name}{CUT}{json.dumps({**cut, 'of': int(self.total), 'seed': int(self.seed)}, sort_keys=True)}"
        )

    @property
    def former_sources(self) -> tuple[str, ...]:
        """What older versions called the same data, where they called no other data so."""
        if self._forgot_labels or self.by_person:
            return ()
        if not (self.asked or self.rows is not None or self.named):
            # They forgot the seed by which data without silos was cut.
            return self.names if self.own_silos or self.seed == 0 else ()
        how = self.partition
        asked = how.name if self.asked else None
        whole = [None if number is None else int(number) for number in (self.rows, self.silos)]
        settings = [int(how.shards), float(how.alpha), int(how.rotations), float(how.mask), int(self.seed)]
        return tuple(f"{name}{CUT}{json.dumps([asked, *whole, *settings])}" for name in self.names)

    @property
    def _forgot_labels(self) -> bool:
        """Whether older versions gave this cut the same name as that of other rows."""
        return self.asked and self.partition.name in BY_LABEL and "positive" in self.labels

    def today(self, source: str) -> str:
        """Return today's name for data under a name of an older version; other names as they are."""
        if source in self.former_sources:
            return self.source
        name, _, words = source.partition(CUT)
        if name not in self.names or not words.startswith("["):
            return source
        try:
            asked, rows, silos, shards, alpha, rotations, mask, seed = json.loads(words)
            how = Partition(asked or "iid", shards, alpha, rotations, mask)
        except (ValueError, TypeError):
            return source
        then = replace(self, partition=how, asked=asked is not None, rows=rows, silos=silos, seed=seed)
        return source if then._forgot_labels else then.source
