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

DUAL_IS_NOISED = "dual coordinates are noised in the silos, which is no sound release under the unit 'silo'"


@dataclass(frozen=True)
class Unit:
    """What privacy protects: neighbouring data sets differ in one unit.

    With `noise_in_doors`, everything a door returns is noised and may leave the silo. Without it, doors
    return raw values, which stay in the silo or are clipped and noised when they are merged. `unsound` says
    why a door has no sound release, by the door's name.
    """

    name: str
    noise_in_doors: bool
    unsound: Mapping[str, str] = field(hash=False, compare=False)

    def check(self, door: Door) -> None:
        """Raise `Refused(why)` if a door has no sound release under this unit."""
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


def _noised_in_doors(name: str) -> Unit:
    """Return a unit whose doors add noise to sums over what is sampled: examples, or persons."""
    unsound = {
        DESCEND_AT_HOME.name: f"training at home without noise is not sound under the unit '{name}'",
        FISHER.name: f"'fisher' returns raw values, which have no sound release under the unit '{name}'",
    }
    return Unit(name, noise_in_doors=True, unsound=MappingProxyType(unsound))


EXAMPLE, PERSON = _noised_in_doors("example"), _noised_in_doors("person")
SILO = Unit(
    "silo",
    noise_in_doors=False,
    unsound=MappingProxyType(
        {
            "select": "a silo's choice is raw under the unit 'silo' and has no sound release",
            **{door.name: DUAL_IS_NOISED for door in (SOLVE_DUAL, SOLVE_DUAL_WHOLE, SOLVE_DUAL_UNPROVEN)},
        }
    ),
)
UNITS = {unit.name: unit for unit in (EXAMPLE, PERSON, SILO)}
