"""Make the job of a benchmark from the silos that Coterie trains on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks import writers
from coterie.planning.schedule import Participation, schedule
from coterie.protocol.doors import epochs_of_work
from coterie.tasks.models import cnn

from . import job as jobs


def make(path: Path, rounds: int, batch: int, noise: float = 1.0) -> str:
    """Write the job of so many rounds and one to warm up; give the name of the data."""
    data, name = writers.federation()
    if repr(cnn((28, 28), jobs.CLASSES, writers.CHANNELS)) != repr(jobs.model(writers.CHANNELS)):
        raise SystemExit("the peers' model is not Coterie's")
    generator = np.random.default_rng(0)
    parts, starts = [], [0]
    for silo in data.silos:
        rows = batch * epochs_of_work(len(silo.y), batch, 1.0).steps
        order = np.concatenate([generator.permutation(len(silo.y)) for _ in range(1 + rows // len(silo.y))])
        parts.append((silo.x.numpy()[order[:rows]], silo.y.numpy()[order[:rows]]))
        starts.append(starts[-1] + rows)
    present = schedule(Participation(writers.SHARE), 0, writers.SILOS, rounds + 1).numpy()
    cohorts = np.stack([np.flatnonzero(row) for row in present])
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    settings = {
        "channels": writers.CHANNELS,
        "batch": batch,
        "rate": writers.RATE,
        "clip": writers.CLIP,
        "noise": noise,
    }
    jobs.write(path, x, y, starts, cohorts, **settings)
    return name
