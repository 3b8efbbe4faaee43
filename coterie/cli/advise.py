"""What `coterie advise` prints: which silos would gain by joining, before anything is trained."""

from __future__ import annotations

import json
import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._json import finite
from ..experiment.advise import Advice, Range, advise, check_advice
from ..experiment.config.schema import Config
from ..experiment.from_config import load_federation, privacy_of, task_of
from ..experiment.suggest import Suggestion, suggestion
from ..privacy.budget import loose_deltas
from ..report.terminal import MOST_SILOS, compact, number
from ..theory.advice import Forecast, fedavg_limits
from .progress import tell

MODEL = (
    "This is a forecast from a model (mean estimation: each silo publishes one number, once), not a"
    " measurement. It uses only sizes and budgets, no examples, and assumes that the best lam is known for"
    " each tau."
)


def advise_config(
    config: Config,
    spreads: tuple[float, float] | None,
    deviation: float | None,
    *,
    data_dir: str | None = None,
    as_json: bool = False,
) -> None:
    """Show the forecasts for a configuration; nothing is trained."""
    privacy = privacy_of(config.privacy)
    check_advice(privacy, spreads)
    federation = load_federation(config, data_dir)
    forecasts = advise(federation, privacy, spread=spreads, deviation=deviation)
    task = task_of(config, federation)
    kind = "classes" if task.classes else "numbers"
    first = suggestion(forecasts[0], task.layout.size, kind) if len(forecasts) == 1 else None
    sizes = federation.protected_sizes(privacy.unit)
    notes = loose_deltas(forecasts[0].delta, sizes, federation.names, privacy.unit)
    if as_json:
        facts: dict[str, Any] = {
            "model": MODEL,
            "forecasts": [advice_facts(advice) for advice in forecasts],
            "notes": notes,
        }
        facts["suggestion"] = None if first is None else first.facts()
        print(json.dumps(finite(facts), indent=2))
        return
    out = Console()
    for advice in forecasts:
        out.print(advice_table(advice))
        for sentence in summary(advice):
            tell(out, sentence)
    for note in notes:
        tell(out, f"note: {note}", "yellow")
    if first is not None:
        for sentence in suggested(first):
            tell(out, sentence)
    tell(out, MODEL, "bold")


def suggested(first: Suggestion) -> list[str]:
    """Return a suggestion as sentences."""
    settings = f"rounds = {first.rounds}, batch = {first.batch} and lr = 'auto' ({first.lr:g})"
    start = f"To try first: {first.method} with {settings}."
    return [start, *(f"  {reason}" for reason in first.reasons)]


def summary(advice: Advice) -> list[str]:
    """Return sentences that say how many silos gain."""
    low, high, silos = advice.low, advice.high, len(advice.names)
    ends = [low] if low.silo_spread == high.silo_spread else [low, high]
    within = (
        f"tau = {number(low.silo_spread)}" if len(ends) == 1 else f"tau from {number(low.silo_spread)} up to"
    )
    within += "" if len(ends) == 1 else f" {number(high.silo_spread)}"
    lines = [f"{advice.throughout} of {silos} silos gain by joining if silos differ by {within}."]
    for end in ends:
        better = int((end.fedavg < end.local).sum())
        lines.append(
            f"  tau {number(end.silo_spread)}: {int(end.gains.sum())} gain with MR-MTL (best lam"
            f" {_lam(end)}), {better} with FedAvg; squared errors, weighted by size, are"
            f" {_ratio(advice, end.mr_mtl)} and {_ratio(advice, end.fedavg)} times those of Local"
        )
    return lines


def _lam(end: Forecast) -> str:
    return "infinite" if math.isinf(end.lam) else number(end.lam, 3)


def _ratio(advice: Advice, errors: Any) -> str:
    """Return the ratio of errors to those of Local, weighted by size."""
    shares = advice.circle.shares
    return number(float((shares * errors).sum() / (shares * advice.low.local).sum()), 3)


def advice_table(advice: Advice) -> Table:
    """Return a table with a row per silo: errors at both ends of tau, and where the silo gains by joining."""
    shown = "".join(f", {key} {value}" for key, value in advice.settings.items())
    table = compact(
        f"Forecast (not measured): root of the expected squared error{escape(shown)}; {advice.unit}s have"
        f" deviation {number(advice.circle.deviation)}, silos tau"
    )
    table.add_column("silo", no_wrap=True)
    heads = ["size", "epsilon", "noise", "Local"]
    for end in (advice.low, advice.high):
        heads += [f"{method}\ntau\n{number(end.silo_spread, 3)}" for method in ("MR-MTL", "FedAvg")]
    for head in (*heads, "gains\nif tau\nis"):
        table.add_column(head, justify="right", no_wrap=True)
    for k in range(min(len(advice.names), MOST_SILOS)):
        table.add_row(*_row(advice, k))
    if len(advice.names) > MOST_SILOS:
        table.caption = f"{len(advice.names) - MOST_SILOS} more silos: --json shows all."
    return table


def _row(advice: Advice, k: int) -> list[str]:
    local = float(advice.low.local[k])
    cells = [escape(advice.names[k]), str(_size(advice, k)), number(advice.epsilon[k])]
    cells += [number(advice.multipliers[k], 3), number(math.sqrt(local), 3)]
    for end in (advice.low, advice.high):
        errors = (float(end.mr_mtl[k]), float(end.fedavg[k]))
        least = min(local, *errors)
        texts = [number(math.sqrt(error), 3) for error in errors]
        cells += [f"[bold]{t}[/]" if e == least else t for t, e in zip(texts, errors, strict=True)]
    return [*cells, _where(advice.ranges[k])]


def _size(advice: Advice, k: int) -> int:
    sizes: Any = advice.circle.examples
    return int(sizes[k])


def _where(taus: Range) -> str:
    """Return a range of tau in words."""
    if taus is None:
        return "never"
    low, high = taus
    if math.isinf(high):
        return "any" if low == 0 else f"> {number(low, 3)}"
    return f"< {number(high, 3)}"


def advice_facts(advice: Advice) -> dict[str, Any]:
    """Return a forecast as plain data; errors are expected squared errors, and null means infinite."""
    ends = {"low": advice.low, "high": advice.high}
    return {
        "settings": advice.settings,
        "deviation": advice.circle.deviation,
        "spread": {end: forecast.silo_spread for end, forecast in ends.items()},
        "lam": {end: forecast.lam for end, forecast in ends.items()},
        "gain": {end: int(forecast.gains.sum()) for end, forecast in ends.items()}
        | {"throughout": advice.throughout},
        "summary": summary(advice)[0],
        "silos": {name: _silo_facts(advice, k) for k, name in enumerate(advice.names)},
    }


def _silo_facts(advice: Advice, k: int) -> dict[str, Any]:
    taus = advice.ranges[k]
    facts: dict[str, Any] = {
        f"{advice.unit}s": _size(advice, k),
        "epsilon": advice.epsilon[k],
        "delta": advice.delta[k],
        "clip": advice.clip[k],
        "noise": advice.multipliers[k],
        "local": float(advice.low.local[k]),
        "joining_pays": None if taus is None else {"above": taus[0], "below": taus[1]},
        "fedavg_pays_below": float(fedavg_limits(advice.circle)[k]),
    }
    for end, forecast in (("low", advice.low), ("high", advice.high)):
        errors = {"mr-mtl": forecast.mr_mtl, "fedavg": forecast.fedavg, "best": forecast.best}
        facts[end] = {name: float(value[k]) for name, value in errors.items()}
        facts[end]["gains"] = bool(forecast.gains[k])
    return facts
