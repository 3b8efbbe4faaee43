"""What `coterie predict` does: use a saved model on new rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..errors import Problem, reason
from ..experiment.saved_models import load_model


def predict_file(model: Path, rows: Path, module: str | None, out: Path | None, as_json: bool) -> None:
    """Print or write what a saved model predicts for the rows of a file."""
    if module is not None and "" not in sys.path:
        sys.path.insert(0, "")  # a user's module is looked for in the current folder too
    saved = load_model(model, module)
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
