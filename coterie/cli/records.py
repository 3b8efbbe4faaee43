"""The commands about records: ledgers, statements and the keys that sign them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, all else on standard error.")
]
Keys = Annotated[
    str | None,
    typer.Option("--keys", help="Folder of the silos' keys, or a .key file (else beside ledgers)."),
]
WitnessFolder = Annotated[
    str | None,
    typer.Option("--witness", help="Folder that keeps ledgers' heads (else COTERIE_WITNESS, or your own)."),
]
Reason = Annotated[str, typer.Option(help="Why; kept in the ledger.")]

ledger_app = typer.Typer(no_args_is_help=True, help="What was spent of each silo's data set.")
statement_app = typer.Typer(no_args_is_help=True, help="Statements of what a silo spent.")
Ledgers = Annotated[Path, typer.Argument(help="A ledger's file, or a folder of ledgers.")]


@ledger_app.command("show")
def ledger_show(place: Ledgers, witness: WitnessFolder = None, as_json: AsJson = False) -> None:
    """Show budgets, totals per adversary, and runs."""
    from .ledger import show_ledgers

    show_ledgers(place, witness, as_json)


@ledger_app.command("verify")
def ledger_verify(place: Ledgers, witness: WitnessFolder = None, as_json: AsJson = False) -> None:
    """Check rows, signatures and the witness, and recompute every epsilon from its events."""
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
    higher: Annotated[bool, typer.Option("--raise", help="Say so, to raise it.")] = False,
    reason: Annotated[str, typer.Option(help="Why it is raised; kept in the ledger.")] = "",
    unit: Annotated[str, typer.Option(help="What is protected: example, or silo.")] = "example",
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
def ledger_recover(place: Ledgers, reason: Reason, keys: Keys = None, witness: WitnessFolder = None) -> None:
    """Accept ledgers that are behind their witness, or lost, charged with all that the witness knows.

    Name the file of a ledger that is lost, as the refusal does.
    """
    from .ledger import recover

    recover(place, reason, keys, witness)


@ledger_app.command("rekey")
def ledger_rekey(
    place: Ledgers,
    reason: Reason,
    keys: Annotated[str, typer.Option("--keys", help="The new keys: a folder, or a .key file.")],
    old: Annotated[str | None, typer.Option(help="The old keys (else beside the ledgers).")] = None,
    witness: WitnessFolder = None,
) -> None:
    """Sign ledgers with other keys from now on, such as after a key has expired."""
    from .ledger import rekey

    rekey(place, reason, keys, old, witness)


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
    file: Annotated[Path, typer.Argument(help="A statement's JSON file.")],
    ledger: Annotated[Path | None, typer.Option(help="Folder of ledgers, to find its run in.")] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a statement from its events; with a ledger, find its run there."""
    from .statement import verify_statement

    verify_statement(file, ledger, as_json)


@statement_app.command("schema")
def statement_schema() -> None:
    """Print the JSON schema of statements."""
    from ..privacy.statement.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
