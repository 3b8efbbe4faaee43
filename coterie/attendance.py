"""Who takes part in which round of one run, who was meant to, and how much each does: public facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

Calls = list[tuple[str, int, int]]


@dataclass(frozen=True, eq=False)
class Attendance:
    """One run's schedule, all `[rounds, silos]`; None: everybody, and all the steps of their work."""

    present: Tensor | None = None
    planned: Tensor | None = None
    steps: Tensor | None = None

    def rounds(self, k: int, total: int) -> int:
        """Count the rounds in which silo k takes part."""
        return total if self.present is None else int(self.present[:, k].sum())

    def released(self, kinds: Mapping[tuple[str, ...], np.ndarray], k: int, steps: int) -> Calls:
        """Give what silo k asks of each door: its name, the calls, and the steps of all of them."""
        present = None if self.present is None else self.present[:, k].numpy()
        each = None if self.steps is None else self.steps[:, k].numpy()
        found = []
        for doors, rounds in kinds.items():
            here = rounds if present is None else rounds[present[rounds]]
            made = steps * len(here) if each is None else int(each[here].sum())
            found += [(door, len(here), made) for door in doors if len(here)]
        return found

    def planned_for(self, kinds: Mapping[tuple[str, ...], np.ndarray], k: int, steps: int) -> Calls:
        """Give the same if nobody drops out and everybody takes all steps."""
        planned = self.present if self.planned is None else self.planned
        return Attendance(planned).released(kinds, k, steps)
