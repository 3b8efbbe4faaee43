"""Options that several commands share, and how they become a configuration; quick to import."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from ..experiment.config.schema import Config

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
Rate = Annotated[float, typer.Option(help="Chance of an example to be in a batch.")]
Steps = Annotated[int, typer.Option(help="Number of noisy steps.")]
DeltaOption = Annotated[float, typer.Option(help="Delta.")]


class ConfigCommand(TyperCommand):
    """A command on a configuration: an unknown option that is a key of the file is told how to set it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of the command."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if hint := _key_for(error.option_name, given):
                raise click.UsageError(f"No such option: {error.option_name}. {hint}", ctx) from None
            raise


def _key_for(option: str, given: list[str]) -> str:
    """Return how to set the key of a configuration that an unknown option may mean; "" if there is none."""
    from ..experiment.config.schema import TABLES

    key = option.lstrip("-").replace("-", "_")
    table = next((name for name, kind in TABLES.items() if key in kind.model_fields), None)
    if table is None:
        return ""
    values: list[Any] = [word.partition("=")[2] for word in given if word.startswith(f"{option}=")]
    if option in given[:-1]:
        values.append(given[given.index(option) + 1])
    return f"To change a key of CONFIG: --set {table}.{key}={values[0] if values else 'VALUE'}"


def read_config(
    config: Path, changes: list[str] | None, device: str | None, ledger: str | None = None
) -> Config:
    """Return the configuration of a command, with what its options change."""
    from ..experiment.config.schema import read

    given = {"train.device": device, "privacy.ledger": ledger}
    changed = [*(changes or []), *(f"{key}={json.dumps(value)}" for key, value in given.items() if value)]
    for folder in (str(config.resolve().parent), ""):  # where models of one's own are looked for
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return read(config, changed)


def tune() -> None:
    """Tune this process for training, which the library leaves to whoever owns the process."""
    from ..cohort.process import tune_process

    tune_process()
