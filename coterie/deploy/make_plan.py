"""Making a plan for silos from a configuration and their public facts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict

import torch

from .. import __version__
from ..data.federation import Federation
from ..errors import Problem
from ..experiment.config.schema import Config
from ..privacy.keys import PublicKey, now, stamp
from .plan_file import FORMAT, PlanFile, check_metrics, plan_of, read_plan
from .plan_methods import with_contents
from .sum_terms import check_sums

OWN = {  # keys that a deployment does not use, and what it has instead
    "privacy": {
        "ledger": "every guard has a ledger of its own",
        "keys": "every guard signs with its own key",
        "witness": "every guard and the coordinator have witnesses of their own",
    },
    "train": {"checkpoint": "a coordinator keeps a checkpoint after every round"},
}


def check_data(federation: Federation) -> None:
    """Raise `Problem` for examples that a guard cannot hold."""
    if federation.targets:
        raise Problem(
            f"data: a deployment predicts one target, but '{federation.name}' has {len(federation.targets)}:"
            " make a plan for each"
        )


def check_used(config: Config) -> None:
    """Raise `Problem` for a table that a deployment cannot follow."""
    if config.tuning is not None:
        raise Problem(
            "tuning: a deployment draws no trials: remove [tuning]; train a plan for each setting and choose"
            " by noised scores ([scores]), or tune in a simulation with `coterie sweep`"
        )
    check_metrics(config)
    if config.model.start is not None:
        raise Problem(
            "model.start: a deployment sends no files, and guards open none that a plan names: leave it out"
        )
    if config.data.features == "ids":
        raise Problem(
            "data.features: a deployment trains on numbers, not on 'ids': train on them in a simulation"
        )


def ignored(config: Config) -> list[str]:
    """Return a sentence for each key of a configuration that a deployment does not use."""
    return [
        f"{table}.{key}: not used here: {instead}"
        for table, keys in OWN.items()
        for key, instead in keys.items()
        if getattr(getattr(config, table), key) is not None
    ]


def make_plan(
    config: Config,
    federation: Federation,
    coordinator: PublicKey,
    keys: Mapping[str, PublicKey],
    *,
    fewest: int | None = None,
    most_bytes: int = 2**30,
    seconds: float = 600.0,
) -> PlanFile:
    """Return a new plan for a configuration of one run and the public facts of a federation.

    `keys` are those of the silos, by name. What the plan does not use of the configuration, `ignored` says.
    """
    if missing := [name for name in federation.names if name not in keys]:
        raise Problem(f"the plan needs a key of every silo; there is none of {', '.join(missing)}")
    check_used(config)
    check_data(federation)
    tables = config.model_dump(mode="json", exclude_none=True)
    for table, unused in OWN.items():
        for name in unused:
            tables[table].pop(name, None)
    tables["data"]["source"] = federation.name
    tables["method"] = with_contents(tables["method"])
    first = federation.silos[0]
    facts = {
        "name": federation.name,
        "shape": list(federation.shape),
        "classes": list(federation.classes),
        "scale": federation.scale,
        "bytes": first.x.dtype == torch.uint8,
        "not_covered": list(federation.not_covered),
        "silos": [
            {
                "name": silo.name,
                "train": len(silo.y),
                "test": len(silo.test_y),
                "key": keys[silo.name].facts(),
                **({} if silo.persons is None else {"persons": asdict(silo.persons)}),
            }
            for silo in federation.silos
        ],
    }
    content = {
        "format": FORMAT,
        "training": secrets.token_hex(16),
        "made": stamp(now()),
        "software": __version__,
        "coordinator": coordinator.facts(),
        "config": tables,
        "facts": facts,
        "fewest": len(federation) - config.privacy.dropouts if fewest is None else fewest,
        "limits": {"bytes": most_bytes, "seconds": seconds},
    }
    if federation.inputs:
        raise Problem("data: a deployment trains on one input per example, not on several")
    made = read_plan(content)
    check_sums(made, plan_of(made.blank, made))
    return made
