"""Passes in ledgers and statements: charged, stated, verified; claims that do not match them are found."""

from __future__ import annotations

import copy
import math

import pytest

from coterie.errors import Problem
from coterie.guard.session import Session
from coterie.methods import MRMTL
from coterie.privacy.accountant import ORDERS, epsilon_of
from coterie.privacy.approximate_gaussian import approximation
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.filters import Spent
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.statement.build import OpenedDoor, build_statement, checksum, text_of
from coterie.privacy.statement.checklist import checklist
from coterie.privacy.statement.in_ledger import find_in_ledger
from coterie.privacy.statement.recheck import OURS, recheck_lines
from coterie.privacy.statement.verify import verify
from coterie.report.statement_page import page
from tests.books import custody, ledger, meter_of, spent
from tests.helpers import experiment

ALL = ("server", "silos", "shared", "personal")
EVENT = Event("gaussian", 2.0, 0.1, 50, "allocation")
EPSILON = epsilon_of((EVENT,), 1e-5)


def passes(federation, **more):
    return experiment(federation, MRMTL(lam=0.5), sampling="passes", epsilon={"each": [1.0, 2.0]}, **more)


# Ledgers


@pytest.mark.parametrize("kind", ["basic", "gdp"])
def test_a_metered_training_is_charged_stated_and_found(federation, tmp_path, kind):
    made = passes(federation, epochs=2.0)
    room = [(4.0, 2e-3)] * 3
    meter, plan = meter_of(made, tmp_path, room, kind)
    result = made.train(plan, session=Session(meter=meter))
    for k, book in enumerate(meter.ledgers):
        silo, report = plan.silos[0][k], check_ledger(book.path, independently=True)
        (event,) = book.state().claim_of(3).events(0, 3)
        assert event == Event("gaussian", silo.noise, 1 / silo.work.per_pass, 6, "allocation")
        verdicts = 1 if kind == "basic" else 2
        assert report.rechecked == {"undecided": verdicts}  # dp-accounting does not know passes
        total = report.totals["example"]["server"]
        if kind == "basic":
            assert total == (silo.epsilon, silo.delta)
        else:
            assert 0 < total[0] <= room[k][0]
        content = statement(made, plan, k, meter)
        assert content["guarantee"]["epsilon"] == silo.epsilon == result.runs[0].silos[silo.name].epsilon
        verify(text_of(content))
        find_in_ledger(content, tmp_path / "ledgers", custody(tmp_path / "ledgers").witness)


def statement(made, plan, k, meter):
    from coterie.experiment.statements import statement_of

    return statement_of(made, plan, 0, k, meter)


def claim(events=(EVENT,), epsilon=None, rounds=1):
    asked = Claim("fedavg", "example", 1e-5, 0.0, ((rounds, events),), ALL)
    certified = asked.certified(0, rounds) if epsilon is None else epsilon
    return Claim("fedavg", "example", 1e-5, certified, asked.stages, ALL)


def test_each_filter_adds_up_passes(tmp_path):
    books = {kind: ledger(tmp_path / kind, 200.0, 1e-3, kind) for kind in ("basic", "rdp", "gdp")}
    for book in books.values():
        for _ in range(2):
            book.reserve(book.claim(claim()).run, 0, 1)
        check_ledger(book.path)
    assert spent(books["basic"]) == (2 * EPSILON, 2e-5)
    order = books["rdp"].state().order
    whole = 2 * 50 * order / (2 * 2.0**2)  # a pass counts like one release of all examples
    turned = math.log1p(-1 / order) - math.log(1e-3 * order) / (order - 1)
    assert order in ORDERS
    assert spent(books["rdp"])[0] == pytest.approx(whole + turned)
    mu, told = approximation((EVENT,), 1e-5)
    assert books["gdp"].state().filter.carried(books["gdp"].state(), "example", "server") == pytest.approx(
        (2 * mu**2, 2 * told)
    )
    assert mu < math.sqrt(50) / 2 / 2  # far less than without sampling


def test_a_filter_that_has_no_good_bound_says_so(tmp_path):
    assert EPSILON < 10
    book = ledger(tmp_path, 10.0, 1e-3, "rdp")
    with pytest.raises(Spent, match=r"the filter 'rdp' counts a pass over the data like one release of all"):
        book.claim(claim())
    ledger(tmp_path / "basic", 10.0, 1e-3).claim(claim())


def test_a_claim_of_less_than_passes_cost_is_found(tmp_path):
    """A pass is no single step: whoever charges 50 steps for 50 passes is refused."""
    steps = epsilon_of((Event("gaussian", 2.0, 0.1, 50),), 1e-5)
    assert steps < EPSILON / 2
    book = ledger(tmp_path)
    row = {**claim(epsilon=steps).to_json(), "allowed": 1}
    with book.change() as changes:
        changes.state.sums.clear()
        changes.add("run", row)
    with pytest.raises(Problem, match=r"row 3: it states epsilon .*, but its events give"):
        check_ledger(book.path)


# Statements


def made():
    door = OpenedDoor("descend", 25, 20, "allocation", 0.1, 8.0, 1.0, 2.0)
    return build_statement(
        silo="north", method="mr-mtl", settings={"lam": 0.5}, size=80, doors=[door], events=[EVENT],
        seen=ALL, budget=6.0, delta=1e-5, not_covered=[],
    )  # fmt: skip


def test_a_statement_of_passes_says_so_and_verifies():
    content = made()
    assert verify(text_of(content)) == content
    assert content["guarantee"]["epsilon"] == EPSILON
    assert content["published"] == content["warnings"] == []
    assert 0.5 * EPSILON < content["guarantee"]["lower"] < EPSILON
    shown = page(content)
    assert (
        "25 calls with 20 noisy steps each; in whole passes, with every example in exactly one of 10" in shown
    )
    assert "50 passes of 10 releases, with noise multiplier 2" in shown
    answers = dict(checklist(content))
    drawn = "Gaussian (500 releases); examples were drawn in passes (50 passes of 10 releases); each"
    assert answers["Which mechanisms were used?"].startswith(drawn)
    assert "there is no independent check of this epsilon" in answers["Who can check it?"]
    assert "each pass counts as one release of all examples" in answers["What is one unit of privacy?"]
    assert "each pass counts as one release of all examples" in shown.partition("What this means")[0]
    lines = recheck_lines(content)
    assert lines[0] == f"guarantee.epsilon: {OURS}"
    assert "guarantee.replace_one: dp-accounting confirms it" in lines[1]


def test_a_pass_of_one_step_is_said_to_be_on_all_examples():
    door = OpenedDoor("descend", 5, 1, "allocation", 1.0, 80.0, 1.0, 5.0)
    content = build_statement(
        silo="north", method="local", settings={}, size=80, doors=[door],
        events=[Event("gaussian", 5.0, 1.0, 5, "allocation")], seen=ALL, budget=6.0, delta=1e-5,
        not_covered=[],
    )  # fmt: skip
    verify(text_of(content))
    assert "5 calls with 1 noisy steps each; on all 80 examples" in page(content)
    assert "wherever it can" in dict(checklist(content))["Who can check it?"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c["doors"][0].update(sampler="poisson"),
            "doors: 500 noisy sums at rate 0.1 with noise 2, but the events have 0",
        ),
        (lambda c: c["doors"][0].update(sampler="shuffled"), "the sampler 'shuffled' is not accounted for"),
        (
            lambda c: c["doors"][0].update(steps=10),
            "doors: 250 noisy sums at rate 0.1 in passes with noise 2, but the",
        ),
        (
            lambda c: c["doors"][0].update(rate=0.05, expected_batch=4.0),
            "noisy sums at rate 0.05 in passes with noise 2, but the events have 0",
        ),
        (lambda c: c["events"][0].update(sampler="poisson"), "guarantee.lower: states"),
        (lambda c: c["events"][0].update(sampler="poisson", count=500), "guarantee.epsilon: states"),
        (lambda c: c["events"][0].update(count=500), "guarantee.epsilon: states .*, but the events give"),
        (lambda c: c["events"][0].update(rate=0.3), r"rate must be 1 / \(a whole number\)"),
        (lambda c: c["guarantee"].update(epsilon=1.0), "guarantee.epsilon: states 1, but the events give"),
        (lambda c: c["guarantee"].update(lower=0.99 * EPSILON), "guarantee.lower"),
        (lambda c: c["guarantee"].update(replace_one=1.0), "guarantee.replace_one"),
    ],
)
def test_a_statement_that_does_not_match_its_passes_is_found(change, said):
    content = copy.deepcopy(made())
    change(content)
    content["checksum"] = checksum(content)
    with pytest.raises(Problem, match=said):
        verify(text_of(content))


def test_a_run_resumes_only_with_the_same_sampling(federation, tmp_path):
    before = passes(federation)
    meter, plan = meter_of(before, tmp_path, [(4.0, 2e-3)] * 3)
    claims = [[before.accounting.claim("x", plan, 0, k)] for k in range(3)]
    meter.claim(claims, partial=False)
    other = experiment(federation, MRMTL(lam=0.5), epsilon={"each": [1.0, 2.0]})
    changed = [[other.accounting.claim("x", other.plan(), 0, k)] for k in range(3)]
    with pytest.raises(Problem, match="its ledger does not have the run that the checkpoint resumes"):
        meter.another().resume(changed, meter.claims)
