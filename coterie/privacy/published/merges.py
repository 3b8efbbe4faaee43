"""What papers report for noisy merges of whole silos."""

from __future__ import annotations

import functools

from ..accountant import quick_lower, renyi_epsilon
from ..events import Event
from ..merges import MergeEvents
from .formulas import Published, central_limit_epsilon, heads_sensitivity, pmtl_epsilon, warning


@functools.lru_cache(maxsize=4096)
def published_for_merges(merges: MergeEvents, delta: float) -> tuple[Published, ...]:
    """Return what the papers on whole silos report for these merges."""
    if not merges.merges or not merges.noise:
        return ()
    if merges.noise_by == "silos":
        claimed = merges.noise / heads_sensitivity(1.0, merges.cohort, merges.silos)
        formula = f"Gaussian DP by the central limit, sigma = {claimed:.4g} for a sensitivity of 2 C K / M"
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
    """Return a sentence for each published epsilon that is below a proven lower bound.

    If silos add the noise, the bound is against the server, which sees each upload and who took part, and
    against all other silos. If the server adds it, the bound is against all other silos. If sums other than
    the mean are released, silos differ and there is no lower bound, so nothing is returned. With a secure sum
    the bound is against the server, if as many silos drop out and collude as the noise is planned for.
    """
    lower, whom = 0.0, {"server": ("silos",), "silos": ("server", "silos"), "secure": ("server",)}
    for name in () if merges.mixed else whom[merges.noise_by]:
        seen = merges.releases()[name]
        if seen and all(event.rate == 1 or event.sampler == "poisson" for event in seen):
            lower = max(lower, _lower(seen, delta))
    lines = (warning(published, lower) for published in published_for_merges(merges, delta))
    return [line for line in lines if line]
