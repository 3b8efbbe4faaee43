"""The [data] table that loads a federation, which nobody can change afterwards."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any


class Recipe(Mapping[str, Any]):
    """A table that can be read, copied and pickled, but not changed."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = copy.deepcopy(dict(table))

    def __getitem__(self, key: str) -> Any:
        return copy.deepcopy(self._table[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return repr(self._table)
