"""What epsilon means: sure and right are bounds on what Bayes' rule gives anyone, and pages say so."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from scipy.special import expit, ndtr

from coterie.privacy import gaussian
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.events import Event
from coterie.privacy.meaning import meaning_lines, meaning_of, percent
from coterie.privacy.statement.build import text_of
from coterie.privacy.statement.checklist import checklist
from coterie.report.meaning_section import picture, statement_meaning
from coterie.report.statement_page import page
from tests.helpers import call
from tests.test_statement import EVENTS, make

DELTA = 1e-3


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 8.0, 500.0])
def test_pure_privacy_is_the_randomised_response(epsilon):
    """Half sure, then told one bit that is right with probability e^epsilon / (1 + e^epsilon)."""
    found = meaning_of(epsilon, 0.0)
    assert found.sure == pytest.approx(expit(epsilon))
    assert found.right == pytest.approx(expit(epsilon))
    assert found.exception == 0
    assert found.from_prior(0.5) == pytest.approx(found.sure)
    assert found.from_prior(0.01) == pytest.approx(expit(epsilon - math.log(99)))


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_nobody_gets_surer_or_is_right_more_often(mu):
    """The Gaussian mechanism, with the events and with its pair alone, against Bayes' rule on simulated values."""
    event = Event("gaussian", 1 / mu)
    epsilon = epsilon_of((event,), DELTA)
    generator = np.random.default_rng(0)
    loss = mu * (mu + generator.normal(size=400_000)) - mu**2 / 2  # if the unit was used
    for events in ((event,), ()):
        found = meaning_of(epsilon, DELTA, events)
        above = (expit(loss) > found.sure).mean()
        assert above <= found.exception + 6 * math.sqrt(found.exception / len(loss))
        assert ndtr(mu / 2) <= found.right  # the best guess is right that often
    closer, coarse = meaning_of(epsilon, DELTA, (event,)), meaning_of(epsilon, DELTA)
    assert closer.right == pytest.approx(ndtr(mu / 2), abs=2e-3)
    assert closer.right < coarse.right
    assert closer.sure <= coarse.sure
    exceeded = 1 - ndtr((math.log(closer.odds) + mu**2 / 2) / mu - mu)
    assert 0.2 * closer.exception < exceeded <= closer.exception  # not far from what is true


def test_sampled_steps_make_nobody_surer():
    """Many steps on samples, as in training, against Bayes' rule on simulated values, both ways round."""
    noise, rate, steps, count = 2.5, 0.14, 40, 200_000
    event = Event("gaussian", noise, rate, steps)
    found = meaning_of(epsilon_of((event,), DELTA), DELTA, (event,))
    generator = np.random.default_rng(0)
    losses = []
    for used in (True, False):
        loss = np.zeros(count)
        for _ in range(steps):
            drawn = generator.random(count) < rate if used else 0.0
            value = noise * generator.normal(size=count) + drawn
            loss += np.log1p(rate * np.expm1((2 * value - 1) / (2 * noise**2)))
        losses.append(loss)
    for above in (losses[0] > math.log(found.odds), losses[1] < -math.log(found.odds)):
        assert above.mean() <= found.exception + 6 * math.sqrt(found.exception / count)
    best = ((losses[0] > 0).mean() + (losses[1] <= 0).mean()) / 2
    assert best - 6 * math.sqrt(0.25 / count) <= found.right <= best + 0.01


def test_the_exception_is_needed_and_is_counted():
    """A mechanism that tells all with probability delta makes somebody quite sure, just that often."""
    found = meaning_of(0.0, DELTA)
    assert found.sure == pytest.approx(2 / 3)  # odds of two to one
    assert found.exception == 2 * DELTA
    assert found.right == pytest.approx((1 + DELTA) / 2)


def test_repeated_rounds_are_not_read_from_the_events():
    """What was charged is more than what a plan fixed in advance would cost, so only the pair holds."""
    events = (Event("gaussian", 2.0, 0.1, 50),)
    epsilon = epsilon_of(events, DELTA)
    assert meaning_of(epsilon, DELTA, events).right < meaning_of(epsilon, DELTA).right
    assert meaning_of(1.1 * epsilon, DELTA, events).right == meaning_of(1.1 * epsilon, DELTA).right


def test_the_curve_is_that_of_the_guarantee():
    events = (Event("gaussian", 1.0),)
    curve = meaning_of(epsilon_of(events, DELTA), DELTA, events).curve
    true = ndtr(-ndtri_safe(curve.type_one) - 1.0)
    assert np.all(curve.type_two <= true + 1e-9)
    assert np.max(true - curve.type_two) < 0.02
    assert gaussian.delta_of(1.0, 0.0) == pytest.approx(2 * ndtr(0.5) - 1)


def ndtri_safe(values):
    from scipy.special import ndtri

    return ndtri(np.clip(values, 1e-300, 1 - 1e-16))


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.5, "50.0 %"),
        (0.7310586, "73.2 %"),
        (0.998354, "99.84 %"),
        (0.99999991, "99.99999 %"),
        (1.0, "100 %"),
    ],
)
def test_shares_are_rounded_up_and_never_to_certainty(share, said):
    if share == 0.99999991:
        said = "99.999991 %"
    assert percent(share) == said
    assert percent(1 - 1e-16) in ("almost 100 %", "100 %")


def test_sentences():
    lines = meaning_lines(meaning_of(1.0, 1e-5), "example")
    assert lines[0] == (
        "Someone who is 50 % sure that your record was used can become at most 84.5 % sure of it from"
        " everything that this run released, except with a probability of at most 2e-05."
    )
    assert lines[1] == "Someone who is 1 % sure can become at most 5.3 % sure, with the same exception."
    odds = 2 * math.e  # by hand: twice e^epsilon, rounded up
    assert (84.4, 5.2) < (100 * odds / (1 + odds), 100 * (odds / 99) / (1 + odds / 99)) < (84.5, 5.3)
    assert "that your silo took part can become" in meaning_lines(meaning_of(1.0, 0.0), "silo")[0]
    assert "except" not in " ".join(meaning_lines(meaning_of(1.0, 0.0), "silo"))


def test_a_page_says_it_in_odds_with_a_picture_and_a_checklist():
    content = make()
    shown = page(content)
    meaning = statement_meaning(content)
    for line in meaning_lines(meaning, "example"):
        assert line.replace(" %", "&nbsp;%") in shown  # no line begins with a percent sign
    assert shown.count("<svg") == 1
    assert "A false alarm says yes although the truth is no" in shown
    assert "Our questions, on topics of NIST SP 800-226" in shown
    assert "NIST has neither written nor reviewed them" in shown
    assert "<code>coterie statement verify</code> recomputes" in shown
    assert "`" not in shown
    for question, _ in checklist(content):
        assert question in shown
    bare = page(make(events=(Event("gaussian", 0.0, 0.01, 500),), budget=math.inf))
    assert "sure that your record" not in bare
    assert "There is no guarantee" in bare


def test_the_picture_lies_where_the_curve_does():
    curve = meaning_of(1.0, 0.0).curve
    root = ElementTree.fromstring(picture(curve))
    lines = [line.get("points").split() for line in root.iter("polyline")]
    drawn = max(lines, key=len)
    assert len(drawn) == len(curve.type_one)
    (x0, y0), (x1, y1) = ([float(part) for part in point.split(",")] for point in (drawn[0], drawn[-1]))
    assert x1 - x0 == y1 - y0 == 290  # from no false alarms and all misses to the opposite


def test_the_picture_can_be_read_on_a_narrow_page():
    """At 400 pixels the page leaves 368: text of at least 11 pixels, a title, and the legend below the axes."""
    root = ElementTree.fromstring(picture(meaning_of(1.0, 0.0).curve))
    _, _, width, height = map(float, root.get("viewBox").split())
    texts = {text.text: text for text in root.iter("text")}
    smallest = min(float(each.get("font-size", root.get("font-size"))) for each in texts.values())
    assert smallest * min(1.0, 368 / width) >= 11
    assert "How often any attacker must be wrong" in texts
    axis = float(texts["false alarms"].get("y"))
    for line in ("no attack does better", "blind guessing", "impossible for any attack"):
        assert axis < float(texts[line].get("y")) < height


def test_a_checklist_has_an_answer_to_every_question_and_follows_the_statement():
    answers = dict(checklist(make()))
    assert all(answer.endswith(".") and answer[0].isupper() for answer in answers.values())
    assert "one row of the silo" in answers["What is one unit of privacy?"]
    assert "at most 5.801 at delta 1e-05" in answers["How large are epsilon and delta?"]
    assert answers["Does it include other uses of the same data?"].startswith("No")
    assert answers["Where does the randomness come from?"].startswith("Simulated")
    assert answers["Can rounding errors leak information?"].startswith("Yes: a simulation's noise")
    assert "side channels" in answers["What else must one judge?"]
    two = make(events=(*EVENTS, Event("gaussian", 3.0)))
    assert dict(checklist(two))["Which mechanisms were used?"].startswith("Gaussian (501 releases); each")


def test_showing_a_statement(monkeypatch, capsys, tmp_path):
    file = tmp_path / "north.json"
    file.write_text(text_of(make()))
    code, out, _ = call(monkeypatch, capsys, "statement", "show", str(file))
    assert code == 0
    assert "Privacy statement for north, mr-mtl: epsilon at most 5.801 at delta 1e-05, for one example" in out
    assert "can become at most 99.84 % sure" in out
    assert "all other silos together: 5.801" in out
    assert "What is one unit of privacy?" in out
    assert "features were standardized" in out
    facts = json.loads(call(monkeypatch, capsys, "statement", "show", str(file), "--json")[1])
    assert facts["sure"] == pytest.approx(0.99835, abs=1e-4)
    assert facts["right"] == pytest.approx(0.638, abs=1e-2)
    assert (len(facts["checklist"]), facts["rounding"]) == (12, None)


def test_a_forged_statement_is_not_shown(monkeypatch, capsys, tmp_path):
    file = tmp_path / "north.json"
    file.write_text(text_of(make()).replace('"budget": 6.0', '"budget": 5.0'))
    code, out, err = call(monkeypatch, capsys, "statement", "show", str(file))
    assert (code, out) == (2, "")
    assert "checksum" in err
