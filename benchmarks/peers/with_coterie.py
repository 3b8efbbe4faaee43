"""Coterie's own engine, on the same silos; it draws Poisson batches."""

from __future__ import annotations

import sys

import torch

import coterie
from benchmarks.peers import job as jobs
from benchmarks.writers import federation, rounds
from coterie.methods import FedAvg


def main(path: str) -> None:
    coterie.tune_process()
    job = jobs.read(path)
    data, _ = federation()
    clock = jobs.Clock()
    clock.tick()
    for _ in rounds(data, FedAvg(), len(job.cohorts) - 1, job.batch, clock.tick):
        pass
    clock.tell(f"torch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main(sys.argv[1])
