"""Flower's simulation engine: FedAvg, server-side fixed clipping.

Clients have a core and a thread each, the quickest setting here; with `as-it-comes` before the job, what Flower
and torch choose by themselves.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")

import job as jobs
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

TUNED = "as-it-comes" not in sys.argv
PATH = os.path.abspath(sys.argv[-1])  # noqa: PTH100
CLOCK = jobs.Clock()
client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    if TUNED:
        torch.set_num_threads(1)
    job = jobs.read_once(PATH)
    module = jobs.model(job.channels)
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = job.silos[context.node_config["partition-id"]]
    jobs.train(module, x, y, job)
    # one: the mean is uniform, as the noise needs
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    return Message(content=RecordDict(content), reply_to=message)


class Timed(DifferentialPrivacyServerSideFixedClipping):
    """Notes the time at the beginning of every round and at the end of the last."""

    def configure_train(self, *given):
        CLOCK.tick()
        return super().configure_train(*given)

    def aggregate_train(self, server_round, replies):
        found = list(replies)
        if len(found) != self.num_sampled_clients or any(reply.has_error() for reply in found):
            raise RuntimeError("a client failed")
        return super().aggregate_train(server_round, found)


@server.main()
def main(grid: Grid, context: Context) -> None:
    job = jobs.read(PATH)
    cohort = len(job.cohorts[0])
    share = cohort / len(job.silos)
    inner = FedAvg(
        fraction_train=share,
        fraction_evaluate=0.0,
        min_train_nodes=cohort,
        min_available_nodes=len(job.silos),
    )
    strategy = Timed(inner, noise_multiplier=job.noise, clipping_norm=job.clip, num_sampled_clients=cohort)
    start = ArrayRecord(jobs.model(job.channels).state_dict())
    strategy.start(grid=grid, initial_arrays=start, num_rounds=len(job.cohorts))
    CLOCK.tick()


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=len(jobs.read(PATH).silos),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count()},
        }
        if TUNED
        else None,
    )
    each = f"{os.cpu_count()} clients at a time, 1 thread each" if TUNED else "settings as they come"
    CLOCK.tell(f"flwr {version('flwr')}, ray {version('ray')}, torch {torch.__version__}, {each}")
