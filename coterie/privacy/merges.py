"""The unit 'silo': what a merge of clipped uploads releases of one whole silo, against whom.

Noise is added by the server to the sum of the uploads, or by every silo to its own upload.
- By the server: it sees the uploads itself, so nothing protects against it. Others see noisy sums. Silos
  drawn independently (poisson) are hidden among those that may have come, also from all other silos, who
  know only about themselves. Of a draw of fixed size all other silos know who is left, so against them
  there is no amplification; against an outsider there is.
- By the silos: the server, and all other silos, who know and subtract their own noise, are left with the
  silo's own; and noise that is there shows that its silo is, so there is no amplification. Against an
  outsider the noises of a cohort of known size add up.
A personal model that never was noised protects nothing against who holds it. It stays at home; what others
hold, the billboard of released merges and their own data, is covered (joint privacy).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import Problem
from .accountant import epsilon_of
from .adversaries import ADVERSARIES
from .events import Event

Releases = dict[str, tuple[Event, ...] | None]
PLACES = ("server", "silos")


@dataclass(frozen=True)
class MergeEvents:
    """What is merged of one silo in one run: `merges` merges, to which it `came` so often.

    `noise` is a multiplier of the clip: of the noise on the sum (`noise_by` server) or on an upload (silos).
    With a `quantile` the clip begins at `clip` and follows the uploads; the noise pays for that too.
    `mixed`: other sums than the mean are released, with the noise of the silo that is most in them. If
    `metered`, silos may leave and who was meant to come is in ledgers: whoever holds the shared model is
    taken to know as much as all other silos. `unequal`: other silos have other clips, so that who takes a
    silo's place in a draw of fixed size may move the sum further, and such a draw hides nothing.
    """

    noise: float
    clip: float
    silos: int
    rate: float
    sampler: str
    merges: int
    came: int
    noise_by: str
    raw_personal: bool
    quantile: float | None = None
    mixed: bool = False
    metered: bool = False
    unequal: bool = False

    def __post_init__(self) -> None:
        if self.noise_by not in PLACES:
            raise Problem(f"noise_by: expected one of {', '.join(PLACES)}, got '{self.noise_by}'")
        if not 0 <= self.came <= self.merges:
            raise Problem(f"merges: a silo cannot come {self.came} times to {self.merges} merges")

    @property
    def cohort(self) -> float:
        """The fixed denominator of a mean: how many silos are drawn, or expected."""
        return self.silos * self.rate

    @property
    def hidden(self) -> bool:
        """Whether epsilon rests on nobody but the server knowing when the silo came.

        Then it is charged for every merge to which it may have come.
        """
        return self.noise_by == "server" and self.sampler == "poisson" and self.rate < 1

    def releases(self) -> Releases:
        """Give what each adversary sees of the silo; None: all of it."""
        seen: Releases = dict.fromkeys(ADVERSARIES, ())
        if self.merges and self.noise_by == "server":
            drawn = (Event("gaussian", self.noise, self.rate, self.merges, self.sampler),)
            seen["server"] = None if self.came else ()
            seen["shared"] = drawn if self.rate < 1 else self._known(self.noise)
            seen["silos"] = drawn if self.hidden else self._known(self.noise)
        elif self.merges:
            fixed = self.rate == 1 or self.sampler == "fixed"
            together = self.noise * math.sqrt(self.cohort) if fixed else self.noise
            seen["server"] = seen["silos"] = self._known(self.noise)
            seen["shared"] = self._known(together)
        if self.metered or (self.unequal and self.sampler == "fixed" and self.noise_by == "server"):
            seen["shared"] = seen["silos"]
        seen["personal"] = None if self.raw_personal else seen["shared"]
        return seen

    def _known(self, noise: float) -> tuple[Event, ...]:
        """Give what those see who know when the silo came."""
        return (Event("gaussian", noise, 1.0, self.came),) if self.came else ()

    def strongest(self) -> tuple[Event, ...]:
        """Give what the best informed see of those against whom there is protection: silos, or the server."""
        seen = self.releases()
        return seen["server"] or seen["silos"] or ()

    def against(self, delta: float) -> dict[str, float | None]:
        """Give epsilon against each adversary; None where nothing protects, 0 where nothing is seen.

        Who holds the shared model knows no more than all other silos together.
        """
        seen = self.releases()
        found = {name: None if events is None else _epsilon(events, delta) for name, events in seen.items()}
        if found["silos"] is not None and found["shared"] is not None:
            least = min(found["silos"], found["shared"])
            found |= {name: least for name in ("shared", "personal") if found[name] is not None}
        return {name: None if value == math.inf else value for name, value in found.items()}


def _epsilon(events: tuple[Event, ...], delta: float) -> float:
    return epsilon_of(events, delta) if events else 0.0
