"""The unit 'person': all rows of one person are sampled, clipped, counted and charged together."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.cohort.dual.sampled import DualRequest, clipped_together, solve_apart
from coterie.cohort.examples import stack
from coterie.cohort.gradients.clipping import clipped_sums, rows_within
from coterie.cohort.sampling import Rows
from coterie.cohort.score import bounded_total
from coterie.cohort.sgd import bytes_of_sums
from coterie.data.federation import Federation, Silo
from coterie.engines.start import SeededStart
from coterie.errors import Problem
from coterie.experiment.experiment import Experiment
from coterie.experiment.statements import statement_for
from coterie.methods import IFCA, Ditto, FedAvg, Mocha
from coterie.planning.accounting import ACCOUNTING
from coterie.planning.training import Training
from coterie.privacy.accountant import epsilon_of
from coterie.privacy.budget import Privacy
from coterie.privacy.events import Event
from coterie.privacy.ledger.claim import Claim
from coterie.privacy.ledger.custody import Custody
from coterie.privacy.ledger.entries import FIRST, LedgerEntry, LedgerState
from coterie.privacy.ledger.ledger import read_ledger
from coterie.privacy.ledger.verify import check_ledger
from coterie.privacy.ledger.witness import FolderWitness
from coterie.privacy.statement.build import ELSEWHERE_TOO, ONE_NUMBER, ROWS_APART, checksum, text_of
from coterie.privacy.statement.in_ledger import find_in_ledger
from coterie.privacy.statement.verify import verify
from coterie.privacy.trials import Trials
from coterie.protocol.streams import SeededStreams
from coterie.report.statement_page import page
from coterie.tasks.task import make_task
from coterie.testing import check_method
from tests.helpers import every_method, reference_vectors, refused, task_for, title, vectors

PRIVACY = Privacy(epsilon=4.0, delta=1e-3, unit="person")
CNN = {"channels": 3}


def federation(rows=(1, 3, 5, 2, 1, 4), silos=2, shape=(3,), classes=2, most=3, seed=0) -> Federation:
    """Return silos in which person i has `rows[i]` rows, in mixed order."""
    generator, made = np.random.default_rng(seed), []
    for k in range(silos):
        person = torch.from_numpy(generator.permutation(np.repeat(np.arange(len(rows)), rows)))
        x = torch.from_numpy(generator.normal(size=(len(person), *shape)).astype(np.float32))
        y = torch.from_numpy(generator.integers(0, classes, len(person)))
        made.append(Silo(f"silo-{k}", x, y, x[:3], y[:3], person, torch.tensor([0, 1, 1])))
    return Federation("made up", tuple(made), tuple(map(str, range(classes))), rows_per_person=most)


def experiment(data: Federation, method=None, privacy=PRIVACY, task=None, **training) -> Experiment:
    training = {"rounds": 3, "batch": 2, "lr": 0.3} | training
    made = Experiment(data, task or task_for(data), method or FedAvg(), privacy, Training(**training))
    made.check()
    return made


@pytest.mark.parametrize("method", every_method(), ids=title)
def test_every_method_conforms(method):
    check_method(method, "person")


# One row per person: nothing but the words may change.


@pytest.mark.parametrize("epsilon", [4.0, float("inf")])
@pytest.mark.parametrize("method", [FedAvg(), IFCA(clusters=2), Ditto()], ids=title)
def test_with_one_row_per_person_it_is_the_unit_example_to_the_bit(method, epsilon):
    data = federation(rows=(1,) * 20)
    person, example = (
        experiment(data, method, Privacy(epsilon=epsilon, delta=1e-3, unit=unit))
        for unit in ("person", "example")
    )
    assert torch.equal(vectors(person), vectors(example))
    assert person.plan().silos == example.plan().silos


def test_rates_and_epsilon_are_those_of_persons():
    data = federation(rows=(4,) * 12)
    made = experiment(data)
    silo = made.plan().silos[0][0]
    assert (silo.work.size, silo.rate, silo.steps) == (12, 2 / 12, 3 * 6)
    assert silo.epsilon == pytest.approx(epsilon_of((Event("gaussian", silo.noise, 2 / 12, 18),), 1e-3))
    assert silo.epsilon <= 4.0
    assert data.sizes == (48, 48)


# The clip holds for a person, whoever they are and however many rows they have.


def batch(examples, who) -> Rows:
    """Return one row of a batch with some members of silo 0."""
    members = torch.tensor([who])
    return Rows(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), members, members >= 0)


def sums(data, task, vector, who, clip=1.0, unit="person") -> torch.Tensor:
    examples = stack(data, "train", each=data.rows_each(unit))
    return clipped_sums(task, examples, vector[None], batch(examples, who), torch.tensor([clip]), 4)[0]


TASKS = {
    "linear": ((3,), "linear", {}),
    "mlp": ((3,), "mlp", {"hidden": 5}),
    "cnn": ((6, 6), "cnn", CNN),
}


def with_rows_of(data: Federation, person: int, change) -> Federation:
    """Return the federation with all rows of one person of silo 0 changed."""
    silo = data.silos[0]
    mine = silo.person == person
    x, y = silo.x.clone(), silo.y.clone()
    x[mine], y[mine] = change(x[mine], y[mine])
    return replace(data, silos=(replace(silo, x=x, y=y), *data.silos[1:]))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("person", [0, 1])
def test_replacing_all_rows_of_a_person_moves_a_sum_by_two_clips_at_most(name, person):
    """Person 0 has one row and person 1 has 500, of which 50 are used; nulling them moves it by one clip."""
    shape, model, options = TASKS[name]
    data = federation(rows=(1, 500, 3, 2), silos=1, shape=shape, most=50)
    task = make_task(model, shape=shape, classes=2, options=options)
    vector = task.initial(3)
    attacks = [
        lambda x, y: (1e4 * x, y),  # with either label, because the model is right about one of them
        lambda x, y: (1e4 * x, 1 - y),
        lambda x, y: (1e19 * torch.sign(x), y),
        lambda x, y: (torch.full_like(x, torch.inf), y),
        lambda x, y: (torch.zeros_like(x), torch.zeros_like(y)),
    ]
    whole, without = (
        sums(data, task, vector, [0, 1, 2, 3]),
        sums(data, task, vector, [k for k in range(4) if k != person]),
    )
    assert float((whole - without).norm()) <= 1
    moved = [
        float((sums(with_rows_of(data, person, a), task, vector, [0, 1, 2, 3]) - without).norm())
        for a in attacks
    ]
    assert max(moved) <= 1
    assert max(moved) > 0.99  # the attack reaches the clip, so the test would notice a clip of single rows
    alone = sum(
        sums(data, task, vector, [k], unit="example") for k in torch.nonzero(data.silos[0].person == 1)[:50]
    )
    assert float(alone.norm()) > 2 or person == 0


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("most", [1, 2, 3, 8])
def test_a_person_contributes_the_clipped_mean_of_their_rows(name, most):
    """The fast sums agree with autograd, one row at a time."""
    shape, model, options = TASKS[name]
    data = federation(shape=shape, most=most)
    task = make_task(model, shape=shape, classes=2, options=options)
    vector = task.initial(1) + 0.1
    examples, clip = stack(data, "train", each=data.rows_each("person")), 0.7
    expected = torch.zeros(task.layout.size)
    for i in range(6):
        rows = examples.persons.rows[0, i][examples.persons.weight[0, i] > 0]
        assert len(rows) == min(most, (1, 3, 5, 2, 1, 4)[i])
        leaf = vector.clone().requires_grad_()
        losses = task.losses(task.layout.unflatten(leaf), data.silos[0].x[rows], data.silos[0].y[rows])
        gradient = torch.autograd.grad(losses.mean(), leaf)[0]
        expected += gradient * min(1.0, clip / float(gradient.norm()))
    found = sums(data, task, vector, list(range(6)), clip).float()
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_module_of_unknown_layers_is_grouped_too():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.scale = torch.nn.Linear(3, 4), torch.nn.Parameter(torch.ones(4))
            self.last = torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)) * self.scale)

    data = federation()
    task = make_task(Odd, shape=(3,), classes=2)
    vector = torch.randn(task.layout.size, generator=torch.Generator().manual_seed(1))
    alone = sum(sums(data, task, vector, [i], 100.0) for i in range(6))
    assert torch.allclose(sums(data, task, vector, list(range(6)), 100.0), alone, atol=1e-6)


def test_gradients_that_cancel_do_not_hide_their_rounding():
    """Two enormous rows that nearly cancel: what is added up is what was clipped."""
    data = federation(rows=(2, 1), silos=1, most=2)
    big = torch.tensor([[3e7, 1e7, 2e7], [-3e7, -1e7, -2e7]])
    attacked = with_rows_of(data, 0, lambda x, y: (big, torch.zeros_like(y)))
    task = make_task("linear", shape=(3,), classes=2)
    vector = torch.zeros(task.layout.size)
    others = sums(data, task, vector, [1])
    assert float((sums(attacked, task, vector, [0, 1]) - others).norm()) <= 1
    moves, x = np.array([[[1e30], [-1e30]]]), np.array([[[1.0, 0.3], [1.0, 0.3 + 1e-17]]])
    for scale in (1.0, 1 + 1e-15, 1 - 3e-16):
        _, total = clipped_together(moves * [[[scale], [1.0]]], x, 2, np.array([[0.5]]))
        assert np.linalg.norm(total) <= 0.5


def test_a_score_of_a_person_is_at_most_one():
    data = federation(rows=(1, 500, 3, 2), silos=1, most=50)
    task = make_task("linear", shape=(3,), classes=2)
    vector = torch.zeros(1, 1, task.layout.size)
    vector[..., -2] = 10.0  # it always says class 0
    totals = {}
    for unit in ("person", "example"):
        changed = [with_rows_of(data, 1, lambda x, y, to=to: (x, torch.full_like(y, to))) for to in (0, 1)]
        right, wrong = (
            float(bounded_total(task, stack(each, "train", each=each.rows_each(unit)), vector))
            for each in changed
        )
        totals[unit] = right - wrong
        assert right <= (4 if unit == "person" else 506)
    assert totals == {"person": 1.0, "example": 500.0}


def test_a_score_of_a_person_is_the_mean_over_their_rows():
    data = federation(rows=(4, 1), silos=1, most=4)
    silo = data.silos[0]
    y = (torch.cumsum(silo.person == 0, 0) == 1).long() * (silo.person == 0)  # one row of person 0 is wrong
    data = replace(data, silos=(replace(silo, y=y),))
    task = make_task("linear", shape=(3,), classes=2)
    vector = torch.zeros(1, 1, task.layout.size)
    vector[..., -2] = 10.0
    assert float(bounded_total(task, stack(data, "train", each=data.rows_each("person")), vector)) == 1.75


def test_persons_are_sampled_not_rows():
    """Every batch holds all rows of a person or none: with a huge learning rate, models say who was in it."""
    data = federation(rows=(3,) * 8, silos=1, shape=(8,), most=3)
    silo = data.silos[0]
    x = torch.nn.functional.one_hot(silo.person, 8).float() * (1 + torch.arange(24)[:, None] / 100)
    data = replace(data, silos=(replace(silo, x=x, y=torch.zeros(24, dtype=torch.int64)),))
    task = make_task("linear", shape=(8,), classes=2, options={})
    made = experiment(
        data, privacy=Privacy(epsilon=float("inf"), unit="person"), task=task, rounds=1, steps=1
    )
    weights = vectors(made)[0, 0][:16].reshape(2, 8)[0]
    seen = set(torch.nonzero(weights.abs() > 1e-9).flatten().tolist())
    means = torch.stack([x[silo.person == i].mean(0)[i] for i in range(8)])
    for i in seen:  # one step of size lr / expected, along the mean over all rows of the person
        assert float(weights[i]) == pytest.approx(0.3 / 2 * 0.5 * float(means[i]), rel=1e-5)


def test_memory_counts_all_rows_of_a_person():
    data = federation(most=3)
    task = make_task("cnn", shape=(6, 6), classes=2, options=CNN)
    assert rows_within(task, 2**20, 3) < rows_within(task, 2**20)
    with refused("train.memory: 8 persons with 3 rows each take"):
        rows_within(task, 1000, 3)
    assert bytes_of_sums(task)[1] > 0
    assert data.rows_each("person") == 3
    assert data.rows_each("example") is None


# Duals.


def test_duals_of_a_person_move_together_within_the_clip():
    generator = np.random.default_rng(0)
    moves, x = generator.normal(size=(2, 6, 3)), generator.normal(size=(2, 6, 4))
    clip = np.array([[0.4], [50.0]])
    shrunk, total = clipped_together(moves, x, 2, clip)
    for pair in range(2):
        expected = np.zeros((3, 4))
        for i in range(3):
            own = slice(2 * i, 2 * i + 2)
            product = moves[pair, own].T @ x[pair, own]
            factor = min(1.0, clip[pair, 0] / np.linalg.norm(product))
            expected += factor * product
            np.testing.assert_allclose(shrunk[pair, own], factor * moves[pair, own], rtol=2e-5)
        np.testing.assert_allclose(total[pair], expected, rtol=2e-5, atol=1e-12)
    moves[0, 1] = np.nan
    shrunk, _ = clipped_together(moves, x, 2, clip)
    assert not shrunk[0, :2].any()
    assert shrunk[0, 2:].all()


def test_a_person_whose_rows_change_moves_a_dual_sum_by_two_clips_at_most():
    data = replace(federation(rows=(30, 2, 1, 1), silos=1, most=30), scale=0.2)
    task = make_task("linear", shape=(3,), classes=2, loss="one-against-rest")
    privacy = Privacy(epsilon=100.0, delta=1e-3, clip=1e-2, unit="person")
    results = []
    for change in (lambda x, y: (x, y), lambda x, y: (x, 1 - y), lambda x, y: (x * torch.nan, y)):
        made = experiment(with_rows_of(data, 0, change), Mocha(), privacy, task, rounds=1, batch=4, steps=1)
        cohort = made.cohort(made.plan())
        duals, ones = SeededStart(task, [0], made.roster, 1).duals(1), torch.ones(1, 1)
        asked = DualRequest(torch.zeros(1, 1, task.layout.size), duals, ones, ones)
        sums, moved = solve_apart(cohort, asked, SeededStreams(made.keys), 0, 0)
        results.append(sums[0, 0])
        assert moved.shape[2] == 4 * 30
    assert made.work[0].rate == 1
    flipped, nulled = (float((results[0] - other).norm()) for other in results[1:])
    assert 0.99e-2 < nulled <= 1e-2
    assert 1.9e-2 < flipped <= 2e-2


# Ledgers and statements.


def visits(rows=5, people=20) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.random((2 * rows * people, 2)), columns=["age", "pressure"])
    frame["ill"] = (frame.age > 0.5).astype(int)
    frame["clinic"] = np.repeat(["north", "south"], rows * people)
    frame["patient"] = np.arange(len(frame)) % people
    return frame


def loaded(**options) -> Federation:
    return ct.load(
        visits(), silo_column="clinic", target_column="ill", person_column="patient", name="visits", **options
    )


@pytest.fixture
def metered(tmp_path):
    """Return the data, the folder of ledgers, the witness and the result of a run that was charged."""
    data, ledgers, witness = loaded(), tmp_path / "ledgers", tmp_path / "witness"
    witness.mkdir()
    ct.open_ledgers(ledgers, data, 10.0, 1e-2, unit="person", witness=witness)
    privacy = Privacy(epsilon=1.0, delta=1e-3, unit="person")
    result = ct.run(data, "fedavg", privacy, rounds=2, batch=4, ledger=ledgers, witness=witness)
    return data, ledgers, witness, result


def test_a_run_counts_for_persons_and_as_replaced_for_examples(metered):
    """One row of a person may turn their mean gradient into any other."""
    _, ledgers, _, result = metered
    statement = result.statement("north")
    total, example = statement["ledger"]["total"]["server"], statement["ledger"]["as_example"]["server"]
    assert total["epsilon"] == pytest.approx(statement["guarantee"]["epsilon"])
    assert example["epsilon"] == pytest.approx(statement["guarantee"]["replace_one"], rel=1e-6)
    assert example["epsilon"] > 1.3 * total["epsilon"]
    assert (statement["declared_size"], statement["data"]["rows"]) == (16, 100)
    assert ROWS_APART in statement["not_covered"]
    verify(text_of(statement))
    book = next(iter(ledgers.glob("*.sqlite")))
    find_in_ledger(statement, ledgers / statement["ledger"]["file"], FolderWitness(metered[2]))
    assert check_ledger(book, FolderWitness(metered[2])).totals["example"]["server"][0] == pytest.approx(
        example["epsilon"]
    )


@pytest.mark.parametrize("filter", ["rdp", "gdp"])
def test_other_filters_count_persons_without_a_budget_for_whole_silos(tmp_path, filter):
    """Totals of examples have the delta of the budget that there is: that of persons."""
    data, ledgers, witness = loaded(), tmp_path / "ledgers", tmp_path / "witness"
    witness.mkdir()
    ct.open_ledgers(ledgers, data, 10.0, 1e-2, unit="person", witness=witness, filter=filter)
    privacy = Privacy(epsilon=1.0, delta=1e-3, unit="person")
    result = ct.run(data, "fedavg", privacy, rounds=2, batch=4, ledger=ledgers, witness=witness)
    statement = result.statement("north")
    total, example = statement["ledger"]["total"]["server"], statement["ledger"]["as_example"]["server"]
    assert 0 < total["epsilon"] < (example["epsilon"] or np.inf)  # 'rdp' has no bound for replaced examples
    assert total["delta"] == example["delta"] == pytest.approx(1e-2, rel=0.1)
    verify(text_of(statement))
    for book in ledgers.glob("*.sqlite"):
        assert set(check_ledger(book, FolderWitness(witness)).totals) == {"example", "person"}
        limited = read_ledger(book, custody=Custody.of(None, witness))
        limited.set_budget("example", 50.0, 1e-2)
        limited.close()
    if filter == "rdp":
        with refused("'rdp' has no bound in the unit 'example' for randomly drawn persons"):
            ct.run(data, "fedprox", privacy, rounds=2, batch=4, ledger=ledgers, witness=witness)


def test_runs_about_examples_say_nothing_about_persons(metered):
    data, ledgers, witness, result = metered
    before = result.statement("north")["ledger"]["total"]["server"]["epsilon"]
    for path in ledgers.glob("*.sqlite"):
        book = read_ledger(path, custody=Custody.of(None, witness))
        book.set_budget("example", 50.0, 1e-2)
        book.close()
    ct.run(
        data, "local", Privacy(epsilon=1.0, delta=1e-3), rounds=2, batch=4, ledger=ledgers, witness=witness
    )
    privacy = Privacy(epsilon=1.0, delta=1e-3, unit="person")
    again = ct.run(data, "fedprox", privacy, rounds=2, batch=4, ledger=ledgers, witness=witness)
    facts = again.statement("north")["ledger"]
    assert facts["total"]["server"]["epsilon"] == pytest.approx(2 * before, rel=1e-6)
    local = facts["as_example"]["personal"]["epsilon"] - facts["as_example"]["server"]["epsilon"]
    assert 0 < local <= 1.0


def test_a_recovered_ledger_charges_persons_for_runs_about_whole_silos():
    """Before anybody counted persons, a lost ledger's totals named examples and silos only."""
    state = LedgerState()
    body = {
        "carried": {"example": {"server": [3.0, 1e-5]}, "silo": {"server": [1.0, 1e-5]}},
        "bare": {"example": ["silos"]},
    }
    state.add(LedgerEntry(1, "recover", body, FIRST, "0"))
    assert state.spent("person", "server") == (3.0, 1e-5)
    assert state.bare("person", "silos")
    known = {"carried": {**body["carried"], "person": {"server": [2.0, 1e-5]}}, "bare": {}}
    state = LedgerState()
    state.add(LedgerEntry(1, "recover", known, FIRST, "0"))
    assert state.spent("person", "server") == (2.0, 1e-5)


# Statements.


@pytest.fixture(scope="module")
def statement():
    privacy = Privacy(epsilon=2.0, delta=1e-3, unit="person")
    return ct.run(loaded(), "fedavg", privacy, rounds=2, batch=4).statement("north")


def test_a_statement_speaks_of_persons(statement):
    verify(text_of(statement))
    assert statement["guarantee"]["unit"] == "person"
    assert {ONE_NUMBER, ELSEWHERE_TOO} <= set(statement["not_covered"])
    words = page(statement)
    for part in (
        "16 training persons",
        "protects persons: all rows of one person",
        "that your records were used",
        "with all of their rows in this silo",
        "each person&#x27;s gradient clipped",
        "in 2 silos",
    ):
        assert part in words, part
    assert "single example" not in words


def test_the_total_of_a_person_in_several_silos_is_that_of_all_their_releases(statement):
    event = Event(**statement["events"][0])
    twice = replace(event, count=2 * event.count)
    stated = statement["guarantee"]["several_silos"]
    assert stated["2"] == pytest.approx(epsilon_of((twice,), 1e-3))
    assert statement["guarantee"]["epsilon"] < stated["2"] < stated["3"]


def test_stopping_early_or_repeating_rounds_makes_no_total_smaller():
    """When a training stops may depend on its results, so all that was planned counts, in several silos too."""
    made = experiment(federation(rows=(1,) * 40), rounds=8)
    plan, accounting = made.plan(), ACCOUNTING["person"]
    claim, whole = accounting.claim("", plan, 0, 0), accounting.account(plan, 0, 0)

    def stated(*spans):
        events = tuple(event for span in spans for event in claim.events(*span))
        content = statement_for(made, plan, 0, 0, whole._replace(events=events, rounds=spans, budget=9.0))
        verify(text_of(content))
        return content

    full, stopped, again = stated((0, 8)), stated((0, 1)), stated((0, 8), (6, 8))
    totals = [content["guarantee"]["several_silos"] for content in (full, stopped, again)]
    assert totals[0] == totals[1]
    assert all(totals[2][silos] > 1.05 * totals[0][silos] for silos in ("2", "3"))
    stopped["guarantee"]["several_silos"]["2"] = 0.99 * stopped["guarantee"]["epsilon"]
    stopped["checksum"] = checksum(stopped)
    with refused(f"for 2 silos, but {stopped['guarantee']['epsilon']:.6g} for one"):
        verify(text_of(stopped))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["guarantee"].update(unit="example"), "is missing|not match|several_silos"),
        (lambda s: s["guarantee"]["several_silos"].update({"2": 0.5}), "several_silos: states 0.5 for 2 silos"),
        (lambda s: s["guarantee"].pop("several_silos"), "several_silos: expected totals for 2, 3 silos"),
        (lambda s: s["not_covered"].remove(ONE_NUMBER), "rows of one person that are recorded"),
        (lambda s: s.update(declared_size=80), "an expected batch of 4 is not the rate"),
    ],
)  # fmt: skip
def test_a_changed_statement_is_noticed(statement, change, message):
    content = json.loads(json.dumps(statement))
    change(content)
    content["checksum"] = checksum(content)
    with pytest.raises(Problem, match=message):
        verify(text_of(content))


# What cannot be.


def test_what_cannot_be_is_refused(tmp_path):
    bare = ct.load(visits().drop(columns="patient"), silo_column="clinic", target_column="ill", name="visits")
    privacy = Privacy(epsilon=1.0, unit="person")
    with refused("'person' needs to know whose rows are whose: name data.person_column"):
        ct.run(bare, "fedavg", privacy)
    with refused("privacy.noise_by: allowed only with unit = 'silo'"):
        Privacy(epsilon=1.0, unit="person", noise_by="silos")
    with refused("a sweep supports only the unit 'example'"):
        ct.sweep(loaded(), "mr-mtl", privacy, lr=[0.1, 0.3], trials="geometric")
    with refused("the best of several trials needs the unit 'example'"):
        Claim("x", "person", 1e-3, 1.0, (), trials=Trials("geometric", 2.0))


def test_notes_say_what_is_left_out():
    data = loaded(rows_per_person=2)
    notes = ct.plan(data, "fedavg", Privacy(epsilon=1.0, delta=0.1, unit="person"), batch=32).notes
    assert any(
        "96 of 160 training rows are left out, because a person contributes at most 2" in n for n in notes
    )
    assert any(
        "such as 'north' with 16 persons, so it permits publishing the rows of one person" in n for n in notes
    )
    assert any("have fewer than 32 training persons" in n for n in notes)


def test_what_a_module_drops_differs_between_the_rows_of_a_person():
    """Both engines draw the same masks, one for each row."""

    class Dropping(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))

    data = federation()
    made = experiment(data, task=make_task(Dropping, shape=(3,), classes=2))
    assert torch.allclose(vectors(made)[0], reference_vectors(made, 0), atol=1e-5)
