"""A small transformer on sentences, from a public start: everything, adapters or only the head trained privately."""

from __future__ import annotations

import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from coterie.cohort.gradients.clipping import bytes_of_a_row
from coterie.data.federation import Federation, Silo
from coterie.experiment.experiment import Experiment
from coterie.methods import FedAvg
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.tasks.adaptation import Adaptation
from coterie.tasks.start import Start
from coterie.tasks.task import Task

WORDS, LENGTH, CLASSES, WIDTH = 300, 24, 6, 64
SILOS, SIZE, ROUNDS, SEEDS = 10, 200, 10, (0, 1)


class Encoder(nn.Module):
    """Words, places and two layers of attention, as a mean over the sentence."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        places = self.places(torch.arange(LENGTH, device=x.device))
        return self.layers(self.words(x) + places).mean(1)


def network():
    return nn.Sequential(Encoder(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES))


def sentences(count: int, topics: torch.Tensor, generator: torch.Generator):
    """Sentences whose words come from two topics; the label says which of the pairs."""
    y = torch.randint(0, len(topics), (count,), generator=generator)
    own = torch.multinomial(topics[y], LENGTH, replacement=True, generator=generator)
    noise = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    return torch.where(torch.rand(count, LENGTH, generator=generator) < 0.5, own, noise), y


def public_start(folder: Path, generator: torch.Generator) -> Start:
    """Train on public sentences about other questions with the same words, and save the encoder."""
    torch.manual_seed(0)
    module = nn.Sequential(Encoder(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40))
    x, y = sentences(8000, topics_of(40, torch.Generator().manual_seed(1)), generator)
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    for _ in range(400):
        rows = torch.randint(0, len(y), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(module(x[rows]), y[rows]).backward()
        optimizer.step()
    kept = {name: value for name, value in module.state_dict().items() if not name.startswith("2.")}
    save_file(kept, str(folder / "public.safetensors"))
    return Start(folder / "public.safetensors")


def topics_of(count: int, generator: torch.Generator) -> torch.Tensor:
    """Mixtures of 20 groups of words that mean the same, one mixture for each class."""
    group = torch.arange(WORDS) % 20
    mixture = torch.rand(count, 20, generator=generator) ** 4
    return mixture[:, group]


def federation(generator: torch.Generator) -> Federation:
    topics = topics_of(CLASSES, torch.Generator().manual_seed(2))
    silos = []
    for k in range(SILOS):
        x, y = sentences(2 * SIZE, topics, generator)
        silos.append(Silo(f"silo-{k}", x[:SIZE], y[:SIZE], x[SIZE:], y[SIZE:]))
    return Federation("sentences", tuple(silos), tuple(map(str, range(CLASSES))), ids=True)


def measure(data: Federation, adaptation: Adaptation, lr: float, epsilon: float = 4.0):
    """Return the number of trained parameters, the mean score, seconds and bytes of a row of examples."""
    task = Task(network, "cross-entropy", (LENGTH,), CLASSES, ids=True, adaptation=adaptation)
    training = Training(rounds=ROUNDS, batch=50, lr=lr, seeds=SEEDS)
    made = Experiment(data, task, FedAvg(), Privacy(epsilon, delta=1e-4), training)
    made.check()
    cohort = made.cohort(made.plan())
    began = time.perf_counter()
    result = made.train()
    took = time.perf_counter() - began
    score = sum(row["mean"] for row in result.summary) / len(result.summary)
    return task.layout.size, score, took, bytes_of_a_row(cohort.task)


def report() -> list[str]:
    generator = torch.Generator().manual_seed(0)
    lines = [
        "## A small transformer, trained privately",
        "",
        f"Ten silos of {SIZE} sentences of {LENGTH} words, {CLASSES} classes; {ROUNDS} rounds of FedAvg, epsilon 4"
        f" per silo, delta 1e-4, mean of {len(SEEDS)} seeds, the better of the learning rates .3 and 1. The"
        " public start was trained on other questions about the same words. Memory is that of a row of 8 examples.",
        "",
        "| trained | start | parameters | accuracy | seconds | memory of a row | message |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    data = federation(generator)
    with tempfile.TemporaryDirectory() as folder:
        start = public_start(Path(folder), generator)
        whole = Adaptation(start=start)
        for what, begin, adaptation in (
            ("everything", "random", Adaptation()),
            ("everything", "public", whole),
            ("adapters of rank 4 and the head", "public", replace(whole, lora=4, only=("2",))),
            ("the head, on kept features", "public", replace(whole, only=("1", "2"))),
        ):
            tried = [measure(data, adaptation, lr) for lr in (0.3, 1.0)]
            size, score, _, row = max(tried, key=lambda each: each[1])
            took = min(each[2] for each in tried)
            lines.append(
                f"| {what} | {begin} | {size:,} | {score:.3f} | {took:.1f} | {row / 2**10:,.0f} kB | {4 * size:,} B |"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return [*lines, "", f"Peak memory of the whole process: {peak:,.0f} MB."]
