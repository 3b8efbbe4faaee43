"""The command line. Anything heavy is imported where it is used, so that help is quick."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="Private, personalized federated learning: a model for every silo, a budget for every silo.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
data_app = typer.Typer(help="List and inspect data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

ConfigPath = Annotated[Path, typer.Argument(help="A TOML file, as in examples/.", metavar="CONFIG")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Change a key: train.rounds=10. May be repeated.")
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Folder with data (else COTERIE_DATA).", metavar="DIR")
]
Device = Annotated[str | None, typer.Option(help="Where to train: cpu, cuda, cuda:1 (else train.device).")]
LedgerFolder = Annotated[
    str | None, typer.Option(help="Folder of the silos' ledgers (else privacy.ledger): a metered run.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, all else on standard error.")
]


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


def _config(config: Path, changes: list[str] | None, device: str | None, ledger: str | None = None) -> Any:
    from ..experiment.config.schema import read

    given = {"train.device": device, "privacy.ledger": ledger}
    changed = [*(changes or []), *(f"{key}={json.dumps(value)}" for key, value in given.items() if value)]
    for folder in (str(config.resolve().parent), ""):  # where models of one's own are looked for
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return read(config, changed)


def _tune() -> None:
    """Tune this process for training, which the library leaves to whoever owns the process."""
    from ..cohort.process import tune_process

    tune_process()


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder for the results (else runs/demo-N).")] = None,
) -> None:
    """Ten silos, three budgets, three methods, on data that is already here."""
    from ..experiment.config.schema import check
    from .demo import DEMO, INTRODUCTION
    from .run import run_config

    _tune()
    run_config(check(DEMO, "demo"), out, "demo", introduction=INTRODUCTION)


@app.command()
def run(
    config: ConfigPath,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results (else runs/NAME-N).")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    device: Device = None,
    ledger: LedgerFolder = None,
) -> None:
    """Train what CONFIG describes; save results, statements and models.

    With a ledger the run is metered: charged to every silo's data set before it happens.
    """
    from .run import run_config

    made = _config(config, changes, device, ledger)
    _tune()
    run_config(made, out, config.stem, data_dir=data_dir, as_json=as_json)


@app.command()
def sweep(
    config: ConfigPath,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results (else runs/NAME-sweep-N).")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    device: Device = None,
    ledger: LedgerFolder = None,
) -> None:
    """Choose among the lists of CONFIG by a random number of trials, and bill the choosing.

    The table \\[tuning] says how many trials (trials, mean, shape, most) and by what score.
    """
    from .sweep import sweep_config

    made = _config(config, changes, device, ledger)
    _tune()
    sweep_config(made, out, config.stem, data_dir, as_json)


@app.command()
def plan(
    config: ConfigPath,
    published: Annotated[
        bool, typer.Option("--published", help="Also show the formulas that papers would use.")
    ] = False,
    changes: Changes = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Show noise, steps, spending, bytes and time of every silo. Nothing is trained."""
    from .plan import plan_config

    made = _config(config, changes, device)
    _tune()
    plan_config(made, data_dir=data_dir, as_json=as_json, published=published)


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="A saved model, from the folder models/ of a run.")],
    rows: Annotated[Path, typer.Argument(help="A CSV or Parquet file of new raw rows.", metavar="CSV")],
    module: Annotated[
        str | None,
        typer.Option(help="What makes a user's module: package.module:function.", metavar="NAME"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a CSV file instead of printing it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict with a silo's saved model: raw rows in, classes or numbers out.

    Rows need the feature columns of the training data, in any order.
    """
    from .predict import predict_file

    predict_file(model, rows, module, out, as_json)


@app.command()
def advise(
    config: ConfigPath,
    spread: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="How much silos differ (tau), at least and at most (else 0.1 and 1 times the deviation).",
            metavar="LOW HIGH",
        ),
    ] = None,
    deviation: Annotated[
        float | None,
        typer.Option(help="How much examples of one silo differ (else half the clip).", metavar="S"),
    ] = None,
    changes: Changes = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Forecast which silos gain by joining, from sizes and budgets alone. Nothing is trained.

    By the theory of mean estimation, not by a measurement; no example is used. The deviation and the
    spread are of one number, on the scale of the clip.
    """
    from .advise import advise_config

    made = _config(config, changes, None)
    advise_config(made, spread, deviation, data_dir=data_dir, as_json=as_json)


@app.command()
def methods(
    name: Annotated[str, typer.Argument(help="Show all about this method.")] = "", as_json: AsJson = False
) -> None:
    """List the methods and what each costs and sends; with NAME, show its settings and paper."""
    from .methods import show_methods

    show_methods(as_json, name)


Rate = Annotated[float, typer.Option(help="Chance of an example to be in a batch.")]
Steps = Annotated[int, typer.Option(help="Number of noisy steps.")]
DeltaOption = Annotated[float, typer.Option(help="Delta.")]


@app.command()
def epsilon(
    noise: Annotated[float, typer.Option(help="Noise multiplier: deviation over clip.")],
    rate: Rate,
    steps: Steps,
    delta: DeltaOption,
    adjacency: Annotated[str, typer.Option(help="zero-out, or replace-one.")] = "zero-out",
    sampler: Annotated[
        str,
        typer.Option(help="poisson, fixed (size, without replacement), or allocation (steps are passes)."),
    ] = "poisson",
    tight: Annotated[
        bool, typer.Option("--tight", help="A finer bound, a lower bound, and others' formulas beside.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Certify epsilon (an upper bound) for sampled Gaussian steps."""
    from ..privacy.events import Event
    from .epsilon import show_epsilon

    show_epsilon(Event("gaussian", noise, rate, steps, sampler), delta, adjacency, tight, as_json)


@app.command()
def noise(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    rate: Rate,
    steps: Steps,
    delta: DeltaOption,
    as_json: AsJson = False,
) -> None:
    """Find the least noise multiplier that keeps to epsilon."""
    from .._json import finite
    from ..privacy.accountant import shown
    from ..privacy.calibration import Target, noise_for

    found = noise_for(Target(epsilon, delta, rate, steps))
    facts = {"noise": found.noise, "epsilon": found.epsilon, "rate": rate, "steps": steps, "delta": delta}
    told = f"{shown(found.noise, 4)} (epsilon {shown(found.epsilon, 4)})"
    typer.echo(json.dumps(finite(facts)) if as_json else told)


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets that can be loaded by name."""
    from dataclasses import asdict

    from ..data.sources.catalogue import data_folder, list_data

    found = list_data(data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in found]))
        return
    from rich.console import Console

    from ..report.data_tables import data_table

    Console().print(data_table(found, data_folder(data_dir)))


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="A name from `coterie data list`, a file or a folder.")],
    silos: Annotated[int | None, typer.Option(help="How many silos.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="iid, shards, dirichlet, rotated or rotated-masked.")
    ] = None,
    silo_column: Annotated[
        str | None, typer.Option(help="Column that names the silo (CSV, Parquet).")
    ] = None,
    target_column: Annotated[str | None, typer.Option(help="Column to predict (CSV, Parquet).")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show silos, sizes and labels per silo."""
    from ..data.federation import load

    federation = load(
        source,
        silos=silos,
        partition=partition,
        silo_column=silo_column,
        target_column=target_column,
        data_dir=data_dir,
    )
    if as_json:
        typer.echo(json.dumps(federation.facts()))
        return
    from rich.console import Console

    from ..report.data_tables import federation_table

    Console().print(federation_table(federation))


figure_app = typer.Typer(no_args_is_help=True, help="Pictures of what privacy means and costs.")
app.add_typer(figure_app, name="figure")
Picture = Annotated[Path, typer.Option(help="The PNG file to write.")]


@figure_app.command("tradeoff")
def figure_tradeoff(
    noise: Annotated[list[float], typer.Option(help="A noise multiplier; give it several times.")],
    rate: Rate,
    steps: Steps,
    out: Picture = Path("tradeoff.png"),
    unit: Annotated[str, typer.Option(help="What is protected, in words.")] = "one example",
) -> None:
    """Draw how well an attacker could tell whether somebody's data was used."""
    from .figure import draw_tradeoff_figure

    draw_tradeoff_figure(noise, rate, steps, out, unit)


@figure_app.command("tuning")
def figure_tuning(
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 0.25,
    mean: Annotated[float, typer.Option(help="Trials on average.")] = 10.0,
    out: Picture = Path("tuning.png"),
) -> None:
    """Draw what choosing lam by trials brings and costs, in the model of mean estimation."""
    from .figure import draw_tuning_figure

    draw_tuning_figure(epsilon, mean, out)


ledger_app = typer.Typer(no_args_is_help=True, help="What was spent of each silo's data set.")
statement_app = typer.Typer(no_args_is_help=True, help="Statements of what a silo spent.")
app.add_typer(ledger_app, name="ledger")
app.add_typer(statement_app, name="statement")
Ledgers = Annotated[Path, typer.Argument(help="A ledger's file, or a folder of ledgers.")]


@ledger_app.command("open")
def ledger_open(
    config: ConfigPath,
    epsilon: Annotated[float, typer.Option(help="What each data set may spend in all.")],
    delta: Annotated[float, typer.Option(help="Delta of all runs together.")],
    filter: Annotated[str, typer.Option(help="How runs add up: basic, rdp or gdp.")] = "basic",
    unit: Annotated[str | None, typer.Option(help="Protected: example or silo (else CONFIG's).")] = None,
    changes: Changes = None,
    ledger: LedgerFolder = None,
    data_dir: DataDir = None,
) -> None:
    """Make the ledgers of CONFIG's silos, with a budget for each."""
    from .ledger import open_config

    open_config(_config(config, changes, None, ledger), (epsilon, delta), filter, data_dir, unit)


@ledger_app.command("show")
def ledger_show(place: Ledgers, as_json: AsJson = False) -> None:
    """Show budgets, totals per adversary, and runs."""
    from .ledger import show_ledgers

    show_ledgers(place, as_json)


@ledger_app.command("verify")
def ledger_verify(place: Ledgers, as_json: AsJson = False) -> None:
    """Check the chain of rows, and recompute every epsilon from its events."""
    from .ledger import verify_ledgers

    verify_ledgers(place, as_json)


@ledger_app.command("export")
def ledger_export(place: Ledgers) -> None:
    """Print every row as a line of JSON."""
    from .ledger import export_ledgers

    export_ledgers(place)


@ledger_app.command("budget")
def ledger_budget(
    place: Ledgers,
    epsilon: Annotated[float, typer.Option(help="The new budget.")],
    delta: Annotated[float, typer.Option(help="Its delta.")],
    higher: Annotated[bool, typer.Option("--raise", help="Say so, to raise it.")] = False,
    reason: Annotated[str, typer.Option(help="Why it is raised; kept in the ledger.")] = "",
    unit: Annotated[str, typer.Option(help="What is protected: example, or silo.")] = "example",
) -> None:
    """Lower the budget of a data set, or raise it with a reason."""
    from .ledger import set_budgets

    set_budgets(place, unit, epsilon, delta, reason, higher)


@statement_app.command("verify")
def statement_verify(
    file: Annotated[Path, typer.Argument(help="A statement's JSON file.")],
    ledger: Annotated[Path | None, typer.Option(help="Folder of ledgers, to find its run in.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a statement from its events; with a ledger, find its run there."""
    from .statement import verify_statement

    verify_statement(file, ledger, as_json)


@statement_app.command("show")
def statement_show(
    file: Annotated[Path, typer.Argument(help="A statement's JSON file.")],
    as_json: AsJson = False,
) -> None:
    """Say what a statement promises and what that means, after recomputing it."""
    from .statement import show_statement

    show_statement(file, as_json)


@statement_app.command("schema")
def statement_schema() -> None:
    """Print the JSON schema of statements."""
    from ..privacy.statement.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def main() -> None:
    """Run the command line; what a user can mend ends in one sentence and exit code 2."""
    from ..errors import Problem
    from .output import say

    try:
        app()
    except Problem as problem:
        say(f"coterie: {problem}", sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("coterie: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
