"""Units: what privacy protects, and which doors are sound under each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..errors import Refused
from .doors import (
    DESCEND_AT_HOME,
    FISHER,
    SOLVE_DUAL,
    SOLVE_DUAL_UNPROVEN,
    SOLVE_DUAL_WHOLE,
    Door,
)

DUAL_IS_NOISED = "dual coordinates are noised in the silos: under the unit 'silo' they have no sound release"


@dataclass(frozen=True)
class Unit:
    """What privacy protects: neighbouring data sets differ in one of these.

    Where `noise_in_doors`, everything that a door returns is noised and may leave the silo. Otherwise doors
    return raw values, which stay at home or are clipped and noised when they are merged.
    """

    name: str
    noise_in_doors: bool
    unsound: Mapping[str, str] = field(hash=False, compare=False)

    def check(self, door: Door) -> None:
        """Raise `Refused(why)` if a door has no sound release in this unit."""
        if door.name in self.unsound:
            raise Refused(self.unsound[door.name])

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], Unit], tuple[str]]:
        """Pickle a unit by its name: there is one object per unit."""
        return unit_named, (self.name,)


def unit_named(name: str) -> Unit:
    """Return the unit of a name."""
    return UNITS[name]


EXAMPLE = Unit(
    "example",
    noise_in_doors=True,
    unsound=MappingProxyType(
        {
            DESCEND_AT_HOME.name: "training without noise at home is not sound under the unit 'example'",
            FISHER.name: "what 'fisher' returns is raw: under the unit 'example' it has no sound release",
        }
    ),
)
SILO = Unit(
    "silo",
    noise_in_doors=False,
    unsound=MappingProxyType(
        {
            "select": "what a silo chooses is raw under the unit 'silo', where it has no sound release",
            **{door.name: DUAL_IS_NOISED for door in (SOLVE_DUAL, SOLVE_DUAL_WHOLE, SOLVE_DUAL_UNPROVEN)},
        }
    ),
)
UNITS = {unit.name: unit for unit in (EXAMPLE, SILO)}
