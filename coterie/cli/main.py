"""The command line. Heavy modules are imported where they are used, so that help is quick."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from .groups import GROUPS
from .options import (
    Allow,
    AsJson,
    Changes,
    ConfigCommand,
    ConfigPath,
    DataDir,
    DeltaOption,
    Device,
    Keys,
    LedgerFolder,
    PersonColumn,
    Rate,
    SamplerOption,
    SiloColumn,
    Steps,
    TargetColumn,
    WitnessFolder,
    read_config,
    tune,
)

app = typer.Typer(
    help="Private, personalized federated learning: a model for every silo, a budget for every silo.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


def _version(shown: bool) -> None:
    if shown:
        from .. import __version__

        typer.echo(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for results (default: runs/demo-N).")] = None,
) -> None:
    """Train three methods for ten silos with three budgets; nothing is downloaded."""
    from ..experiment.config.schema import check
    from .demo import DEMO, INTRODUCTION
    from .run import run_config

    tune()
    run_config(check(DEMO, "demo"), out, "demo", introduction=INTRODUCTION)


@app.command()
def init(
    data: Annotated[
        Path | None, typer.Argument(help="A data file, such as a CSV file (default: digits).", metavar="FILE")
    ] = None,
    out: Annotated[Path, typer.Option(help="The configuration to write.")] = Path("coterie.toml"),
    example: Annotated[
        str | None, typer.Option(help="Copy this example instead, beside --out.", metavar="NAME")
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the examples.")] = False,
    silo_column: SiloColumn = None,
    target_column: TargetColumn = None,
    person_column: PersonColumn = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented configuration for a data file, to read and change before training.

    A CSV or Parquet file is read on this machine, and nothing is sent. Nothing is overwritten.
    """
    from .starter import list_all_examples, write_new

    if list_all:
        list_all_examples(as_json)
        return
    columns = {"silo_column": silo_column, "target_column": target_column, "person_column": person_column}
    write_new(out, data, example, changes or (), columns, as_json)


@app.command(cls=ConfigCommand)
def run(
    config: ConfigPath,
    changes: Changes = None,
    allow: Allow = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results (default: runs/NAME-N).")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    device: Device = None,
    ledger: LedgerFolder = None,
    keys: Keys = None,
    witness: WitnessFolder = None,
) -> None:
    """Train what CONFIG describes; save results, statements and models.

    With a ledger, the run is metered: it is charged to every silo's data set before it starts.
    """
    from .run import run_config

    checked = read_config(config, changes, device, ledger, allow, (keys, witness))
    tune()
    run_config(checked, out, config.stem, data_dir=data_dir, as_json=as_json)


@app.command(cls=ConfigCommand)
def sweep(
    config: ConfigPath,
    changes: Changes = None,
    allow: Allow = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results (default: runs/NAME-sweep-N).")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    device: Device = None,
    ledger: LedgerFolder = None,
    keys: Keys = None,
    witness: WitnessFolder = None,
) -> None:
    """Choose settings from the lists in CONFIG by a random number of trials, and charge for choosing.

    The table \\[tuning] sets how many trials are drawn (trials, mean, shape, most) and which score decides.
    """
    from .sweep import sweep_config

    checked = read_config(config, changes, device, ledger, allow, (keys, witness))
    tune()
    sweep_config(checked, out, config.stem, data_dir, as_json)


@app.command(cls=ConfigCommand)
def plan(
    config: ConfigPath,
    published: Annotated[
        bool, typer.Option("--published", help="Also show the formulas that papers would use.")
    ] = False,
    changes: Changes = None,
    allow: Allow = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    device: Device = None,
    ledger: LedgerFolder = None,
    witness: WitnessFolder = None,
    overlaps: Annotated[
        str | None,
        typer.Option(help="A CSV file of silos that share persons; shows what these spend in total."),
    ] = None,
) -> None:
    """Show every silo's noise, steps, spending and bytes, and the time needed. Nothing is trained.

    With a ledger, also show what each silo has left, without charging anything. If the ledgers would refuse
    the training, the exit code is 2.
    """
    from .plan import plan_config

    checked = read_config(config, changes, device, ledger, allow, (None, witness))
    tune()
    plan_config(checked, data_dir=data_dir, as_json=as_json, published=published, overlaps=overlaps)


@app.command()
def predict(
    model: Annotated[
        Path, typer.Argument(help="A saved model, from the folder models/ of a run.", metavar="MODEL")
    ],
    csv: Annotated[Path, typer.Argument(help="A CSV or Parquet file of new raw rows.", metavar="CSV")],
    module: Annotated[
        str | None,
        typer.Option(help="What builds your own module, as package.module:function.", metavar="NAME"),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An argument of what makes it: width=8. May be repeated.", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a CSV file instead of printing it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict with a silo's saved model: raw rows in, classes or numbers out.

    Rows need the feature columns of the training data, in any order.
    """
    from .predict import predict_file

    predict_file(model, csv, module, option or (), out, as_json)


@app.command(cls=ConfigCommand)
def advise(
    config: ConfigPath,
    spread: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Smallest and largest tau, how much silos differ (default: 0.1 and 1 times the deviation).",
            metavar="LOW HIGH",
        ),
    ] = None,
    deviation: Annotated[
        float | None,
        typer.Option(help="How much examples of one silo differ (default: half the clip).", metavar="S"),
    ] = None,
    changes: Changes = None,
    allow: Allow = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Forecast which silos gain by joining, from sizes and budgets alone. Nothing is trained.

    The forecast comes from the theory of mean estimation, not from a measurement; no example is used. The
    deviation and the spread are those of one number, on the scale of the clip.
    """
    from .advise import advise_config

    checked = read_config(config, changes, None, allow=allow)
    advise_config(checked, spread, deviation, data_dir=data_dir, as_json=as_json)


@app.command()
def methods(
    name: Annotated[str, typer.Argument(help="Show everything about this method.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the methods with their costs and traffic; with NAME, show that method's settings and paper."""
    from .methods import show_methods

    show_methods(as_json, name)


@app.command()
def epsilon(
    noise: Annotated[float, typer.Option(help="Noise multiplier: standard deviation divided by clip.")],
    rate: Rate,
    steps: Steps,
    delta: DeltaOption,
    adjacency: Annotated[str, typer.Option(help="zero-out or replace-one.")] = "zero-out",
    sampler: SamplerOption = "poisson",
    tight: Annotated[
        bool, typer.Option("--tight", help="Also show a finer bound, a lower bound and published formulas.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the certified epsilon, an upper bound, of sampled Gaussian steps."""
    from ..privacy.events import Event
    from .epsilon import show_epsilon

    show_epsilon(Event("gaussian", noise, rate, steps, sampler), delta, adjacency, tight, as_json)


@app.command()
def noise(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    rate: Rate,
    steps: Steps,
    delta: DeltaOption,
    sampler: SamplerOption = "poisson",
    as_json: AsJson = False,
) -> None:
    """Find the smallest noise multiplier that stays within epsilon."""
    from .._json import finite
    from ..privacy.accountant import shown
    from ..privacy.calibration import Target, noise_for

    least = noise_for(Target(epsilon, delta, rate, steps, sampler=sampler))
    asked = {"rate": rate, "steps": steps, "sampler": sampler, "delta": delta}
    facts = {"noise": least.noise, "epsilon": least.epsilon, **asked}
    text = f"{shown(least.noise, 4)} (epsilon {shown(least.epsilon, 4)})"
    typer.echo(json.dumps(finite(facts)) if as_json else text)


@app.command(cls=ConfigCommand)
def propose(
    config: ConfigPath,
    silo: Annotated[
        list[Path], typer.Option(help="A silo's facts (`coterie guard facts`). Repeat for each.")
    ],
    key: Annotated[Path, typer.Option(help="The coordinator's private key (a .key file).")],
    out: Annotated[Path, typer.Option(help="The plan to write.")] = Path("plan.json"),
    name: Annotated[str, typer.Option(help="What the federation is called.")] = "federation",
    fewest: Annotated[
        int | None, typer.Option(help="How many silos must answer each round (default: all).")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Longest wait for an answer.")] = 600.0,
    changes: Changes = None,
    allow: Allow = None,
) -> None:
    """Write a plan for real silos, which their owners then approve (`coterie guard approve`)."""
    from .coordinate import propose_plan

    plan = propose_plan(
        read_config(config, changes, None, None, allow),
        name,
        silo,
        key,
        out,
        fewest,
        seconds,
        lambda line: typer.echo(f"note: {line}", err=True),
    )
    typer.echo(f"wrote '{out}', hash {plan.hash}: send it to the owners of the silos")


@app.command()
def coordinate(
    plan: Annotated[Path, typer.Argument(help="The plan that the owners approved.")],
    folder: Annotated[Path, typer.Option(help="Where the training is kept; the same one resumes it.")],
    key: Annotated[Path, typer.Option(help="The coordinator's private key (a .key file).")],
    socket: Annotated[
        list[str] | None, typer.Option(help="SILO=PATH of a guard on this machine. Repeat for each.")
    ] = None,
    kit: Annotated[Path | None, typer.Option(help="The coordinator's kit, for silos elsewhere.")] = None,
    flower: Annotated[
        str | None, typer.Option(help="A connection in Flower's configuration, for silos that run Flower.")
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds until silos that do not connect are given up (with --kit).")
    ] = 120.0,
    skip_round: Annotated[
        bool, typer.Option("--skip-round", help="Give up a begun secure sum whose silos are lost for good.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train by a plan with the silos that approved it; after a crash the same command resumes."""
    from .coordinate import coordinate as run_plan

    run_plan(plan, folder, key, socket or [], kit, flower, patience, skip_round, as_json)


@app.command("federate", cls=ConfigCommand)
def federate_command(
    config: ConfigPath,
    out: Annotated[
        Path | None, typer.Option(help="New folder for guards and results (default: runs/NAME-federation-N).")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="What carries the messages: local, nvflare or flower.")
    ] = "local",
    seconds: Annotated[float, typer.Option(help="Longest wait for an answer.")] = 600.0,
    changes: Changes = None,
    allow: Allow = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Train in a deployment on this machine: a guard process per silo, with ledgers and statements."""
    from ..report.folder import next_free
    from .federate import run_federate

    read = read_config(config, changes, None, None, allow)
    run_federate(read, out or next_free(f"{config.stem}-federation"), engine, data_dir, seconds, as_json)


Kit = Annotated[Path, typer.Argument(help="The party's kit (`coterie kit make`).")]
AsRoot = Annotated[bool, typer.Option("--as-root", help="Run although this is root; for trials only.")]


@app.command()
def node(
    kit: Kit,
    guard: Annotated[Path, typer.Option(help="The guard's Unix socket.")],
    seconds: Annotated[float, typer.Option(help="Longest time for one answer of the guard.")] = 600.0,
    as_root: AsRoot = False,
) -> None:
    """Carry messages between the coordinator and this silo's guard, as a user without access to data."""
    from ..network.nvflare.node import run_node

    def on_note(line: str) -> None:
        typer.echo(f"note: {line}", err=True)

    raise typer.Exit(run_node(kit, guard, seconds=seconds, root=as_root, on_note=on_note))


@app.command()
def server(kit: Kit, as_root: AsRoot = False) -> None:
    """Run the server that nodes connect to, beside the coordinator."""
    from ..network.nvflare.server import run_server

    raise typer.Exit(run_server(kit, root=as_root))


def main() -> None:
    """Run the command line; a problem the user can fix ends with one sentence and exit code 2."""
    from ..errors import Problem, reason
    from .output import say, without_python

    try:
        app()
    except Problem as problem:
        say(f"coterie: {without_python(str(problem))}", sys.stderr)
        sys.exit(2)
    except OSError as error:
        what = "a file" if error.filename is None else f"'{error.filename}'"
        why = f"{what} cannot be read or written: {reason(error)}; correct that, then run the same again"
        say(f"coterie: {why}", sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("coterie: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
