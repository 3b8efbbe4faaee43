"""Dual coordinates on many devices: what a round costs, and what ten times the devices cost."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np

from coterie.data.federation import Federation, from_table, load
from coterie.data.sources.table import Table
from coterie.engines.simulation import simulate
from coterie.errors import Problem
from coterie.experiment.experiment import Experiment
from coterie.methods import Dual
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.tasks.task import make_task

TURNS, ROUNDS, TIMES, GOAL, ALL = 3, 400, 10, 11.0, 20_000


def federation() -> tuple[Federation, str]:
    """HAR, sitting against the rest, from COTERIE_DATA; else made-up devices of that size."""
    try:
        return load("har", positive="3", features="unit", test=0.25), "HAR"
    except Problem:
        generator = np.random.default_rng(0)
        x = generator.normal(size=(30 * 343, 561)).astype(np.float32)
        y = np.where(x[:, 0] > 0, "yes", "no")
        table = Table("made up", x, y, np.repeat([f"d{k}" for k in range(30)], 343))
        return from_table(table, features="unit", test=0.25), "made-up devices of HAR's size"


def report() -> list[str]:
    data, name = federation()
    copies = [replace(silo, name=f"{silo.name}-{k}") for k in range(TIMES) for silo in data.silos]
    many = replace(data, silos=tuple(copies))
    _seconds(data, 20)
    turns = [(_seconds(data, ROUNDS), _seconds(many, ROUNDS)) for _ in range(TURNS)]
    each = statistics.median(few for few, _ in turns) / ROUNDS
    ratio = statistics.median(more / few for few, more in turns)
    return [
        f"## {name}: dual coordinates, {len(data)} devices and {TIMES} times as many",
        "",
        f"Certified for each example, 24 coordinates a round, {ROUNDS} rounds; medians of {TURNS} turns. Training only.",
        "",
        f"| a round | {ALL:,} rounds at that pace | {TIMES} times the devices | goal |",
        "| --- | --- | --- | --- |",
        f"| {each * 1e3:.2f} ms | {each * ALL:.0f} s | {ratio:.1f} times | {GOAL:g} times |",
    ]


def _seconds(data: Federation, rounds: int) -> float:
    """Train so many rounds, after one to warm up."""
    task = make_task("linear", shape=data.shape, classes=2, loss="hinge", options={"bias": False})
    training = Training(rounds=rounds + 1, steps=1, batch=24, seeds=(0,))
    made = Experiment(data, task, Dual(lam=0.01, beta=10.0, inner=100), Privacy(8.0, 1e-3, 0.003), training)
    plan = made.plan()
    states = simulate(made.running, made.cohort(plan), plan, made.roster, [0], made.streams())
    next(states)
    next(states)
    began = time.perf_counter()
    for _ in states:
        pass
    return time.perf_counter() - began
