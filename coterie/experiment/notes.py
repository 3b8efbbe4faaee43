"""What a user should know before an experiment is planned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from ..privacy.budget import loose_deltas, values_of
from .learning_rate import NEEDS_RANGE

if TYPE_CHECKING:
    from ..data.federation import Federation
    from .experiment import Experiment

LARGE = 10  # features beyond this are remarked on
BUDGETS = {
    "own": "every silo keeps to its own budget",
    "minimum": "every silo keeps to the smallest budget",
    "maximum": "every silo spends the largest budget, which is more than most agreed to; for comparison only",
    "none": "no privacy; for comparison only",
    "uniform": "all silos add the same noise, and each leaves when its budget is spent",
    "closed-form": "the noise follows the closed form of Liu et al. 2021 where that is more than needed",
}


def _person_notes(federation: Federation) -> list[str]:
    """Return how many rows a training leaves out because one person has too many."""
    kept = federation.rows_each("person") or 1
    counts = [torch.bincount(silo.person) for silo in federation.silos if silo.person is not None]
    lost = sum(int((count - kept).clamp(min=0).sum()) for count in counts)
    if not lost:
        return []
    return [
        f"data.rows_per_person: {lost:,} of {sum(federation.sizes):,} training rows are left out, because a"
        f" person contributes at most {kept} rows; a larger number uses more rows and takes longer"
    ]


def notes_of(experiment: Experiment) -> list[str]:
    """Return a sentence for each thing that looks like a mistake, or that no budget covers."""
    federation, privacy, batch = experiment.federation, experiment.privacy, experiment.training.batch
    sizes, names = experiment.sizes, federation.names
    notes = list(federation.notes)
    listed = values_of(privacy.epsilon)
    if len(listed) == len(names) > 1 and not any(isinstance(value, Mapping) for value in listed):
        notes.append(
            f"privacy.epsilon: a list of {len(listed)} is one run per entry, and there are as many silos; for"
            " one number per silo use {'each': [...]}, or name the silos"
        )
    if experiment.budgets in ("maximum", "none"):
        notes.append(
            f"{experiment.method.title}, budgets = {experiment.budgets}: {BUDGETS[experiment.budgets]}"
        )
    if not torch.isinf(experiment.epsilon).all():
        protected = experiment.accounting.protected(sizes)
        notes += loose_deltas(experiment.delta[0].tolist(), protected, names, privacy.unit)
    notes += [f"not covered by any budget: {what}" for what in federation.not_covered]
    if not (federation.ids or federation.inputs) and any(
        float(silo.x.abs().max()) * federation.scale > LARGE for silo in federation.silos
    ):
        notes.append(  # without the number, which would be an exact statistic of somebody's example
            f"features exceed {LARGE}; because gradients are clipped, models learn better from numbers around"
            " one: load the data with feature_range (public bounds) or features"
        )
    preparation = federation.preparation
    bounded = preparation is None or preparation.target_range is not None
    if not federation.classes and not bounded and bool(experiment.lr.isnan().any()):
        notes.append(NEEDS_RANGE)
    if (start := experiment.task.adaptation.start) is not None:
        notes.append(
            f"model.start: '{start.path.name}' (SHA-256 {start.digest[:16]}) must be public, because nothing"
            " is charged for what it was trained on"
        )
    if small := [name for name, n in zip(names, sizes, strict=True) if n < batch]:
        notes.append(
            f"train.batch: {len(small)} silo(s), such as '{small[0]}', have fewer than {batch} training"
            f" {'persons' if privacy.unit == 'person' else 'examples'}: each of their batches is the whole"
            " silo (rate 1)"
        )
    if privacy.unit == "person":
        notes += _person_notes(federation)
    return notes
