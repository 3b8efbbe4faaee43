"""Options that several commands share, and how they become a configuration; quick to import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from ..experiment.config.schema import Config

ConfigPath = Annotated[
    Path, typer.Argument(help="A TOML file, such as those in examples/.", metavar="CONFIG")
]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Change a key, such as train.rounds=10. May be repeated.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        help="Let CONFIG take its model from this module, which is not beside it. May be repeated.",
        metavar="MODULE",
    ),
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", help="Folder with data (default: $COTERIE_DATA).", metavar="DIR")
]
Device = Annotated[
    str | None, typer.Option(help="Where to train: cpu, cuda or cuda:1 (default: train.device).")
]
LedgerFolder = Annotated[
    str | None, typer.Option(help="Folder of the silos' ledgers, to meter the run (default: privacy.ledger).")
]
Keys = Annotated[
    str | None,
    typer.Option("--keys", help="Folder of the silos' keys, or a .key file (default: beside each ledger)."),
]
WitnessFolder = Annotated[
    str | None,
    typer.Option(
        "--witness",
        help="Folder that keeps the ledgers' heads (default: $COTERIE_WITNESS, else coterie/witness in"
        " $XDG_STATE_HOME or ~/.local/state).",
    ),
]
SiloColumn = Annotated[str | None, typer.Option(help="Column that names the silo (CSV, Parquet).")]
TargetColumn = Annotated[str | None, typer.Option(help="Column to predict (CSV, Parquet).")]
PersonColumn = Annotated[str | None, typer.Option(help="Column that says whose row it is (CSV, Parquet).")]
Reason = Annotated[str, typer.Option(help="Why; the ledger keeps it.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON on standard output, everything else on standard error.")
]
Rate = Annotated[float, typer.Option(help="Probability that an example is in a batch.")]
Steps = Annotated[int, typer.Option(help="Number of noisy steps.")]
SamplerOption = Annotated[
    str, typer.Option(help="poisson, fixed (size, without replacement) or allocation (steps are passes).")
]
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
    config: Path,
    changes: list[str] | None,
    device: str | None,
    ledger: str | None = None,
    allow: list[str] | None = None,
    custody: tuple[str | None, str | None] = (None, None),
) -> Config:
    """Return the configuration of a command, with what its options change; `custody`: keys and witness."""
    from ..experiment.config.schema import read

    given = {"train.device": device, "privacy.ledger": ledger}
    given |= {"privacy.keys": custody[0], "privacy.witness": custody[1]}
    changed = [*(changes or []), *(f"{key}={json.dumps(value)}" for key, value in given.items() if value)]
    return read(config, changed, allow or ())


def tune() -> None:
    """Tune this process for training, which the library leaves to whoever owns the process."""
    from ..cohort.process import tune_process

    tune_process()
