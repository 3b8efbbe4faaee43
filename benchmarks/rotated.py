"""Rotated MNIST: do clusters, chosen under privacy, become the rotations? Not part of `make bench`.

python -m benchmarks.rotated [CONFIG] [KEY=VALUE ...]      (CONFIG: else examples/rotated_mnist.toml)
"""

from __future__ import annotations

import statistics
import sys

import torch
from sklearn.metrics import adjusted_rand_score

from coterie.experiment.config.schema import read
from coterie.experiment.from_config import make_experiments


def main() -> None:
    """Train each method of the configuration, and tell scores and agreement with the rotations."""
    given = sys.argv[1:]
    config = given.pop(0) if given and given[0].endswith(".toml") else "examples/rotated_mnist.toml"
    asked = read(config, given)
    print("| method | accuracy | ± | adjusted Rand index |\n| --- | --- | --- | --- |", flush=True)
    for made in make_experiments(asked):
        result = made.train()
        silos = len(made.federation)
        truth = [k * (asked.data.rotations or 1) // silos for k in range(silos)]
        for row in result.summary:
            at = [r for r, run in enumerate(result.runs) if run.settings == row["settings"]]
            found = ""
            if row["method"] == "ifca":
                index = [adjusted_rand_score(truth, groups(result.vectors[r])) for r in at]
                found = f"{min(index):.3f} to {max(index):.3f}, mean {statistics.fmean(index):.3f}"
            name = " ".join((row["method"], *(f"{k}={v}" for k, v in row["settings"].items())))
            print(f"| {name} | {row['mean']:.4f} | {row['std']:.4f} | {found} |", flush=True)


def groups(vectors: torch.Tensor) -> list[int]:
    """Give silos with equal models equal numbers."""
    return [int(number) for number in torch.unique(vectors, dim=0, return_inverse=True)[1]]


if __name__ == "__main__":
    main()
