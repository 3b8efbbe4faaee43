"""What doors release: the one place that plans, ledgers and statements read."""

from __future__ import annotations

import pytest

from coterie.errors import Refused
from coterie.privacy.events import Event
from coterie.protocol.doors import (
    DESCEND,
    DESCEND_AT_HOME,
    FISHER,
    SOLVE_DUAL,
    SOLVE_DUAL_UNPROVEN,
    SOLVE_DUAL_WHOLE,
    Calls,
    Noise,
    Work,
    released,
    select_door,
)

WORK, NOISE = Work(100, 25, 4), Noise(3.0, 7.0)


@pytest.mark.parametrize(
    ("door", "event"),
    [
        (DESCEND, Event("gaussian", 3.0, 0.25, 4)),
        (SOLVE_DUAL, Event("gaussian", 3.0, 0.25, 4)),
        (SOLVE_DUAL_WHOLE, Event("gaussian", 3.0, 1.0, 1)),
        (SOLVE_DUAL_UNPROVEN, Event("gaussian", 3.0, 1.0, 1)),
        (select_door(0.1), Event("selection", 7.0, 1.0, 1)),
        (DESCEND_AT_HOME, None),
        (FISHER, None),
    ],
)
def test_a_call_releases_one_event(door, event):
    assert door.releases(WORK, NOISE) == event


def test_sampled_doors_count_steps_and_others_count_calls():
    assert DESCEND.releases(WORK, NOISE, calls=3, steps=10).count == 10
    assert SOLVE_DUAL_WHOLE.releases(WORK, NOISE, calls=3, steps=10).count == 3
    assert select_door(0.1).releases(WORK, NOISE, calls=3, steps=10).count == 3
    assert DESCEND.releases(WORK, NOISE, calls=0) is None


def test_calls_of_several_doors_add_up():
    used = [Calls(DESCEND, 2, 8), Calls(select_door(0.1), 2, 8), Calls(DESCEND, 1, 4), Calls(FISHER, 9, 36)]
    assert released(used, WORK, NOISE) == (
        Event("gaussian", 3.0, 0.25, 12),
        Event("selection", 7.0, 1.0, 2),
    )
    assert released([], WORK, NOISE) == ()


def test_sampled_sums_and_whole_uploads_need_two_noises():
    both = [Calls(DESCEND, 1, 4), Calls(SOLVE_DUAL_WHOLE, 1, 4)]
    with pytest.raises(Refused, match="one noise cannot fit both"):
        released(both, WORK, NOISE)
    whole = Work(20, 20, 4)  # the rate is 1, and a sampled sum still is not a whole upload
    with pytest.raises(Refused, match="one noise cannot fit both"):
        released(both, whole, NOISE)


def test_only_unproven_noise_certifies_nothing():
    doors = [DESCEND, DESCEND_AT_HOME, FISHER, SOLVE_DUAL, SOLVE_DUAL_WHOLE, select_door(0.2)]
    assert all(door.proven for door in doors)
    assert not SOLVE_DUAL_UNPROVEN.proven


def test_messages_name_a_choice_by_its_share():
    assert [str(door) for door in (DESCEND, DESCEND_AT_HOME, select_door(0.1))] == [
        "descend",
        "home",
        "select 0.1",
    ]
