"""What `coterie predict` does: use a saved model on new rows."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import Problem, reason
from ..experiment.saved_models import load_model
from ..tasks.code import Allowed
from ..tasks.models import find_factory


def _option(text: str) -> tuple[str, Any]:
    """Read KEY=VALUE; the value is one of TOML, or else a text."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Problem(f"--option: expected KEY=VALUE, such as width=8, got '{text}'")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def predict_file(
    model: Path, rows: Path, module: str | None, options: Sequence[str], out: Path | None, as_json: bool
) -> None:
    """Print or write what a saved model predicts for the rows of a file.

    `options` are arguments of the module, each as KEY=VALUE.
    """
    named: str | Callable[..., nn.Module] | None = module
    if module is not None and ":" in module:  # it may lie in the current folder
        named = find_factory(module, Allowed(modules=(module.partition(":")[0],)))
    saved = load_model(model, named, dict(map(_option, options)))
    predictions = saved.predict(rows)
    if out is not None:
        try:
            predictions.to_csv(out, index=False)
        except OSError as error:
            raise Problem(f"out: cannot write '{out}': {reason(error)}") from error
        print(f"Wrote {len(predictions)} prediction(s) to {out}.", file=sys.stderr)
    if as_json:
        facts = {"silo": saved.silo, "method": saved.method}
        print(json.dumps({**facts, "predictions": predictions.to_dict("records")}, indent=2))
    elif out is None:
        print(predictions.to_csv(index=False), end="")
