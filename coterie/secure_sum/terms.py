"""The public terms of one secure sum: who takes part, what is summed, and what is assumed."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import Problem
from ..noise.rounded import grid_exponent
from ..privacy.distributed import assumption_problems, least_threshold, noise_share

SCHEMA = "coterie-secure-sum/1"
LARGEST = 2**28  # numbers of a vector
FARTHEST = 64  # deviations: one number in 10^8 is further out with a probability below 10^-880
EXACT = 2**52  # cells: float64 numbers count them exactly, and sums of 255 uploads are far below 2^63
LETTERS = 200  # of a name


def canonical(value: Any) -> str:
    """Return plain data as the one text that stands for it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of some bytes, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Member:
    """A silo of the plan: its name and the public half of its key (`PublicKey.public`)."""

    name: str
    public: str


@dataclass(frozen=True)
class Terms:
    """What all silos agree on before a secure sum: it is part of the plan that their owners approved.

    `training` names the training, for instance by the digest of its plan, and `round` the round. `members`
    are the silos that are due in this round, in the order of the plan. Uploads have `size` numbers and are
    clipped to `clip`. The honest part of the sum has noise of at least `deviation`, as long as at most
    `dropouts` members send nothing and at most `colluding` of them side with the server.

    Everything else follows: each silo's noise (`own_deviation`), the grid, the range of an upload on it, and
    how many silos are needed. Every signature and every key is bound to the digest of these terms.
    """

    training: str
    round: int
    members: tuple[Member, ...]
    size: int
    clip: float
    deviation: float
    dropouts: int = 0
    colluding: int = 1

    def __post_init__(self) -> None:
        for name in ("clip", "deviation"):
            if _is_whole(getattr(self, name)):
                object.__setattr__(self, name, float(getattr(self, name)))
        problems = [*self._number_problems(), *_member_problems(self.members)]
        problems += assumption_problems(len(self.members), self.dropouts, self.colluding)
        if not problems and self.reach > EXACT:
            problems.append(f"deviation: {self.deviation:g} is too small for a clip of {self.clip:g}")
        if problems:
            raise Problem("\n".join(f"secure sum: {problem}" for problem in problems))

    def _number_problems(self) -> list[str]:
        problems = []
        if not isinstance(self.training, str) or not self.training:
            problems.append(f"training: expected a name, got {self.training!r}")
        if not _is_whole(self.round) or self.round < 0:
            problems.append(f"round: expected a whole number >= 0, got {self.round!r}")
        if not _is_whole(self.size) or not 1 <= self.size <= LARGEST:
            problems.append(f"size: expected a whole number from 1 to {LARGEST}, got {self.size!r}")
        for name in ("clip", "deviation"):
            value = getattr(self, name)
            if not (isinstance(value, float) and math.isfinite(value) and 1e-200 < value < 1e200):
                problems.append(f"{name}: expected a number > 0 of ordinary size, got {value!r}")
        return problems

    @property
    def threshold(self) -> int:
        """The number of silos whose shares open a mask."""
        return least_threshold(len(self.members), self.colluding)

    @property
    def least(self) -> int:
        """The smallest number of uploads that are ever added up."""
        return len(self.members) - self.dropouts

    @functools.cached_property
    def own_deviation(self) -> float:
        """The deviation of the noise that each silo adds to its own upload."""
        return noise_share(self.deviation, len(self.members), self.dropouts, self.colluding)

    @property
    def exponent(self) -> int:
        """The grid of all uploads: multiples of 2 to the power of this."""
        return grid_exponent(self.own_deviation)

    @functools.cached_property
    def reach(self) -> int:
        """The largest absolute value of an upload, in cells of the grid."""
        return math.ceil(math.ldexp(self.clip + FARTHEST * self.own_deviation, -self.exponent)) + 1

    @functools.cached_property
    def digest(self) -> str:
        """The digest of these terms."""
        return digest_of(canonical([SCHEMA, "terms", asdict(self)]).encode())

    def index(self, name: str) -> int:
        """Return the place of a member; raise `Problem` if there is none of this name."""
        for place, member in enumerate(self.members):
            if member.name == name:
                return place
        raise Problem(f"secure sum: '{name}' is not a member")

    def names(self, places: Any) -> str:
        """Return the names of some members as a message lists them."""
        return ", ".join(f"'{self.members[place].name}'" for place in sorted(places)) or "none"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _member_problems(members: tuple[Member, ...]) -> list[str]:
    problems = []
    for what, values in (
        ("name", [member.name for member in members]),
        ("key", [member.public for member in members]),
    ):
        if len(set(values)) != len(values):
            problems.append(f"members: two of them have the same {what}")
    for member in members:
        if not isinstance(member.name, str) or not 0 < len(member.name) <= LETTERS:
            problems.append(f"members: expected a name of at most {LETTERS} letters, got {member.name!r}")
        elif not isinstance(member.public, str) or not re.fullmatch("[0-9a-f]{64}", member.public):
            problems.append(f"members: the key of '{member.name}' is not 64 hexadecimal digits")
    return problems
