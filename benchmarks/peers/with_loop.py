"""A plain loop over the silos: one module, plain SGD; clip, mean and noise by hand."""

from __future__ import annotations

import sys

import job as jobs
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def main(path: str) -> None:
    job = jobs.read(path)
    module = jobs.model(job.channels)
    shared = parameters_to_vector(module.parameters()).detach()
    clock = jobs.Clock()
    for cohort in job.cohorts:
        clock.tick()
        total = torch.zeros_like(shared, dtype=torch.float64)
        for k in cohort:
            vector_to_parameters(shared.clone(), module.parameters())
            jobs.train(module, *job.silos[k], job)
            update = (parameters_to_vector(module.parameters()).detach() - shared).double()
            total += update * min(1.0, job.clip / float(update.norm()))
        total += job.noise * job.clip * torch.randn_like(total)
        shared = shared + (total / len(cohort)).float()
    clock.tick()
    clock.tell(f"torch {torch.__version__}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main(sys.argv[1])
