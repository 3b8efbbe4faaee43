"""Advice before anything is trained: which silos would gain by joining, by the theory of mean estimation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..data.federation import Federation
from ..errors import Problem, plainly, shown
from ..privacy.budget import Privacy, check_budgets, per_silo, values_of
from ..privacy.calibration import Target, calibrate
from ..theory.advice import Circle, Forecast, check_spread, forecast, joining_ranges

if TYPE_CHECKING:
    import pandas as pd

DEVIATION = 0.5  # of the smallest clip: most examples lie within two deviations, so few are clipped
SPREADS = (0.1, 1.0)  # of the deviation: from silos that hardly differ to silos that differ as examples do
Range = tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class Advice:
    """A forecast for the silos of a federation, with one budget each, at the low and the high tau.

    What it calls examples are persons if the `unit` is "person".
    """

    names: Sequence[str]
    epsilon: Sequence[float]
    delta: Sequence[float]
    clip: Sequence[float]
    multipliers: Sequence[float]
    circle: Circle
    low: Forecast
    high: Forecast
    settings: dict[str, Any]
    unit: str = "example"

    @cached_property
    def ranges(self) -> list[Range]:
        """The range of tau in which each silo gains by joining."""
        return joining_ranges(self.circle)

    @cached_property
    def throughout(self) -> int:
        """How many silos gain at both the low and the high tau, and therefore at every tau in between."""
        return int((self.low.gains & self.high.gains).sum())

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each silo: expected squared errors at both ends of tau, and where joining pays."""
        import pandas as pd

        columns: dict[str, Any] = {"silo": self.names, "epsilon": self.epsilon, "noise": self.multipliers}
        columns |= {"local": self.low.local}
        for name, end in (("low", self.low), ("high", self.high)):
            columns |= {f"mr-mtl, {name} tau": end.mr_mtl, f"fedavg, {name} tau": end.fedavg}
        columns |= {
            "pays above tau": [math.nan if pays is None else pays[0] for pays in self.ranges],
            "pays below tau": [math.nan if pays is None else pays[1] for pays in self.ranges],
        }
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        ends = f"{self.low.silo_spread:.4g} to {self.high.silo_spread:.4g}"
        return f"Advice: {self.throughout} of {len(self.names)} silos gain by joining, for tau from {ends}"


def check_advice(privacy: Privacy, spread: tuple[float, float] | None = None) -> None:
    """Raise `Problem` if no forecast can be made; no data is needed to see that."""
    if privacy.unit == "silo":
        raise Problem("privacy.unit: advice is for the units 'example' and 'person', not for 'silo'")
    for value in spread or ():
        check_spread(value)
    if spread is not None and spread[0] > spread[1]:
        raise Problem(f"spread: the low end {spread[0]:g} is above the high end {spread[1]:g}")


@plainly
def advise(
    federation: Federation,
    privacy: Privacy,
    *,
    spread: tuple[float, float] | None = None,
    deviation: float | None = None,
) -> list[Advice]:
    """Forecast which silos gain by joining, from sizes and budgets alone: one forecast per epsilon and clip.

    `deviation` is how much the examples of one silo differ, by default half the smallest clip of a private
    silo. `spread` is the smallest and the largest tau, how much silos differ; by default a tenth of the
    deviation and all of it. Both refer to one number, on the scale of the clip. With the unit "person",
    sizes count persons, and the deviation is that of persons.
    """
    if not isinstance(federation, Federation):
        raise Problem(f"federation: expected what load returns, got {shown(federation)}")
    if not isinstance(privacy, Privacy):
        raise Problem(f"privacy: expected Privacy(epsilon=..., delta=...), got {shown(privacy)}")
    check_advice(privacy, spread)
    names = federation.names
    delta = per_silo("privacy.delta", privacy.delta, names)
    axes = {"epsilon": values_of(privacy.epsilon), "clip": values_of(privacy.clip)}
    forecasts = []
    for epsilon, clip in itertools.product(*axes.values()):
        picked = {"epsilon": epsilon, "clip": clip}
        numbers = [
            per_silo(f"privacy.{key}", value, names, privacy.budget_seed) for key, value in picked.items()
        ]
        check_budgets(numbers[0], delta, numbers[1])
        settings = {key: value for key, value in picked.items() if len(axes[key]) > 1}
        sizes = federation.protected_sizes(privacy.unit)
        found = _advice(names, sizes, numbers[0], delta, numbers[1], spread, deviation, settings)
        forecasts.append(replace(found, unit=privacy.unit))
    return forecasts


def _advice(
    names: Sequence[str],
    sizes: Sequence[int],
    epsilon: Sequence[float],
    delta: Sequence[float],
    clip: Sequence[float],
    spread: tuple[float, float] | None,
    deviation: float | None,
    settings: dict[str, Any],
) -> Advice:
    """Return one forecast; each silo's noise is that of one release of a sum over all its examples."""
    private = [c for c, e in zip(clip, epsilon, strict=True) if math.isfinite(e)]
    if not private:
        raise Problem(
            "privacy.epsilon: every budget is inf, so there is no noise to forecast; give at least one silo a"
            " finite budget"
        )
    deviation = DEVIATION * min(private) if deviation is None else deviation
    targets = [Target(e, d, 1.0, 1) for e, d in zip(epsilon, delta, strict=True)]
    calibrated = calibrate(targets)
    multipliers = [calibrated[target].noise for target in targets]
    noise = [m * c for m, c in zip(multipliers, clip, strict=True)]
    circle = Circle(sizes, noise, deviation)
    ends = spread or (SPREADS[0] * deviation, SPREADS[1] * deviation)
    low, high = (forecast(circle, end) for end in ends)
    return Advice(names, epsilon, delta, clip, multipliers, circle, low, high, settings)
