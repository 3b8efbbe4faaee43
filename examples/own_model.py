"""Train your own model from Python, look at the scores, save one silo's model and load it again.

On the command line, use the same model with `--set model.name=own_model:network`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import coterie


def network(input_shape: tuple[int, ...], outputs: int, hidden: int = 32) -> nn.Module:
    """Return the model: any module works that treats each example on its own."""
    height, width = input_shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(height * width, hidden),
        nn.LayerNorm(hidden),
        nn.Tanh(),
        nn.Linear(hidden, outputs),
    )


def main() -> None:
    """Train personal models, then use one of them without Coterie."""
    federation = coterie.load("digits", silos=10, partition="dirichlet", alpha=0.3)
    result = coterie.run(
        federation,
        [coterie.Local(), coterie.FedAvg(), coterie.methods.Ditto(lam=0.1)],
        coterie.Privacy(epsilon=4, delta=1e-3),
        model="own_model:network" if __name__ != "__main__" else "__main__:network",
        rounds=20,
    )
    for row in result.summary:
        print(f"{row['method']:8} accuracy {row['mean']:.3f}, epsilon at most {row['epsilon']:.2f}")

    path = Path(tempfile.mkdtemp()) / "silo-3.safetensors"
    result.save_model("silo-3", path, run=2)
    model = coterie.load_model(path, module=network)
    silo = federation.silos[3]
    with torch.no_grad():
        right = (model.module(silo.test_x).argmax(1) == silo.test_y).float().mean()
    print(f"the model of silo-3, loaded into a plain module: accuracy {right:.3f} on its test examples")


if __name__ == "__main__":
    main()
