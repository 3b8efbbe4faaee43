"""What a silo remembers of a secure sum: it answers every step once, in order, and never goes back."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import Problem, Refused
from coterie.secure_sum import (
    STEPS,
    State,
    begin,
    confirm,
    forget,
    mask_upload,
    offer_keys,
    reveal_shares,
    share_secrets,
)
from tests.secure_rounds import Round, terms_for


def replay(made, name, cells=None):
    """Each step of a silo with the message that it answered in a finished round."""
    return {
        "keys": (offer_keys,),
        "shares": (share_secrets, made.messages["keys"]),
        "upload": (mask_upload, made.messages["boxes"][name], made.cells[name] if cells is None else cells),
        "confirmation": (confirm, made.messages["survivors"]),
        "unmask": (reveal_shares, made.messages["confirmations"]),
    }


def test_a_repeated_message_gets_the_same_answer_and_changes_nothing():
    made = Round(terms_for(4))
    made.until("confirmations").total()
    stored = made.stored["silo-2"]
    answers = {"confirmation": "confirmations"}
    for step, call in replay(made, "silo-2").items():
        assert made.ask(call[0], "silo-2", *call[1:]) == made.answers[answers.get(step, step)]["silo-2"]
        assert made.stored["silo-2"] == stored


def test_any_other_message_for_an_answered_step_is_refused():
    made, other = Round(terms_for(4)), Round(terms_for(4))
    made.until("confirmations").total()
    other.until("confirmations").total()
    steps = replay(other, "silo-2", made.cells["silo-2"])
    for step in STEPS[1:]:
        with pytest.raises(Refused, match=f"'silo-2' answered '{step}' before, to another message"):
            made.ask(steps[step][0], "silo-2", *steps[step][1:])


def test_another_upload_under_the_same_masks_is_refused():
    made = Round(terms_for(4)).until("uploads")
    cells = made.cells["silo-2"].copy()
    cells[0] -= np.sign(cells[0])
    with pytest.raises(Refused, match="sent another 'upload' before"):
        made.ask(mask_upload, "silo-2", made.messages["boxes"]["silo-2"], cells)


def test_steps_come_in_their_order():
    finished = Round(terms_for(4))
    finished.until("confirmations").total()
    steps = replay(finished, "silo-1")
    for done, step in enumerate(STEPS):
        fresh = State(finished.terms.digest, 1, bytes(32), (("", ""),) * done)
        for later in STEPS[done + 1 :]:
            with pytest.raises(Refused, match=f"'{later}' is not due yet .* next step is '{step}'"):
                steps[later][0](finished.silos["silo-1"], fresh, *steps[later][1:])


def test_a_closed_round_answers_nothing():
    made = Round(terms_for(4))
    made.until("confirmations").total()
    closed = forget(State.from_bytes(made.stored["silo-1"]))
    secret = State.from_bytes(made.stored["silo-1"]).seed.hex().encode()
    assert secret in made.stored["silo-1"]
    assert secret not in closed.to_bytes()
    assert len(closed.done) == len(STEPS)
    for step, *message in replay(made, "silo-1").values():
        with pytest.raises(Refused, match="round 0 is closed for 'silo-1'"):
            step(made.silos["silo-1"], State.from_bytes(closed.to_bytes()), *message)


def test_a_state_belongs_to_one_silo_and_one_round():
    made = Round(terms_for(4)).until("keys")
    later = Round(terms_for(4, round=1))
    for owner in (made.silos["silo-1"], later.silos["silo-0"]):
        with pytest.raises(Refused, match="belongs to another silo, round or training"):
            offer_keys(owner, State.from_bytes(made.stored["silo-0"]))


def test_damaged_states_are_refused():
    stored = Round(terms_for(4)).until("confirmations").stored["silo-0"]
    assert State.from_bytes(stored).to_bytes() == stored
    assert "confirmation" in repr(State.from_bytes(stored))
    assert State.from_bytes(stored).seed.hex() not in repr(State.from_bytes(stored))
    for damaged in (
        b"",
        b"{}",
        b"[]",
        stored[:-1],
        stored.replace(b'"place":0', b'"place":-0'),
        b"[" * 10**5,
    ):
        with pytest.raises(Problem, match="the state of a silo is damaged"):
            State.from_bytes(damaged)


def test_seeds_differ():
    silo = Round(terms_for(3)).silos["silo-0"]
    assert begin(silo).seed != begin(silo).seed
    assert len(begin(silo).seed) == 32
