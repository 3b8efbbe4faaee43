"""How far the automatic learning rate is from the best of a grid, by data set, model, privacy and method.

    python -m benchmarks.learning_rates FOLDER_WITH_DATA [part of a name ...] > docs/learning_rates.md

The constants of `coterie.experiment.learning_rate` were chosen on the sets marked "chosen on". The best of the
grid is the best on the test examples, one seed each, so it is too good: luck is on its side.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn import datasets

import coterie as ct

GRID = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
EPSILONS = (1.0, 8.0)
LINEAR = ("local", "fedavg", "mr-mtl", "ditto", "mocha")
NETWORK = ("local", "fedavg")


@dataclass(frozen=True)
class Case:
    """A federation, a model and the methods that learn it."""

    name: str
    load: Callable[[str], ct.Federation]
    model: str = "linear"
    options: tuple[tuple[str, Any], ...] = ()
    methods: tuple[str, ...] = LINEAR
    rounds: int = 30
    chosen_on: bool = True


def sklearn_table(
    maker: Callable[[], Any], silos: int, number: bool = False
) -> Callable[[str], ct.Federation]:
    """Return what loads one of scikit-learn's tables, with every column and a numeric target scaled to [0, 1]."""

    def load(_: str) -> ct.Federation:
        table = maker()
        low, high = table.data.min(0), table.data.max(0)
        x = ((table.data - low) / np.where(high > low, high - low, 1)).astype(np.float32)
        y = table.target.astype(np.float32 if number else np.int64)
        bounds = (float(y.min()), float(y.max())) if number else None
        return ct.load({"x": x, "y": y}, silos=silos, target_range=bounds)

    return load


def file(name: str, **options: Any) -> Callable[[str], ct.Federation]:
    """Return what loads a named data set from the folder."""
    return lambda folder: ct.load(name, data_dir=folder, **options)


def digits(_: str) -> ct.Federation:
    """Load the demo's silos."""
    return ct.load("digits", silos=10, partition="dirichlet", alpha=0.15)


HAR = file("har", silos=15, rows=4000)
WRITERS = file("mnist", silos=30)
CASES = (
    Case("digits", digits),
    Case("breast cancer", sklearn_table(datasets.load_breast_cancer, 5)),
    Case("wine", sklearn_table(datasets.load_wine, 3)),
    Case("HAR, 15 people", HAR, methods=NETWORK),
    Case("diabetes", sklearn_table(datasets.load_diabetes, 4, number=True)),
    Case("School, 40, standardized", file("school", silos=40, target_range=(1, 70), features="standardize")),
    Case("digits", digits, "mlp", (("hidden", 32),), NETWORK),
    Case("breast cancer", sklearn_table(datasets.load_breast_cancer, 5), "mlp", (("hidden", 32),), NETWORK),
    Case("vehicle", file("vehicle_subset", min_examples=20), chosen_on=False),
    Case("iris", sklearn_table(datasets.load_iris, 3), chosen_on=False),
    Case("MNIST, 30 writers", WRITERS, chosen_on=False),
    Case("MNIST, 30 writers", WRITERS, "mlp", (("hidden", 32),), NETWORK, chosen_on=False),
    Case("MNIST, 30 writers", WRITERS, "cnn", (("channels", 4),), ("fedavg",), 15, chosen_on=False),
    Case(
        "FEMNIST, 20 writers", file("femnist", silos=20, features="invert"), methods=NETWORK, chosen_on=False
    ),
)


def scores(case: Case, data: ct.Federation, method: str, epsilon: float) -> tuple[list[float], str, bool]:
    """Return the test scores of the grid and of "auto", what "auto" was, and whether higher is better."""
    privacy = ct.Privacy(epsilon=epsilon, delta=1e-3)
    how = {"model": case.model, "model_options": dict(case.options) or None, "rounds": case.rounds}
    result = ct.run(data, method, privacy, lr=[*GRID, "auto"], **how)
    note = next(note for note in result.notes if "train.lr = 'auto' is" in note)
    found = note.partition("'auto' is ")[2].partition(",")[0]
    return [float(row["mean"]) for row in result.summary], found, bool(data.classes)


def summary(gaps: list[Gap]) -> list[str]:
    """Return sentences about the middle and the worst case, and about the default of earlier versions."""
    lines = []
    for higher, words in (
        (True, "accuracy below the best of the grid"),
        (False, "error above it, as a share"),
    ):
        for fresh, which in ((False, "all"), (True, "sets that the constants were not chosen on")):
            some = [gap for gap in gaps if gap.higher is higher and gap.fresh >= fresh]
            if not some:
                continue
            worst = max(some, key=lambda gap: gap.auto)
            auto, before = (float(np.median([getattr(g, key) for g in some])) for key in ("auto", "before"))
            lines.append(
                f"{words.capitalize()}, {which}: median {auto:.3f}, worst {worst.auto:.3f} ({worst.where}); with"
                f" the rate .1: median {before:.3f}, worst {max(gap.before for gap in some):.3f}."
            )
    return lines


class Gap(NamedTuple):
    """How far from the best of the grid "auto" and the rate .1 are, in one case."""

    higher: bool
    fresh: bool
    auto: float
    before: float
    where: str


def gap_of(higher: bool, fresh: bool, auto: float, best: float, before: float, where: str) -> Gap:
    """Return the gaps: differences of accuracy, or shares of the least error."""
    far = [(best - value) if higher else (value - best) / best for value in (auto, before)]
    return Gap(higher, fresh, far[0], far[1], where)


def main() -> None:
    """Print the page."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, *wanted = sys.argv[1:]
    print(HEAD)
    gaps: list[Gap] = []
    for case in CASES:
        if wanted and not any(word in case.name for word in wanted):
            continue
        data = case.load(folder)
        for epsilon in EPSILONS:
            for method in case.methods:
                found, chosen, higher = scores(case, data, method, epsilon)
                *grid, auto = found
                place = int((np.nanargmax if higher else np.nanargmin)(grid))
                best, before = grid[place], grid[GRID.index(0.1)]
                cells = [case.name, case.model, f"{epsilon:g}", method, chosen, f"{auto:.4f}"]
                cells += [f"{best:.4f}", f"{GRID[place]:g}", f"{before:.4f}"]
                print(f"| {' | '.join(cells)} | {'yes' if case.chosen_on else ''} |", flush=True)
                where = f"{case.name}, {case.model}, {method}, epsilon {epsilon:g}"
                gaps.append(gap_of(higher, not case.chosen_on, auto, best, before, where))
    print()
    print("\n".join(f"- {line}" for line in summary(gaps)))


HEAD = """# A learning rate that follows from public facts

With `train.lr = "auto"`, the default, each silo's learning rate is

    lr = min(3, D / (sqrt(1 + P (sigma / B)^2) sqrt(T))) / C

for clip C, noise multiplier sigma, expected batch B, T steps in all rounds together, and P trained parameters.
It is the rate of projected SGD for noisy gradients of this length and a solution at distance D: 30 for classes,
0.5 for a number between 0 and 1. Everything in it is public once a plan is made, so it costs no privacy.

Without a clip (no privacy, or `unit = "silo"`), gradients have no known length, and the rate is 0.1 for classes
and 0.01 for numbers. Adam steps by 0.03 and 0.01. With momentum m, the rate is 1 - m times as large.

A pull, as that of `mr-mtl`, and an automatic rate balance each other whatever both are: the step is the proximal
one, with the rate lr / (1 + lr x pull). A learning rate that was given keeps its steps, unless lr x pull is above
1: then its steps are proximal too, because they would move a model beyond what pulls it.

## Measured
One seed, batches of 32, delta 1e-3, 30 rounds of one pass (`cnn`: 15). Accuracy on test examples, or squared
error for diabetes and School. "Best" is the best of the rates .01, .03, .1, .3, 1 and 3 on the *test* examples,
which nobody could choose with privacy. ".1" is the default of earlier versions. The constants were chosen on the
sets marked in the last column. Wine and iris have 36 and 30 test examples, so one hit is worth .03.
`python -m benchmarks.learning_rates FOLDER` measures all of it.

| data | model | epsilon | method | auto is | auto | best | at | .1 | chosen on |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


if __name__ == "__main__":
    main()
