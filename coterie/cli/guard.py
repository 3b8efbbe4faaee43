"""`coterie guard`: make, run and steer the process that owns a silo's data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson

guard_app = typer.Typer(help="Make and run the guard of a silo's data.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="The guard's folder.")]


@guard_app.command("init")
def guard_init(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="The silo's data: a CSV, Parquet or .npz file.")],
    silo: Annotated[str, typer.Option(help="The silo's name, as plans will call it.")],
    coordinator: Annotated[Path, typer.Option(help="The coordinator's public key (a .pub file).")],
    epsilon: Annotated[float, typer.Option(help="Budget of the ledger for all trainings.")],
    delta: Annotated[float, typer.Option(help="Delta of that budget.")] = 1e-4,
    per_training: Annotated[float | None, typer.Option(help="Largest epsilon of one training.")] = None,
    target: Annotated[str | None, typer.Option(help="Column with the target (CSV, Parquet).")] = None,
    person: Annotated[
        str | None, typer.Option(help="Column that says whose rows are whose (CSV, Parquet).")
    ] = None,
    prepare: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file whose \\[data] table says how to prepare examples. All silos use the same one."
        ),
    ] = None,
    unit: Annotated[str, typer.Option(help="What the budget protects: example, person or silo.")] = "example",
    users: Annotated[
        list[str] | None, typer.Option("--user", help="A user who may ask (the node's).")
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(help="Where the guard answers; by default guard.sock in its folder.")
    ] = None,
) -> None:
    """Make a guard: its folder, key, ledger and a policy to edit."""
    from dataclasses import replace

    from ..data.federation import load
    from ..deploy.facts import read_preparation
    from ..deploy.guard_folder import make_guard
    from ..deploy.policy import policy_text
    from ..privacy.keys import read_public_key

    options = {} if prepare is None else read_preparation(prepare)
    named = {"target_column": target, "person_column": person}
    options |= {key: column for key, column in named.items() if column is not None}
    loaded = load(str(data), silos=1, partition="iid", **options)
    (only,) = loaded.silos
    for line in (*loaded.notes, *(f"not covered by any budget: {what}" for what in loaded.not_covered)):
        typer.echo(f"note: {line}", err=True)
    made = make_guard(
        folder,
        replace(only, name=silo),
        loaded.classes,
        loaded.name,
        read_public_key(coordinator),
        (epsilon, delta),
        policy_text(per_training or epsilon, epsilon),
        unit=unit,
        users=users or (),
        scale=loaded.scale,
        socket=None if socket is None else str(socket.absolute()),
        preparation=loaded.preparation,
    )
    typer.echo(f"made '{made.path}': edit policy.toml, then send what `coterie guard facts {folder}` prints")
    typer.echo(f"to whoever proposes plans, and start the guard with `coterie guard run {folder}`")


@guard_app.command("facts")
def guard_facts(folder: Folder) -> None:
    """Print what others may know of a silo: name, sizes, form of its examples, and public key."""
    from ..deploy.facts import facts_of
    from ..deploy.guard_folder import GuardFolder

    typer.echo(facts_of(GuardFolder(folder)).model_dump_json(indent=1))


@guard_app.command("run")
def guard_run(folder: Folder) -> None:
    """Answer requests until stopped."""
    from ..deploy.process import run_guard
    from .options import tune

    tune()
    run_guard(folder, ready=lambda line: typer.echo(line))


@guard_app.command("approve")
def guard_approve(
    folder: Folder,
    plan: Annotated[Path, typer.Argument(help="The plan, a JSON file.")],
    yes: Annotated[bool, typer.Option("--yes", help="Approve without asking.")] = False,
) -> None:
    """Show what a plan will do and cost, and approve it."""
    from ..deploy.approval import approval_lines, approve, check_paid
    from ..deploy.guard import Guard
    from ..deploy.guard_folder import GuardFolder
    from ..deploy.plan_file import read_plan

    guard = Guard(GuardFolder(folder))
    try:
        prepared = guard.prepare(read_plan(plan))
        guard.check_policy(prepared)
        for line in approval_lines(guard, prepared):
            typer.echo(line)
        check_paid(guard, prepared)
        if not yes and not typer.confirm("Approve this plan?"):
            raise typer.Exit(1)
        approve(guard, prepared)
        typer.echo("approved")
    finally:
        guard.close()


@guard_app.command("status")
def guard_status(folder: Folder, as_json: AsJson = False) -> None:
    """Show a guard's budget and its trainings."""
    from ..deploy.guard import Guard
    from ..deploy.guard_folder import GuardFolder

    guard = Guard(GuardFolder(folder))
    try:
        state = guard.ledger.state()
        facts: dict[str, Any] = {
            "silo": guard.silo,
            "budget": {unit: list(budget) for unit, budget in state.budgets.items()},
            "spent": {unit: state.total(unit, "shared")[0] for unit in state.budgets},
            "spent_delta": {unit: state.total(unit, "shared")[1] for unit in state.budgets},
            "policy": guard.policy.expired() or "valid",
            "trainings": [
                {"training": one.training, "status": one.status, "rounds": one.round, "epsilon": one.epsilon}
                for one in guard.store.trainings()
            ],
        }
    finally:
        guard.close()
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for unit, budget in facts["budget"].items():
        spent = f"{facts['spent'][unit]:.4g} of epsilon {budget[0]:g}"
        deltas = f"{facts['spent_delta'][unit]:.3g} of delta {budget[1]:g}"
        typer.echo(f"'{guard.silo}': {spent} and {deltas} spent ({unit})")
    typer.echo(f"policy: {facts['policy']}")
    for each in facts["trainings"]:
        shown = f"{each['status']}, {each['rounds']} rounds, epsilon {each['epsilon']:.4g}"
        typer.echo(f"  {each['training']}  {shown}")
