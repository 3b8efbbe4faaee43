"""Commands that come in groups: `coterie data`, `figure`, `ledger`, `statement` and `keys`.

Anything heavy is imported where it is used, so that help is quick.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .guard import guard_app
from .kit import kit_app
from .options import (
    Allow,
    AsJson,
    Changes,
    ConfigCommand,
    ConfigPath,
    DataDir,
    Keys,
    LedgerFolder,
    PersonColumn,
    Rate,
    Reason,
    SiloColumn,
    Steps,
    TargetColumn,
    WitnessFolder,
    read_config,
)

data_app = typer.Typer(help="List and inspect data sets.", no_args_is_help=True)


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the data sets that can be loaded by name."""
    from dataclasses import asdict

    from ..data.sources.catalogue import data_folder, list_data

    entries = list_data(data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries]))
        return
    from rich.console import Console

    from ..report.data_tables import data_table

    Console().print(data_table(entries, data_folder(data_dir)))


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="A name from `coterie data list`, a file or a folder.")],
    silos: Annotated[int | None, typer.Option(help="Number of silos.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="iid, shards, dirichlet, rotated or rotated-masked.")
    ] = None,
    silo_column: SiloColumn = None,
    target_column: TargetColumn = None,
    person_column: PersonColumn = None,
    columns: Annotated[
        bool, typer.Option("--columns", help="Describe the columns even if --target-column is given.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the silos of a data set, or what the columns of a CSV or Parquet file look like.

    Without --target-column, the columns of a CSV or Parquet file are described, and a \\[data] table for a
    configuration is suggested. The file is read on this machine, and nothing is sent. What is printed is not
    private.
    """
    from .data import show_columns, show_silos

    named = {"silo_column": silo_column, "target_column": target_column, "person_column": person_column}
    if columns or (target_column is None and source.lower().endswith((".csv", ".parquet"))):
        show_columns(source, named, as_json)
    else:
        show_silos(source, {**named, "silos": silos, "partition": partition, "data_dir": data_dir}, as_json)


@data_app.command("measure", cls=ConfigCommand)
def data_measure(
    config: ConfigPath,
    epsilon: Annotated[float, typer.Option(help="What measuring may cost each silo, besides trainings.")],
    changes: Changes = None,
    allow: Allow = None,
    out: Annotated[Path | None, typer.Option(help="Folder for statements of what it cost.")] = None,
    ledger: LedgerFolder = None,
    keys: Keys = None,
    witness: WitnessFolder = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measure the mean and deviation of each column of numbers, with noise, to scale the columns by.

    Columns need public bounds (data.feature_range). It prints the key `standardize` for \\[data]. With a
    ledger, each silo is charged for it, as for a training.
    """
    from .data import measure_config

    checked = read_config(config, changes, None, ledger, allow, (keys, witness))
    measure_config(checked, epsilon, out, data_dir, as_json)


figure_app = typer.Typer(no_args_is_help=True, help="Draw what privacy means and costs.")
Picture = Annotated[Path, typer.Option(help="The PNG file to write.")]


@figure_app.command("tradeoff")
def figure_tradeoff(
    noise: Annotated[list[float], typer.Option(help="A noise multiplier. May be repeated.")],
    rate: Rate,
    steps: Steps,
    out: Picture = Path("tradeoff.png"),
    unit: Annotated[str, typer.Option(help="What is protected, for the title.")] = "one example",
) -> None:
    """Draw how well an attacker could tell whether somebody's data was used."""
    from .figure import draw_tradeoff_figure

    draw_tradeoff_figure(noise, rate, steps, out, unit)


@figure_app.command("tuning")
def figure_tuning(
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 0.25,
    mean: Annotated[float, typer.Option(help="Average number of trials.")] = 10.0,
    out: Picture = Path("tuning.png"),
) -> None:
    """Draw what choosing lam by trials gains and costs, in the model of mean estimation."""
    from .figure import draw_tuning_figure

    draw_tuning_figure(epsilon, mean, out)


ledger_app = typer.Typer(no_args_is_help=True, help="Manage what each silo's data set has spent.")
statement_app = typer.Typer(no_args_is_help=True, help="Check statements of what a silo spent.")
Ledgers = Annotated[Path, typer.Argument(help="A ledger file, or a folder of ledgers.")]


@ledger_app.command("open", cls=ConfigCommand)
def ledger_open(
    config: ConfigPath,
    epsilon: Annotated[float, typer.Option(help="What each data set may spend in total.")],
    delta: Annotated[float, typer.Option(help="Delta of all runs together.")],
    filter: Annotated[str, typer.Option(help="How runs add up: basic, rdp or gdp.")] = "basic",
    unit: Annotated[
        str | None, typer.Option(help="What is protected: example or silo (default: CONFIG's).")
    ] = None,
    another: Annotated[
        bool, typer.Option("--another", help="Say that ledgers of the same name are for other examples.")
    ] = False,
    changes: Changes = None,
    allow: Allow = None,
    ledger: Annotated[
        str | None, typer.Option(help="Folder for the new ledgers (default: privacy.ledger).")
    ] = None,
    keys: Keys = None,
    witness: WitnessFolder = None,
    data_dir: DataDir = None,
) -> None:
    """Create ledgers for CONFIG's silos, each with this budget."""
    from .ledger import open_config

    checked = read_config(config, changes, None, ledger, allow, (keys, witness))
    open_config(checked, (epsilon, delta), filter, data_dir, unit, another)


@ledger_app.command("show")
def ledger_show(place: Ledgers, witness: WitnessFolder = None, as_json: AsJson = False) -> None:
    """Show each ledger's budget, its totals per adversary and its number of runs."""
    from .ledger import show_ledgers

    show_ledgers(place, witness, as_json)


@ledger_app.command("verify")
def ledger_verify(place: Ledgers, witness: WitnessFolder = None, as_json: AsJson = False) -> None:
    """Check every ledger of a folder: rows, signatures, the witness, and every epsilon from its events.

    All problems are reported at once.
    """
    from .ledger import verify_ledgers

    verify_ledgers(place, witness, as_json)


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
    higher: Annotated[bool, typer.Option("--raise", help="Allow the budget to be raised.")] = False,
    reason: Annotated[str, typer.Option(help="Why the budget is raised; the ledger keeps it.")] = "",
    unit: Annotated[str, typer.Option(help="What is protected: example, person or silo.")] = "example",
    keys: Keys = None,
    witness: WitnessFolder = None,
) -> None:
    """Lower the budget of a data set, or raise it with a reason."""
    from .ledger import set_budgets

    set_budgets(place, unit, (epsilon, delta), reason, higher, keys, witness)


@ledger_app.command("adopt")
def ledger_adopt(place: Ledgers, reason: Reason, keys: Keys = None, witness: WitnessFolder = None) -> None:
    """Sign ledgers of an older version from now on; they say that earlier rows were never signed."""
    from .ledger import adopt

    adopt(place, reason, keys, witness)


@ledger_app.command("recover")
def ledger_recover(
    place: Ledgers,
    reason: Reason,
    keys: Keys = None,
    witness: WitnessFolder = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Sign a lost ledger with another key than its witness knows.")
    ] = False,
) -> None:
    """Accept ledgers that are behind their witness, or lost, charged with all that the witness knows.

    Name the file of a ledger that is lost, as the refusal does.
    """
    from .ledger import recover

    recover(place, reason, keys, witness, new_key)


@ledger_app.command("release")
def ledger_release(
    place: Ledgers,
    run: Annotated[str, typer.Argument(help="The row of a run in a ledger's file, or: all.")],
    reason: Reason,
    keys: Keys = None,
    witness: WitnessFolder = None,
) -> None:
    """Give back the rounds that an abandoned run never reserved; it cannot continue.

    `coterie ledger show` lists such runs. Reserved rounds stay charged.
    """
    from .ledger import release

    release(place, run, reason, keys, witness)


@ledger_app.command("rekey")
def ledger_rekey(
    place: Ledgers,
    reason: Reason,
    keys: Annotated[str, typer.Option("--keys", help="The new keys: a folder, or a .key file.")],
    old: Annotated[str | None, typer.Option(help="The old keys (else beside the ledgers).")] = None,
    old_key_lost: Annotated[
        bool, typer.Option("--old-key-lost", help="Change the key although the old one cannot vouch for it.")
    ] = False,
    witness: WitnessFolder = None,
) -> None:
    """Sign ledgers with other keys from now on, such as after a key has expired.

    The old keys vouch for the new ones.
    """
    from .ledger import rekey

    rekey(place, reason, keys, old, witness, old_key_lost)


keys_app = typer.Typer(no_args_is_help=True, help="The keys that silos sign ledgers and statements with.")


@keys_app.command("new")
def keys_new(
    place: Annotated[Path, typer.Argument(help="A folder, or a file that ends in .key.")],
    silo: Annotated[str | None, typer.Option(help="Whose key it is (else it may sign for any silo).")] = None,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Encrypt it; asks, or takes COTERIE_PASSPHRASE.")
    ] = False,
    valid_days: Annotated[float | None, typer.Option(help="Days until it expires (else never).")] = None,
    as_json: AsJson = False,
) -> None:
    """Make an Ed25519 key: a private file that only you can read, and a public one beside it."""
    from .keys import make_key

    make_key(place, silo, passphrase, valid_days, as_json)


@keys_app.command("show")
def keys_show(
    place: Annotated[Path, typer.Argument(help="A key's file, or a folder of keys.")], as_json: AsJson = False
) -> None:
    """Show whose keys these are, and how long they are valid."""
    from .keys import show_keys

    show_keys(place, as_json)


@statement_app.command("verify")
def statement_verify(
    files: Annotated[
        list[Path], typer.Argument(help="Statements' JSON files, or folders of them.", metavar="FILE...")
    ],
    ledger: Annotated[Path | None, typer.Option(help="Folder of ledgers in which to find the runs.")] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Public key (.pub) of the silo that must have signed, or a folder with one per silo."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Check dates as of this day or UTC time (default: now).", metavar="DATE"),
    ] = None,
    witness: WitnessFolder = None,
    as_json: AsJson = False,
) -> None:
    """Check signatures of statements and recompute them from their events; with a ledger, find their runs.

    All problems are reported at once.
    """
    from .statement import verify_statements

    verify_statements(files, ledger, as_json, key, at, witness)


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


GROUPS = {
    "guard": guard_app,
    "kit": kit_app,
    "data": data_app,
    "figure": figure_app,
    "ledger": ledger_app,
    "statement": statement_app,
    "keys": keys_app,
}
