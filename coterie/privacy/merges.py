"""The unit 'silo': what merging clipped uploads reveals about one whole silo, and to whom.

The server adds noise to the sum of the uploads, or every silo adds noise to its own upload. If the silos
add it, the server sees every upload or, by a secure sum (`coterie.secure_sum`), only their sum.
- Noise by the server: the server sees the raw uploads, so nothing protects against it. Everyone else sees
  noisy sums. If silos are drawn independently (poisson), a silo is hidden among all that may have taken
  part, even from all other silos together: each of them knows only about itself. If a fixed number of silos
  is drawn, the other silos can work out who is left. So there is no amplification against them, but there
  is against an outsider.
- Noise by the silos: the other silos know their own noise and subtract it, and the server sees each upload
  alone. So the silo's own noise is all that protects it. The presence of that noise shows that the silo took
  part, so there is no amplification. Against an outsider, the noise of a cohort of known size adds up.
- Noise by the silos and a secure sum: of n silos in a round, at most `dropouts` send nothing and at most
  `colluding` side with the server. Each silo adds its part of the noise (`coterie.privacy.distributed`), so
  that the noise of the honest silos in the sum is at least `noise`, which protects against the server and
  the silos that side with it. If a fixed number of silos is due, they know who took part, so there is no
  amplification. If silos are drawn independently (poisson), all n are due in every round: one that was not
  drawn adds noise to zeros, so neither the server nor any other silo can tell, and the sampling counts
  against all of them. An outsider knows no
  silo's noise, so for it the noise of all n - `dropouts` uploads adds up. All other silos together can
  subtract their own uploads from the sum: only the silo's own part of the noise protects it from them. That
  is less than budgets are planned for, so ledgers do not charge it: they list these adversaries as not
  protected against.
A personal model without noise protects nothing against anyone who holds it, so it stays at home. What the
others hold is covered: the released merges (the "billboard") and their own data (joint privacy).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import Problem
from .accountant import epsilon_of
from .adversaries import ADVERSARIES
from .distributed import check_assumptions, noise_share
from .events import Event

Releases = dict[str, tuple[Event, ...] | None]
PLACES = ("server", "silos", "secure")
# The share of one over the squared multiplier that the count of uploads within an adaptive clip takes.
BITS = 0.02


@dataclass(frozen=True)
class MergeEvents:
    """The merges of one run as they concern one silo: it took part in `came` of `merges` merges.

    `noise` is a multiple of the clip, on the sum (`noise_by` "server"), on each upload ("silos"), or on the
    honest part of a sum in which `dropouts` silos are missing and `colluding` ones are not honest ("secure").
    With a `quantile`, the clip starts at `clip` and follows the uploads; the noise pays for that too.
    `mixed`: sums other than the mean are released, with noise for the silo that contributes most to them.
    `metered`: silos may leave, and ledgers record who was due to take part. Anyone who holds the shared
    model is therefore assumed to know as much as all other silos. `unequal`: other silos have other clips.
    A silo that replaces this one in a draw of fixed size may then move the sum further, so such a draw
    hides nothing.
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
    dropouts: int = 0
    colluding: int = 0

    def __post_init__(self) -> None:
        if self.noise_by not in PLACES:
            raise Problem(f"noise_by: expected one of {', '.join(PLACES)}, got '{self.noise_by}'")
        if not 0 <= self.came <= self.merges:
            raise Problem(f"merges: a silo cannot take part in {self.came} of {self.merges} merges")
        if self.noise_by == "secure":
            check_assumptions(self.members, self.dropouts, self.colluding)
        elif self.dropouts or self.colluding:
            raise Problem("merges: only a secure sum counts silos that drop out or collude")

    @property
    def cohort(self) -> float:
        """The fixed denominator of the mean: the number of silos drawn, or its expectation."""
        return self.silos * self.rate

    @property
    def members(self) -> int:
        """The number of silos that are due in a round of a secure sum: all, if they are drawn in secret."""
        return self.silos if self.sampler == "poisson" else round(self.cohort)

    @property
    def own_noise(self) -> float:
        """The noise on the silo's own upload to a secure sum, as a multiple of its clip."""
        return noise_share(self.noise, self.members, self.dropouts, self.colluding)

    @property
    def hidden(self) -> bool:
        """Whether epsilon relies on nobody knowing when the silo took part, or nobody but the server.

        The server knows if it adds the noise; in a secure sum it does not. The silo is charged for every
        merge in which it might have taken part.
        """
        return self.noise_by != "silos" and self.sampler == "poisson" and self.rate < 1

    def releases(self) -> Releases:
        """Return what each adversary sees of the silo; None means that no ledger charges it.

        That is so for an adversary who sees raw uploads and, in a metered secure sum, for all other silos.
        """
        seen: Releases = dict.fromkeys(ADVERSARIES, ())
        if self.merges and self.noise_by == "server":
            drawn = self._drawn(self.noise)
            seen["server"] = None if self.came else ()
            seen["shared"] = drawn if self.rate < 1 else self._known(self.noise)
            seen["silos"] = drawn if self.hidden else self._known(self.noise)
        elif self.merges and self.noise_by == "secure":
            outside = self.own_noise * math.sqrt(self.members - self.dropouts)
            covered = self.colluding >= self.members - 1
            seen_of = self._drawn if self.hidden else self._known
            seen["server"] = seen_of(self.noise)
            seen["silos"] = None if self.metered and self.came and not covered else seen_of(self.own_noise)
            seen["shared"] = seen["server"] if self.metered else seen_of(outside)
        elif self.merges:
            fixed = self.rate == 1 or self.sampler == "fixed"
            together = self.noise * math.sqrt(self.cohort) if fixed else self.noise
            seen["server"] = seen["silos"] = self._known(self.noise)
            seen["shared"] = self._known(together)
        if (self.metered and self.noise_by != "secure") or (
            self.unequal and self.sampler == "fixed" and self.noise_by == "server"
        ):
            seen["shared"] = seen["silos"]
        seen["personal"] = None if self.raw_personal else seen["shared"]
        return seen

    def _drawn(self, noise: float) -> tuple[Event, ...]:
        """Return what adversaries see who do not know when the silo took part."""
        return (Event("gaussian", noise, self.rate, self.merges, self.sampler),)

    def _known(self, noise: float) -> tuple[Event, ...]:
        """Return what adversaries see who know when the silo took part."""
        return (Event("gaussian", noise, 1.0, self.came),) if self.came else ()

    def strongest(self) -> tuple[Event, ...]:
        """Return what the best-informed adversary sees among those the silo is protected against."""
        seen = self.releases()
        return seen["server"] or seen["silos"] or ()

    def against(self, delta: float) -> dict[str, float | None]:
        """Return epsilon against each adversary: None without protection, 0 if it sees nothing.

        A holder of the shared model never knows more than all other silos together.
        """
        seen = self.releases()
        found = {name: None if events is None else _epsilon(events, delta) for name, events in seen.items()}
        if found["silos"] is not None and found["shared"] is not None:
            least = min(found["silos"], found["shared"])
            found |= {name: least for name in ("shared", "personal") if found[name] is not None}
        return {name: None if value == math.inf else value for name, value in found.items()}


def _epsilon(events: tuple[Event, ...], delta: float) -> float:
    return epsilon_of(events, delta) if events else 0.0
