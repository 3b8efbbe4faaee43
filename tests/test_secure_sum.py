"""Secure sums: what the server recovers, who may drop out when, and what a silo answers twice."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.errors import Problem, Refused
from coterie.noise.dice import KeyedDice
from coterie.noise.rounded import grid_exponent
from coterie.privacy.distributed import least_threshold
from coterie.privacy.keys import draw_key
from coterie.secure_sum import (
    STEPS,
    Member,
    Missing,
    Silo,
    State,
    begin,
    confirm,
    contribution,
    forget,
    from_cells,
    mask_upload,
    offer_keys,
    publish_keys,
    recover_sum,
    reveal_shares,
    share_secrets,
    to_cells,
)
from coterie.secure_sum.masks import BLOCK, add_masks
from coterie.secure_sum.silo import signature_and_words
from coterie.secure_sum.wire import pack, unpack
from tests.helpers import refused
from tests.measured import CHANCE
from tests.secure_rounds import STAGES, Round, key_of, some_cells, terms_for


def plain_sum(cells, names):
    """The sum in Python's whole numbers, which never wrap around."""
    rows = [cells[name].tolist() for name in names]
    return [sum(column) for column in zip(*rows, strict=True)]


@st.composite
def rounds(draw):
    """Members, assumptions, and who drops out before which stage."""
    count = draw(st.integers(3, 9))
    colluding = draw(st.integers(0, count - 1))
    dropouts = draw(st.integers(0, count - least_threshold(count, colluding)))
    stages = draw(st.lists(st.sampled_from([*range(STAGES), *[STAGES] * 8]), min_size=count, max_size=count))
    gone = tuple(tuple(k for k in range(count) if stages[k] == stage) for stage in range(STAGES))
    return terms_for(count, dropouts=dropouts, colluding=colluding), gone


@settings(max_examples=60, deadline=None)
@given(rounds(), st.integers(0, 99))
def test_the_sum_is_exact_whoever_drops_out_when(case, seed):
    terms, gone = case
    made = Round(terms, some_cells(terms, seed), gone)
    left = len(terms.members) - np.cumsum([len(names) for names in gone])
    enough = (left[:3] >= terms.least).all() and (left[3:] >= terms.threshold).all()
    if not enough:
        with pytest.raises(Missing, match="nothing can be unmasked"):
            made.until("confirmations").total()
        return
    found = made.until("confirmations").total()
    uploaded = [f"silo-{k}" for k in range(len(terms.members)) if all(k not in names for names in gone[:3])]
    assert found.tolist() == plain_sum(made.cells, uploaded)
    lost = {f"silo-{k}" for names in gone[:4] for k in names}
    assert set(made.server.left_out) == lost


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("deviation", [0.5, 3e-9])
def test_the_longest_uploads_do_not_wrap(sign, deviation):
    terms = terms_for(7, deviation=deviation)
    assert terms.reach > 2**21
    made = Round(terms, {member.name: np.full(6, sign * terms.reach) for member in terms.members})
    assert made.until("confirmations").total().tolist() == [7 * sign * terms.reach] * 6


def test_many_silos_and_several_blocks():
    terms = terms_for(20, size=BLOCK + 3, dropouts=5, colluding=3)
    made = Round(terms, gone=((), (), (3, 19), (7,), ()))
    found = made.until("confirmations").total()
    assert found.tolist() == plain_sum(made.cells, sorted(set(made.silos) - {"silo-3", "silo-19"}))


def test_messages_about_as_many_silos_as_there_may_be():
    terms = terms_for(255, dropouts=0)
    places = tuple(range(255))
    message = pack(terms, "survivors", None, places, bytes(255 * 64))
    assert unpack(terms, "survivors", None, message).silos == places


def test_who_is_missing_is_said():
    terms = terms_for(5, dropouts=2)
    made = Round(terms, gone=((4,), (), (0, 1), (), ())).until("shares")
    with pytest.raises(
        Missing, match="only 2 of 5 silos are left after 'upload', but 3 are needed"
    ) as problem:
        made.uploads()
    assert problem.value.silos == {
        "silo-4": "no answer to 'keys'",
        "silo-0": "no answer to 'upload'",
        "silo-1": "no answer to 'upload'",
    }


def test_a_server_goes_on_without_a_silo_that_sends_nonsense():
    made = Round(terms_for(5, dropouts=2))
    answers = {name: made.ask(offer_keys, name) for name in made.silos}
    answers["silo-1"] = b"nonsense"
    answers["silo-2"] = answers["silo-2"][:-1] + bytes([answers["silo-2"][-1] ^ 1])
    server, _ = publish_keys(made.server, answers)
    assert server.present == ("silo-0", "silo-3", "silo-4")
    assert "not a message" in server.left_out["silo-1"]
    assert "not signed by 'silo-2'" in server.left_out["silo-2"]


def test_wrong_shares_and_uploads_out_of_range_are_noticed():
    made = Round(terms_for(5)).until("confirmations")
    made.total()
    answers = dict(made.answers["unmask"])
    answers["silo-0"] = answers["silo-0"][:-1] + bytes([answers["silo-0"][-1] ^ 1])
    with pytest.raises(Problem, match="the shares of 'silo-4' do not fit its keys"):
        recover_sum(made.server, answers)
    far = made.server.total.copy()
    far[2] += np.uint64(2**62)
    with pytest.raises(Problem, match="out of range"):
        recover_sum(replace(made.server, total=far), made.answers["unmask"])
    with pytest.raises(Problem, match="no uploads yet"):
        recover_sum(replace(made.server, total=None), made.answers["unmask"])


def masked_words(terms, cells):
    """What the server sees of one silo's upload."""
    made = Round(terms, cells).until("uploads")
    row = unpack(terms, "upload", 0, made.answers["upload"]["silo-0"]).rows[0]
    return signature_and_words(row)[1], made


def test_masked_uploads_look_random():
    terms = terms_for(4, size=40_000)
    zeros = {member.name: np.zeros(terms.size, dtype=np.int64) for member in terms.members}
    words, made = masked_words(terms, zeros)
    for shift in (0, 20, 56):
        octets = (words >> np.uint64(shift)).astype(np.uint8)
        assert stats.chisquare(np.bincount(octets, minlength=256)).pvalue > CHANCE
    assert stats.kstest(words / 2.0**64, "uniform").pvalue > CHANCE
    following = np.corrcoef(words[1:].astype(float), words[:-1].astype(float))[0, 1]
    assert abs(following) * math.sqrt(terms.size) < 5.5
    uploads = [
        signature_and_words(unpack(terms, "upload", k, made.answers["upload"][f"silo-{k}"]).rows[0])[1]
        for k in range(4)
    ]
    for one, other in itertools.combinations(uploads, 2):  # each pair alone: the masks do not cancel
        for total in (one + other, one - other):
            assert stats.kstest(total / 2.0**64, "uniform").pvalue > CHANCE


def test_rounds_share_no_mask():
    terms = terms_for(3, size=100, dropouts=0)
    zeros = {member.name: np.zeros(terms.size, dtype=np.int64) for member in terms.members}
    first, second = masked_words(terms, zeros)[0], masked_words(replace(terms, round=1), zeros)[0]
    assert not (first == second).any()


def test_masks_cancel_modulo_two_to_the_64():
    words = np.arange(BLOCK + 5, dtype=np.uint64)
    keys = [bytes([k]) * 32 for k in range(4)]
    add_masks(words, keys[:2], keys[2:])
    assert (words > 2**60).mean() > 0.5
    add_masks(words, keys[2:], keys[:2])
    assert (words == np.arange(BLOCK + 5)).all()


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


def test_a_silo_signs_with_the_key_of_the_plan():
    with refused("another key for 'silo-0'"):
        Silo(terms_for(3), "silo-0", draw_key("silo-0"))
    with refused("'nobody' is not a member"):
        Silo(terms_for(3), "nobody", key_of("silo-0"))


def test_terms_that_cannot_hold():
    with refused(
        "round: expected a whole number >= 0, got -1\nsecure sum: size: expected a whole number from 1"
    ):
        terms_for(round=-1, size=0)
    with refused("training: expected a name"):
        terms_for(training="")
    for bad in (0.0, -1.0, math.inf, math.nan, 1, "1"):
        with refused("deviation: expected a number > 0"):
            terms_for(deviation=bad)
    with refused("a secure sum needs from 3 to 255 silos, got 2"):
        terms_for(2, dropouts=0)
    with refused("at most 1 may drop out, got 2"):
        terms_for(4, dropouts=2, colluding=1)
    with refused("deviation: 1e-14 is too small for a clip of 1"):
        terms_for(deviation=1e-14)
    whole = terms_for(3, dropouts=0)
    with refused("two of them have the same name"):
        replace(whole, members=(*whole.members[:2], Member("silo-0", "a" * 64)))
    with refused("two of them have the same key"):
        replace(whole, members=(*whole.members[:2], Member("x", whole.members[0].public)))
    with refused("the key of 'x' is not 64 hexadecimal digits"):
        replace(whole, members=(*whole.members[:2], Member("x", "A" * 64)))


def test_every_term_changes_the_digest():
    whole = terms_for(5)
    others = {"training": "other", "round": 1, "size": 7, "clip": 2.0, "deviation": 0.6, "dropouts": 0,
              "colluding": 1}  # fmt: skip
    digests = {replace(whole, **{name: value}).digest for name, value in others.items()}
    swapped = replace(whole, members=(whole.members[1], whole.members[0], *whole.members[2:]))
    assert len({whole.digest, swapped.digest, *digests}) == len(others) + 2
    assert whole.digest == terms_for(5).digest


def dice(k=0):
    return KeyedDice(bytes([k]) * 32)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 1e30, 1e300])
def test_a_contribution_reaches_no_further_than_the_clip(scale):
    terms = terms_for(size=500, clip=0.7, deviation=1e-6)
    upload = scale * np.random.default_rng(0).standard_normal(500)
    cells = contribution(upload, terms, dice()) - contribution(np.zeros(500), terms, dice())
    slack = math.sqrt(500) * math.ldexp(1.0, terms.exponent)
    assert np.linalg.norm(from_cells(cells, terms)) <= 0.7 + slack
    if scale >= 1:
        assert np.linalg.norm(from_cells(cells, terms)) > 0.69
    smaller = contribution(upload, terms, dice(), clip=0.1) - contribution(np.zeros(500), terms, dice())
    assert np.linalg.norm(from_cells(smaller, terms)) <= 0.1 + slack


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_contribution_that_is_not_finite_counts_as_zeros(bad):
    terms = terms_for(size=4)
    found = contribution(np.array([1.0, bad, 0.0, 0.0]), terms, dice())
    assert (found == contribution(np.zeros(4), terms, dice())).all()


def test_contributions_that_are_refused():
    terms = terms_for(size=4)
    with refused("expected a clip from 0 to 1, got 1.5"):
        contribution(np.zeros(4), terms, dice(), clip=1.5)
    with refused("expected an upload of 4 numbers, got 5"):
        contribution(np.zeros(5), terms, dice())
    with refused("not on the grid"):
        to_cells(np.full(4, 0.3), terms)
    for far in (np.full(4, 1e9), np.array([0.0, math.nan, 0.0, 0.0])):
        with refused("further out than"):
            to_cells(far, terms)
    made = Round(terms).until("shares")
    boxes = made.messages["boxes"]["silo-0"]
    for far in (terms.reach + 1, -terms.reach - 1, -(2**63)):
        with pytest.raises(Refused, match="nothing is sent"):
            made.ask(mask_upload, "silo-0", boxes, np.array([0, 0, far, 0]))
    for wrong in (np.zeros(4), np.zeros(5, dtype=np.int64), np.zeros((4, 1), dtype=np.int64)):
        with refused("expected 4 cells of int64"):
            made.ask(mask_upload, "silo-0", boxes, wrong)


def test_cells_and_numbers_are_the_same():
    terms = terms_for(size=1000)
    values = dice().noisy(np.linspace(-1, 1, 1000), terms.own_deviation, exponent=terms.exponent)
    assert (from_cells(to_cells(values, terms), terms) == values).all()
    assert terms.exponent == grid_exponent(terms.own_deviation)
