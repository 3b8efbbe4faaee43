"""A result as pandas frames."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..errors import Problem, nearest
from .frames import Row, make_frame
from .gains import gains_of

if TYPE_CHECKING:
    import pandas as pd

    from .result import Result

VALUES = ("value", "low", "high")


def scores(result: Result) -> pd.DataFrame:
    """Return a row for each run and silo: its score and its spending."""
    rows = [
        _row(result, number, {"silo": name, "metric": run.metric, **asdict(silo)})
        for number, run in enumerate(result.runs)
        for name, silo in run.silos.items()
    ]
    return make_frame(rows, ["silo", "metric", "score", "epsilon", "delta", "noise"])


def history(result: Result) -> pd.DataFrame:
    """Return a row for each run, silo and recorded round: its score and its training loss."""
    rows = [
        _row(result, number, {"silo": name, "round": at, "score": curve[place], "loss": losses[place]})
        for number, run in enumerate(result.runs)
        for name, curve in run.curves.items()
        for losses in [run.losses.get(name) or [math.nan] * len(curve)]
        for place, (at, _) in enumerate(run.history)
    ]
    return make_frame(rows, ["silo", "round", "score", "loss"])


def measures(result: Result) -> pd.DataFrame:
    """Return a row for each run, measure and silo, and for all silos, with the interval."""
    rows = [
        _row(result, number, {"measure": name, "silo": silo, **{key: getattr(each, key) for key in VALUES}})
        for number, run in enumerate(result.runs)
        for name, measured in run.measures.items()
        for silo, each in [("all", measured), *measured.silos.items()]
    ]
    return make_frame(rows, ["measure", "silo", *VALUES])


def gains(result: Result, measure: str | None) -> pd.DataFrame:
    """Return a row for each method and silo: its gain over training alone, largest first."""
    import pandas as pd

    known = result.runs[0].measures if result.runs else {}
    if measure is not None and measure not in (result.task.metric, *known):
        raise Problem(f"measure: there is no '{measure}' in this result; {nearest(measure, known)}")
    rows = [
        (each.label, silo, each.measure, gain)
        for each in gains_of(result, measure)
        for silo, gain in each.silos.items()
    ]
    return pd.DataFrame(rows, columns=["method", "silo", "measure", "gain"])


def learned(result: Result) -> pd.DataFrame:
    """Return a row for each run and silo with what the server learned of it."""
    names = list(dict.fromkeys(name for run in result.runs for name in run.learned))
    rows = [
        _row(result, number, {"silo": silo, **{name: run.learned.get(name, {}).get(silo) for name in names}})
        for number, run in enumerate(result.runs)
        if run.learned
        for silo in run.silos
    ]
    return make_frame(rows, ["silo", *names])


def _row(result: Result, number: int, facts: dict[str, Any]) -> Row:
    run = result.runs[number]
    return Row(number, run.method, run.settings, run.seed, facts)
