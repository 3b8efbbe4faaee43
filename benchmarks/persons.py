"""The unit 'person' beside the unit 'example': a small CNN on ten silos, four rows per person."""

from __future__ import annotations

import statistics
import time

import torch

from coterie.cohort.dp_sgd import Cohort, Settings, descend
from coterie.cohort.examples import Examples, Persons
from coterie.protocol.doors import Work
from coterie.protocol.streams import SeededStreams
from coterie.tasks.task import make_task

SILOS, ROWS, EACH, STEPS, REPEATS = 10, 640, 4, 10, 9
GOAL = 0.7


def party(task, members: int, batch: int, persons: Persons | None):
    """Return a function that takes the steps of one call: `batch` of so many members are expected in each."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(SILOS, ROWS, 28, 28, generator=generator)
    y = torch.randint(0, 10, (SILOS, ROWS), generator=generator)
    names = tuple(f"s{k}" for k in range(SILOS))
    examples = Examples(names, (members,) * SILOS, x, y, 1.0, persons=persons)
    full = torch.ones(1, SILOS)
    cohort = Cohort(task, examples, (Work(members, batch, STEPS),) * SILOS, Settings(0.1 * full, full, full))
    streams, state = SeededStreams(((0, 0),)), {"w": task.initial(0).expand(1, SILOS, -1), "round": 0}

    def run() -> None:
        state["w"] = descend(cohort, state["w"], streams, state["round"], 0)
        state["round"] += 1

    return run


def measure(batch: int) -> tuple[float, float, float]:
    """Return the seconds of both units for batches with so many rows, and the median of their ratios."""
    task, people = make_task("cnn", shape=(28, 28), classes=10), ROWS // EACH
    rows = torch.arange(ROWS).reshape(1, people, EACH).expand(SILOS, -1, -1)
    persons = Persons(rows, torch.full(rows.shape, 1 / EACH))
    parties = {
        "example": party(task, ROWS, batch, None),
        "person": party(task, people, batch // EACH, persons),
    }
    took: dict[str, list[float]] = {name: [] for name in parties}
    for turn in range(REPEATS + 1):
        for name, run in parties.items():
            began = time.perf_counter()
            run()
            if turn:
                took[name].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(took["example"], took["person"], strict=True)]
    return statistics.median(took["example"]), statistics.median(took["person"]), statistics.median(ratios)


def report() -> list[str]:
    """Return the table."""
    lines = [
        "## Persons",
        "",
        f"Rows per second of the unit 'person' ({EACH} rows each) over those of the unit 'example', for the same"
        " expected rows per batch: small CNN, 21,802 parameters, ten silos, ten steps per call.",
        "",
        f"| rows per batch | example, ms | person, ms | person : example (goal {GOAL}) |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for batch in (8, 32, 128):
        example, person, ratio = measure(batch)
        lines.append(f"| {batch} | {1000 * example:.1f} | {1000 * person:.1f} | {ratio:.2f} |")
    return [*lines, ""]
