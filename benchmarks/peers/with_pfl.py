"""Apple's pfl: federated averaging on its simulated backend, central Gaussian mechanism.

Run by torchrun with two processes, each is a worker of pfl on one core.
"""

from __future__ import annotations

import itertools
import os
import sys
from importlib.metadata import version

import job as jobs
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism


class Ticks(TrainingProcessCallback):
    """Notes the time after every round."""

    def __init__(self, clock: jobs.Clock):
        self.clock = clock

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.clock.tick()
        return False, Metrics()


def main(path: str) -> None:
    job = jobs.read(path)
    torch.manual_seed(0)
    module = jobs.model(job.channels)
    module.loss = lambda x, y: F.cross_entropy(module(x), y)
    module.metrics = lambda x, y: {}
    central = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, torch.optim.SGD, central)
    order = itertools.chain.from_iterable(job.cohorts)
    data = FederatedDataset(lambda k: PyTorchTensorDataset(job.silos[k], user_id=str(k)), lambda: next(order))
    private = CentrallyAppliedPrivacyMechanism(GaussianMechanism(job.clip, job.noise))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[private])
    rounds, cohort = len(job.cohorts), len(job.cohorts[0])
    workers = pytorch_ops.distributed.world_size
    clock = jobs.Clock(os.getppid() if workers > 1 else None)  # torchrun started all workers
    clock.tick()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=cohort,
            val_cohort_size=None,
        ),
        backend,
        model,
        NNTrainHyperParams(local_batch_size=job.batch, local_num_epochs=1, local_learning_rate=job.rate),
        callbacks=[Ticks(clock)],
    )
    if pytorch_ops.distributed.global_rank == 0:
        each = f"{workers} x {torch.get_num_threads()} threads"
        clock.tell(f"pfl {version('pfl')}, torch {torch.__version__}, {each}")


if __name__ == "__main__":
    main(sys.argv[1])
