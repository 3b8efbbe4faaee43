"""`coterie kit`: what each party of a federation needs to connect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson

kit_app = typer.Typer(help="Make and check the folders that parties connect with.", no_args_is_help=True)


@kit_app.command("make")
def kit_make(
    federation: Annotated[Path, typer.Argument(help="A TOML file: federation, host, port, silos, days.")],
    out: Annotated[Path, typer.Option(help="Folder for the kits, one per party.")],
) -> None:
    """Make a kit for the server, the coordinator and every silo."""
    import tomllib

    from ..errors import Problem, reason
    from ..network.nvflare.kit import make_kits, record_from

    try:
        record = record_from(tomllib.loads(federation.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"cannot read '{federation}': {reason(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise Problem(f"'{federation}' is not valid TOML: {error}") from error
    except Problem as problem:
        raise Problem(f"'{federation}': {problem}") from problem
    for name, path in make_kits(record, out).items():
        typer.echo(f"{name}: {path}")
    typer.echo(
        f"give each party its own folder, and keep '{out / 'authority'}' secret: it signs certificates"
    )


@kit_app.command("check")
def kit_check(
    kit: Annotated[Path, typer.Argument(help="A party's kit.")],
    federation: Annotated[str | None, typer.Option(help="The federation it must be for.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say everything that is wrong with a kit; exit code 2 if anything is."""
    from ..network.nvflare.kit import check_kit

    problems = check_kit(kit, federation)
    if as_json:
        typer.echo(json.dumps({"kit": str(kit), "problems": problems}))
    else:
        for line in problems or [f"'{kit}' is in order"]:
            typer.echo(line)
    if problems:
        raise typer.Exit(2)
