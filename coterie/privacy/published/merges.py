"""What papers report of noisy merges of whole silos, beside what is certified."""

from __future__ import annotations

import functools

from ..accountant import quick_lower, renyi_epsilon
from ..events import Event
from ..merges import MergeEvents
from .formulas import Published, central_limit_epsilon, heads_sensitivity, pmtl_epsilon, warning


@functools.lru_cache(maxsize=4096)
def published_for_merges(merges: MergeEvents, delta: float) -> tuple[Published, ...]:
    """Give what the papers on whole silos report for merges like these."""
    if not merges.merges or not merges.noise:
        return ()
    if merges.noise_by == "silos":
        claimed = merges.noise / heads_sensitivity(1.0, merges.cohort, merges.silos)
        formula = f"Gaussian DP by the central limit at sigma {claimed:.4g}, of the sensitivity 2 C K / M"
        found = central_limit_epsilon(claimed, merges.rate, merges.merges, delta)
        return (Published("Wu, Chen, Wang 2020", formula, found),)
    event = Event("gaussian", merges.noise, merges.rate, merges.merges)
    sampled = Published(
        "Hu, Wu, Smith 2023", "Renyi privacy of the sampled Gaussian", renyi_epsilon((event,), delta)
    )
    if merges.rate < 1:
        return (sampled,)
    deviation = merges.noise * merges.clip / merges.silos
    closed = pmtl_epsilon(deviation, merges.merges, delta, merges.clip, merges.silos)
    formula = "closed form, 4 gamma sqrt(T log(1/delta)) / (sigma m), all silos in every round"
    return (sampled, Published("Hu, Wu, Smith 2023", formula, closed))


@functools.lru_cache(maxsize=4096)
def _lower(events: tuple[Event, ...], delta: float) -> float:
    return quick_lower(events, delta)


def merge_warnings(merges: MergeEvents, delta: float) -> list[str]:
    """Warn of what papers report below what is true against some of those they name.

    Noise of the silos: against the server, who sees each upload and who came. Noise of the server: against
    all other silos together. Where other sums than the mean are released, silos differ, and nothing is said.
    """
    lower = 0.0
    for name in () if merges.mixed else ("server", "silos") if merges.noise_by == "silos" else ("silos",):
        seen = merges.releases()[name]
        if seen and all(event.rate == 1 or event.sampler == "poisson" for event in seen):
            lower = max(lower, _lower(seen, delta))
    lines = (warning(published, lower) for published in published_for_merges(merges, delta))
    return [line for line in lines if line]
