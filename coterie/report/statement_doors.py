"""What a statement's page says, for experts, about doors, releases and the rounding of what was released."""

from __future__ import annotations

from html import escape
from typing import Any

from ..privacy.statement.checklist import counted
from ..privacy.statement.grids import grid_lines
from ..protocol.doors import ALLOCATION, SOLVE_DUAL, SOLVE_DUAL_WHOLE

PLAINLY = {
    "descend": "The silo trained a model on its examples, with noise in every step",
    "home": "The silo trained a model that stayed at home",
    "fisher": "The silo measured at home which parameters matter to it",
    "solve_dual": "The silo trained a linear model on its examples, with noise in every step",
    "solve_dual whole": "The silo trained a linear model, and added noise to what it sent",
    "solve_dual unproven": "The silo trained a linear model, with noise for which nothing is proven",
    "select": "The silo chose one of several models, with noise in the choice",
    "score": "The silo told how good a model is, with noise",
    "merge": "The silo sent a model, which was merged with those of other silos",
}


def door_row(door: dict[str, Any], merges: dict[str, Any] | None, one: str = "example") -> tuple[str, str]:
    """Return a door, and how it was used: first in plain words, then in detail.

    `one` is what a door adds up and clips: an "example" or a "person".
    """
    name, detail = _door(door, merges, one)
    plain = PLAINLY.get(name)
    return name, detail if plain is None else f"{plain}: {detail}"


def _door(door: dict[str, Any], merges: dict[str, Any] | None, one: str) -> tuple[str, str]:
    """Return a door, and in detail how it was used."""
    if door["door"] == "score":
        tests = f"{door['expected_batch']:g} test {one}s"
        return "score", (
            f"{door['calls']} noisy sums (or tables of counts) over all {tests}, in which one {one} adds at"
            " most 1 to one number"
        )
    if door["door"] == "merge" and merges is not None:
        return "merge", _merge(door, merges)
    if door["door"] == "select":
        return "select", f"{door['calls']} private choices by the noisy number of errors on all {one}s"
    if door["door"] == SOLVE_DUAL_WHOLE.name and door["clip"] is not None:
        return door["door"], (
            f"{door['calls']} uploads, each clipped to {door['clip']:g} as a whole; one {one} may change"
            " the whole upload, so the noise is a multiple of twice the clip"
        )
    what = "share of an upload" if door["door"] == SOLVE_DUAL.name else "gradient"
    clip = "not clipped" if door["clip"] is None else f"each {one}'s {what} clipped to {door['clip']:g}"
    calls = f"{door['calls']} calls with {door['steps']} noisy steps each"
    return door["door"], f"{calls}; {_sample(door, one)}; {clip}"


def _sample(door: dict[str, Any], one: str) -> str:
    """Return how the examples, or persons, of a step were drawn."""
    expected = f"expected batch {door['expected_batch']:g}"
    if door["sampler"] == ALLOCATION and door["rate"] < 1:
        each = round(1 / door["rate"])
        return f"in whole passes, with every {one} in exactly one of {each} steps, at random ({expected})"
    if door["sampler"] in ("all examples", ALLOCATION):
        return f"on all {door['expected_batch']:g} {one}s"
    return f"{_sampler(door)} samples at rate {door['rate']:.4g} ({expected})"


def _sampler(door: dict[str, Any]) -> str:
    sampler: str = door["sampler"]
    return {"poisson": "Poisson", "fixed": "fixed-size"}.get(sampler, sampler)


def _merge(door: dict[str, Any], merges: dict[str, Any]) -> str:
    """Return how the uploads were merged."""
    clip = "not clipped" if door["clip"] is None else f"clipped to {door['clip']:g}"
    if merges["quantile"] is not None:
        clip += f" at first, then to a noisy {merges['quantile']:g}-quantile of their lengths"
    noise = {
        "server": "the server adds noise to the sum",
        "silos": "each silo adds noise",
        "secure": "each silo adds a part of the noise, and the server sees only the sum, of at least"
        f" {_due(door, merges) - merges['dropouts']} uploads",
    }[merges["noise_by"]]
    fixed = f"{door['expected_batch']:g}, or all {merges['silos']}"
    rest = f"the sum is divided by a fixed number ({fixed}), however many silos take part"
    if merges["mixed"]:
        rest = "the sums are mixed by a public matrix"
    drawn = "all silos, every time"
    if door["rate"] < 1:
        drawn = f"{_sampler(door)} draws at rate {door['rate']:.4g}"
        if merges["noise_by"] == "secure" and door["sampler"] == "poisson":
            drawn += ", in secret: a silo that was not drawn uploads noise alone"
    return (
        f"at most {door['calls']} uploads, {clip}; each is added to those of the round's other silos"
        f" ({drawn}); {noise}; {rest}"
    )


def _due(door: dict[str, Any], merges: dict[str, Any]) -> int:
    """Return how many silos are due in a round: all of them, unless a fixed number is drawn."""
    return int(merges["silos"]) if door["sampler"] == "poisson" else round(door["expected_batch"])


def event_row(event: dict[str, Any]) -> tuple[str, str]:
    """Return a mechanism, and how often and with which noise it was used."""
    scale = {"gaussian": "multiplier", "laplace": "scale", "selection": "scale"}[event["mechanism"]]
    often = f"{event['count']:,} at rate {event['rate']:.4g}"
    if event["sampler"] == ALLOCATION:
        often = counted(event)
    return event["mechanism"], f"{often}, with noise {scale} {event['noise']:.4g}"


def rounding_lines(grid: dict[str, Any] | None) -> list[str]:
    """Return the public grids that releases were rounded to, as HTML; a simulation has none."""
    if grid is None:
        return []
    lines = "".join(f"<li>{escape(line)}</li>" for line in grid_lines(grid))
    return [f"<p class='small'>Rounding: {escape(grid['rule'])}.</p><ul class='small'>{lines}</ul>"]
