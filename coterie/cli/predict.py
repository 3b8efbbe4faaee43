"""What `coterie predict` does: use a saved model on new rows."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import Problem, reason
from ..experiment.saved_models import load_model


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
    if module is not None and "" not in sys.path:
        sys.path.insert(0, "")  # a user's module is looked for in the current folder too
    saved = load_model(model, module, dict(map(_option, options)))
    predictions = saved.predict(rows)
    if out is not None:
        try:
            predictions.to_csv(out, index=False)
        except OSError as error:
            raise Problem(f"out: cannot write '{out}': {reason(error)}") from error
        print(f"{len(predictions)} prediction(s) written to {out}", file=sys.stderr)
    if as_json:
        facts = {"silo": saved.silo, "method": saved.method}
        print(json.dumps({**facts, "predictions": predictions.to_dict("records")}, indent=2))
    elif out is None:
        print(predictions.to_csv(index=False), end="")
