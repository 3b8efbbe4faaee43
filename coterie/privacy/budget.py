"""Privacy budgets, and other settings that may differ between silos."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from ..errors import PlainlyMade, Problem, nearest
from .merges import PLACES
from .preferences import check_preference, draw_budgets
from .units import UNITS

SENSITIVITIES = ("certified", "paper")
NOT_GIVEN = float.fromhex("0x1.fffffffffffffp+1023")  # the epsilon of a run whose noise is given instead
# Within this range, float32 can represent the norms that are compared with a clip.
LEAST_CLIP, MOST_CLIP = 1e-6, 1e6
# One number for all silos; a mapping from silo names (and perhaps "default") to numbers;
# or {"each": [...]}, assigned to the silos in turn. An epsilon may also be the name of a preference.
PerSilo = float | str | Mapping[str, float | Sequence[float]]
# The same, or a list of them: one run for each.
Swept = PerSilo | Sequence[PerSilo]


@dataclass(frozen=True)
class Privacy(metaclass=PlainlyMade):
    """How much privacy each silo may spend, and how it is protected.

    `epsilon` and `clip` take one number for all silos, one per silo (`{"north": 1, "default": 4}` or
    `{"each": [1, 2, 4]}`, assigned in turn), or a list for one run per value. An infinite epsilon
    means no privacy: no clipping and no noise. An epsilon may also name a distribution of preferences,
    such as "mixgauss1". Each silo's epsilon is then drawn from it with `budget_seed`, and does not depend
    on the seed of the training.

    Under the unit "example", `clip` bounds the gradient of one example. Under the unit "person" it bounds the
    mean gradient over all rows of one person in a silo. Under the unit "silo" a whole silo
    is protected and `clip` bounds its upload. Noise is then added to the merge by the server, or to each
    upload by its silo (`noise_by`). With `noise_by` "secure", silos add the noise in parts, and the server
    sees only the sum: budgets then hold as long as at most `dropouts` silos drop out of a round and at most
    `colluding` of them side with the server. There, `noise` may replace epsilon, and the resulting epsilon is
    certified. It is a multiple of the clip or, with `sensitivity` "paper" and `noise_by` "silos", of the
    upload's sensitivity as the paper on private heads states it. With a `quantile`, the clip starts at
    `clip` and follows that quantile of the uploads' lengths.
    """

    epsilon: Swept = NOT_GIVEN
    delta: PerSilo = 1e-5
    clip: Swept = 1.0
    unit: str = "example"
    budget_seed: int = 0
    noise_by: str = "server"
    noise: Swept | None = None
    sensitivity: str = "certified"
    quantile: float | None = None
    dropouts: int = 0
    colluding: int = 1

    def __repr__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        told = {
            field.name: shown[field.name]
            for field in fields(self)
            if shown[field.name] != field.default or field.name == "delta"
        }
        return f"Privacy({', '.join(f'{key}={value!r}' for key, value in told.items())})"

    def __post_init__(self) -> None:
        for key in ("epsilon", "delta", "clip", "noise"):
            object.__setattr__(self, key, by_silo(getattr(self, key)))
        given = {"epsilon": self.epsilon, "delta": [self.delta], "clip": self.clip}
        if self.noise is not None:
            given["noise"] = self.noise
        problems = [
            problem
            for key, values in given.items()
            for problem in number_problems(f"privacy.{key}", values, drawn=key == "epsilon")
        ]
        if problems:
            raise Problem("\n".join(problems))
        self._check_noise()
        for value in values_of(self.epsilon):
            if isinstance(value, str):
                try:
                    check_preference(value)
                except Problem as problem:
                    raise Problem(f"privacy.epsilon: expected a number, got '{value}' ({problem})") from None
        if self.unit not in UNITS:
            raise Problem(f"privacy.unit: unknown unit '{self.unit}'; {nearest(self.unit, UNITS)}")
        if self.noise_by not in PLACES:
            raise Problem(f"privacy.noise_by: expected one of {', '.join(PLACES)}, got '{self.noise_by}'")
        if self.unit != "silo" and self.noise_by != "server":
            raise Problem("privacy.noise_by: allowed only with unit = 'silo'")
        for key, default in (("dropouts", 0), ("colluding", 1)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise Problem(f"privacy.{key}: expected a whole number >= 0, got {value!r}")
            if self.noise_by != "secure" and value != default:
                raise Problem(f"privacy.{key}: allowed only with noise_by = 'secure'")

    def _check_noise(self) -> None:
        if (self.noise is None) == (self.epsilon == NOT_GIVEN):
            raise Problem("privacy: expected either epsilon or noise, not both or neither")
        if self.noise is not None:
            if self.unit != "silo":
                raise Problem("privacy.noise: allowed only with unit = 'silo'; otherwise give epsilon")
            for value in values_of(self.noise):
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
                    raise Problem(f"privacy.noise: expected a number > 0 (and < 1e6), got {value!r}")
        if self.quantile is not None and not (
            self.unit == "silo"
            and self.noise_by == "server"
            and isinstance(self.quantile, int | float)
            and 0 < self.quantile < 1
        ):
            raise Problem(
                "privacy.quantile: expected a number in (0, 1), with unit = 'silo' and noise_by = 'server',"
                f" got {self.quantile!r}"
            )
        if self.sensitivity not in SENSITIVITIES:
            raise Problem(
                f"privacy.sensitivity: expected one of {', '.join(SENSITIVITIES)}, got '{self.sensitivity}'"
            )
        if self.sensitivity == "paper" and (self.noise is None or self.noise_by != "silos"):
            raise Problem("privacy.sensitivity: 'paper' requires privacy.noise and noise_by = 'silos'")


def by_silo(value: Any) -> Any:
    """Return a copy of a setting with silos named by text; a dict or a pandas Series may use numbers.

    >>> by_silo({1: 2.0})
    {'1': 2.0}
    """
    if not isinstance(value, Mapping) and hasattr(value, "to_dict") and hasattr(value, "index"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(name): by_silo(number) for name, number in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(by_silo(each) for each in value)
    return _plain(value)


def _plain(number: Any) -> Any:
    """Return one of numpy's numbers as one of Python's; anything else as it is."""
    if isinstance(number, bool | int | float) or not isinstance(number, Real):
        return number
    return int(number) if isinstance(number, Integral) else float(number)


def number_problems(key: str, values: Swept, drawn: bool = False) -> list[str]:
    """List what is wrong with a number, one for each silo, or a list of these.

    With `drawn` it may be the name of a preference that budgets are drawn from.
    """
    if isinstance(values, Sequence) and not values:
        return [f"{key}: a list of values must not be empty"]
    return [
        f"{key}: expected a number, or one for each silo, got {number!r}"
        for value in values_of(values)
        if not (drawn and isinstance(value, str))
        for number in _numbers(value)
        if isinstance(number, bool) or not isinstance(number, Real)
    ]


def _numbers(value: PerSilo) -> list[object]:
    """List the numbers that a value has for silos."""
    if not isinstance(value, Mapping):
        return [value]
    dealt = value.get("each")
    return list(dealt) if isinstance(dealt, list | tuple) else list(value.values())


def values_of(value: Swept) -> list[PerSilo]:
    """Return the values of a setting: one per run."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            raise Problem("a list of values must not be empty")
        return list(value)
    return [value]


def per_silo(key: str, value: PerSilo, names: Sequence[str], seed: int = 0) -> list[float]:
    """Return the number of each silo; `seed` is used if the value names a preference.

    >>> per_silo("epsilon", {"each": [1, 2]}, ["a", "b", "c"])
    [1.0, 2.0, 1.0]
    """
    if isinstance(value, str):
        if not key.endswith("epsilon"):
            raise Problem(f"{key}: expected a number, got '{value}'")
        return list(draw_budgets(value, len(names), seed))
    value = by_silo(value)
    if not isinstance(value, Mapping):
        return [float(value)] * len(names)
    if "each" in value:
        dealt = value["each"]
        if not isinstance(dealt, Sequence) or not dealt or len(value) > 1:
            raise Problem(f"{key}: 'each' takes a list of numbers and must be the only key")
        return [float(dealt[k % len(dealt)]) for k in range(len(names))]
    default = value.get("default")
    for name in value:
        if name != "default" and name not in names:
            raise Problem(f"{key}: there is no silo '{name}'; {nearest(name, names)}")
    missing = [name for name in names if name not in value]
    if missing and default is None:
        raise Problem(f"{key}: no number for silo '{missing[0]}'; add one, or add a 'default'")
    chosen = [value.get(name, default) for name in names]
    if not all(isinstance(number, int | float) for number in chosen):
        raise Problem(f"{key}: a silo's value must be a number")
    return [float(number) for number in chosen if isinstance(number, int | float)]


def check_budgets(epsilon: Sequence[float], delta: Sequence[float], clip: Sequence[float]) -> None:
    """Raise `Problem` if a number cannot be a budget or a clip."""
    for value in epsilon:
        if math.isnan(value) or value <= 0:
            raise Problem(f"privacy.epsilon: expected a number > 0, got {value:g}")
    for value in delta:
        if not 0 < value < 1:
            raise Problem(f"privacy.delta: expected a number in (0, 1), got {value:g}")
    for value in clip:
        if not LEAST_CLIP <= value <= MOST_CLIP:
            raise Problem(
                f"privacy.clip: expected a finite number > 0 (from {LEAST_CLIP:g} to {MOST_CLIP:g}),"
                f" got {value:g}"
            )


def loose_deltas(
    delta: Sequence[float],
    sizes: Sequence[int],
    names: Sequence[str],
    unit: str = "example",
    key: str = "privacy.delta",
) -> list[str]:
    """Return a warning if a delta is so large that one whole example, or silo, could be published.

    `key` is where the user set it.
    """
    loose = [(name, d, n) for name, d, n in zip(names, delta, sizes, strict=True) if d >= 1 / n]
    if not loose:
        return []
    name, d, n = max(loose, key=lambda item: item[1] * item[2])
    if unit == "silo":
        return [
            f"{key}: {d:g} is not below 1/n for {n} silos, so it permits publishing one silo's data;"
            " choose a smaller delta"
        ]
    what = "the rows of one person" if unit == "person" else "one example"
    return [
        f"{key}: {d:g} is not below 1/n for {len(loose)} silo(s), such as '{name}' with {n} {unit}s,"
        f" so it permits publishing {what}; choose a smaller delta"
    ]
