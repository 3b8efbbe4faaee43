"""Metered sweeps: drawn from what was charged, repeats stated, no score from a silo that left."""

from __future__ import annotations

import pytest
import torch

from coterie.cli.statement import verify_statements
from coterie.experiment.run_sweep import trial_statement
from coterie.experiment.sweep import noised_scores, tuned_plan
from coterie.guard import checkpoint
from coterie.guard.ledgers import open_ledgers
from coterie.guard.meter import EntropyStreams, make_meter
from coterie.guard.session import Charging, Session
from coterie.privacy.ledger.filters import charge
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.verify import verify
from tests.helpers import call
from tests.test_sweep import file as file
from tests.test_sweep import made_sweep


def held_sweep(federation, tmp_path, budget=200.0, filter="basic"):
    """A metered sweep of four trials up to where it trains: meter, experiment, sweep, plan."""
    made, sweep = made_sweep(federation)
    plan = tuned_plan(made, sweep)
    for ledger in open_ledgers(tmp_path, federation, [(budget, 1e-1)] * 3, filter):
        ledger.close()
    meter = make_meter(tmp_path, federation, [None] * 3)
    meter.hold([sweep.best("fedavg", plan, k) for k in range(3)])
    return meter, made, sweep, plan


def test_trials_are_drawn_after_they_were_charged_and_from_that_row(federation, tmp_path):
    """Whoever does not like a draw and draws again is charged again."""
    meter, _, sweep, plan = held_sweep(federation, tmp_path)
    first = meter.entropy()
    assert first == meter.entropy()
    once = meter.ledgers[0].state().total("example", "personal")
    assert once[0] == sweep.best("fedavg", plan, 0).epsilon
    meter.hold([sweep.best("fedavg", plan, k) for k in range(3)])
    assert meter.entropy() != first
    assert meter.ledgers[0].state().total("example", "personal")[0] == pytest.approx(2 * once[0])


def test_a_draw_that_was_changed_is_refused(file, monkeypatch, capsys):
    monkeypatch.setattr("coterie.experiment.run_sweep.train_one", interrupted)
    assert call(monkeypatch, capsys, "sweep", "c.toml", "--out", "out")[0] == 130
    path = file.parent / "out/draw.json"
    kept = path.read_text()
    for changed in ('{"held": [], "settings": [1, 1]}', '{"held": [], "settings": ["a"]}', "[]", "x"):
        path.write_text(changed)
        code, _, err = call(monkeypatch, capsys, "sweep", "c.toml", "--out", "out")
        assert code == 2
        assert "was changed" in err or "is damaged" in err
    path.write_text(kept)
    assert call(monkeypatch, capsys, "sweep", "c.toml", "--out", "out")[0] == 130


def interrupted(*_arguments, **_named):
    raise KeyboardInterrupt


def test_repeated_rounds_of_a_sweep_are_in_the_statement(federation, tmp_path):
    """The chosen model is charged once, all trials also for what was repeated; both are stated."""
    meter, made, sweep, plan = held_sweep(federation, tmp_path)
    session = Session(tmp_path / "checkpoint", "key", meter, 1, Charging(sweep.asks, together=True))
    real = checkpoint.save
    saves = []

    def dies(*arguments):
        saves.append(arguments)
        if len(saves) == 2:
            raise KeyboardInterrupt
        real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.guard.session.save", dies)
        with pytest.raises(KeyboardInterrupt):
            made.train(plan, session=session)
    again = make_meter(tmp_path, federation, [None] * 3)
    again.take_held([sweep.best("fedavg", plan, k) for k in range(3)], meter.held)
    made.train(
        plan, session=Session(tmp_path / "checkpoint", "key", again, 1, Charging(sweep.asks, together=True))
    )
    content = trial_statement(made, sweep, plan, 0, 0, again)
    state = again.ledgers[0].state()
    charged = charge(state, again.claims[0][0])
    assert charged[0] > sweep.asks("fedavg", plan, 0)[0].epsilon
    against = {name: entry["epsilon"] for name, entry in content["adversaries"].items()}
    assert (against["server"], content["guarantee"]["delta"]) == charged
    assert against["personal"] == charge(state, again.held[0])[0] <= 4.0
    verify(text_of(content))
    (tmp_path / "statement.json").write_text(text_of(content))
    verify_statements([tmp_path / "statement.json"], tmp_path, as_json=False)


def test_a_silo_that_left_gives_no_score(federation, tmp_path):
    meter, made, sweep, plan = held_sweep(federation, tmp_path, filter="rdp")
    asked = []
    monkeypatched = pytest.MonkeyPatch()
    real = EntropyStreams.kept
    monkeypatched.setattr(
        EntropyStreams, "kept", lambda self, silo, what: asked.append(silo) or real(self, silo, what)
    )
    session = Session(meter=meter, every=1, charging=Charging(sweep.asks, together=True))

    def hear(number, _score):
        if number == 1:
            spent = meter.ledgers[0].state().total("example", "server")[0]
            meter.ledgers[0].set_budget("example", spent * 1.001, 1e-1)

    vectors = made.train(plan, hear, session).vectors
    noised_scores(made, sweep, torch.stack([vectors[run] for run in range(4)]), meter)
    monkeypatched.undo()
    assert "silo-0" in meter.left
    assert set(asked) == {"silo-1", "silo-2"}


@pytest.mark.parametrize("filter", ["rdp", "basic"])
def test_a_silo_that_left_gives_no_score_when_the_training_is_taken_up_at_its_end(
    federation, tmp_path, filter, monkeypatch
):
    meter, made, sweep, plan = held_sweep(federation, tmp_path, filter=filter)
    asked, real = [], EntropyStreams.kept
    monkeypatch.setattr(
        EntropyStreams, "kept", lambda self, silo, what: asked.append(silo) or real(self, silo, what)
    )

    def hear(number, _score):
        if number == 1:
            spent = meter.ledgers[0].state().total("example", "server")[0]
            meter.ledgers[0].set_budget("example", spent * (1.001 if filter == "rdp" else 0.5), 1e-1)

    made.train(plan, hear, Session(tmp_path / "point", "key", meter, 1, Charging(sweep.asks, together=True)))
    again = make_meter(tmp_path, federation, [None] * 3)
    again.take_held([sweep.best("fedavg", plan, k) for k in range(3)], meter.held)
    vectors = made.train(
        plan, session=Session(tmp_path / "point", "key", again, 1, Charging(sweep.asks, together=True))
    ).vectors
    noised_scores(made, sweep, torch.stack([vectors[run] for run in range(4)]), again)
    assert set(asked) == {"silo-1", "silo-2"}
    assert "its ledger covered 1 of" in again.left["silo-0"]


def test_a_sweep_without_privacy_says_none(tmp_path, monkeypatch, capsys):
    path = tmp_path / "free.toml"
    path.write_text(
        'data.silos = 3\ntrain.rounds = 2\ntrain.steps = 1\nprivacy.epsilon = inf\ntuning.trials = "geometric"\n'
        '[[method]]\nname = "fedprox"\nmu = [0.1, 1.0]\n'
    )
    code, out, err = call(monkeypatch, capsys, "sweep", path, "--out", tmp_path / "out")
    assert code == 0, err
    assert "epsilon is at most none" in " ".join(out.split())


def test_the_choice_of_a_sweep_cannot_be_cancelled(tmp_path):
    """Its row decides how many trials there are: whoever cancels it could draw until the number pleases."""
    from coterie.errors import Problem
    from coterie.privacy.events import Event
    from coterie.privacy.ledger.claim import Claim
    from coterie.privacy.ledger.ledger import Identity, open_ledger
    from coterie.privacy.trials import Trials
    from tests.books import custody

    ledger = open_ledger(tmp_path, Identity("data", "north", 100), (50.0, 0.1), custody=custody(tmp_path))
    event = Event("gaussian", 8.0, 0.1, 1)
    claim = Claim("sweep", "example", 1e-4, 1.0, ((5, (event,)),), ("personal",), Trials("geometric", 3.0))
    run = ledger.claim(claim).run
    with pytest.raises(Problem, match="decides how many trials"):
        ledger.cancel(run)
    assert ledger.state().total("example", "personal")[0] > 0
