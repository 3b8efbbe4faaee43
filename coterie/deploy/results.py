"""What a silo keeps of a training: its own model, its score at home, and a signed statement."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._json import finite
from ..cohort.examples import stack
from ..cohort.score import score
from ..experiment.files import write_json, write_text
from ..experiment.measures import measures_of
from ..experiment.saved_models import save_model
from ..experiment.statements import statement_for
from ..experiment.trained import Trained
from ..guard.meter import Meter
from ..guard.secret_streams import EntropyStreams
from ..privacy.adversaries import ADVERSARIES
from ..privacy.ledger.ledger import Ledger
from ..privacy.statement.build import text_of
from ..report.statement_page import page
from .scores import score_of

if TYPE_CHECKING:
    from .guard_folder import GuardFolder
    from .prepared import Prepared


def finish_training(
    folder: GuardFolder, prepared: Prepared, vector: Tensor, ledger: Ledger, run: int
) -> dict[str, Any]:
    """Write a silo's model, score and statement; return what the coordinator may know: digests only."""
    experiment, plan, k = prepared.experiment, prepared.plan, prepared.place
    name, label = folder.silo, experiment.labels[0]
    place = folder.path / "results" / prepared.file.training
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    count = len(prepared.file.names)
    meter = Meter(prepared.file.names, [ledger] * count, EntropyStreams({}), claims=[[run]] * count)
    event = score_of(prepared)
    statement = statement_for(
        experiment,
        plan,
        0,
        k,
        meter.account(k, 0),
        score=None if event is None else event.noise,
        seen=None if event is None else tuple(ADVERSARIES),
        meter=meter,
        issue=prepared.issue,
        scored=experiment.training.rounds,
    )
    text = text_of(statement)
    write_text(place / "statement.json", text)
    write_text(place / "statement.html", page(statement))
    raw = Trained(experiment, plan, True).is_raw(0, k)
    known = folder.preparation()
    if known is not None:  # labels that this silo does not have are classes of the model, too
        known = replace(known, classes=experiment.federation.classes)
    save_model(place / "model.safetensors", experiment.task, vector, known, name, label, raw)
    test = stack(experiment.federation.pick([name]), "test", experiment.training.device)
    value = float(score(experiment.task, test, vector.reshape(1, 1, -1), experiment.training.memory))
    task = experiment.task
    measures = measures_of(experiment, test, vector.reshape(1, 1, -1)).runs[0] if test.sizes[0] else {}
    about = {"silo": name, "training": prepared.file.training, "method": label, task.metric: value}
    at_home = {key: asdict(measured.silos[name]) for key, measured in measures.items()}
    write_json(place / "report.json", finite({**about, "measures": at_home}))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"statement": digest, "folder": place.name}
