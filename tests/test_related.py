"""Known relations, the naive joint mechanism, shared plus personal: what they become at their ends."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from scipy import stats

from coterie.cohort import merging
from coterie.cohort.merging import PrivateMerger, clipped_sum
from coterie.engines.simulation import simulate
from coterie.experiment.experiment import Experiment
from coterie.methods import MRMTL, PPSGD, FedAvg, Joint, Local, Related
from coterie.methods.relations import Relations, alike, plain_relations, read_relations
from coterie.planning.schedule import Participation
from coterie.planning.training import Training
from coterie.privacy.budget import Privacy
from coterie.protocol.merging import MergeRule
from coterie.protocol.roster import Roster
from coterie.protocol.streams import SeededStreams
from coterie.testing import check_method
from tests.helpers import call, refused, task_for, vectors
from tests.measured import CHANCE, reference_of

NAMES = ("a", "b", "c", "d")
GROUPS = Relations(NAMES, groups=("x", "x", "y", "y"))
OMEGA = Relations(NAMES, omega=((2, -1, -1, 0), (-1, 1, 0, 0), (-1, 0, 2, -1), (0, 0, -1, 1.5)))


def made_of(federation, method, epsilon=6.0, **more):
    privacy = Privacy(epsilon=epsilon, delta=1e-2, clip=0.5, unit="silo")
    training = Training(**{"rounds": 4, "batch": 8, "lr": 0.3} | more)
    made = Experiment(federation, task_for(federation), method, privacy, training)
    made.check()
    return made


@pytest.mark.parametrize("unit", ["example", "silo"])
@pytest.mark.parametrize("relations", [GROUPS, OMEGA], ids=str)
def test_it_is_sound_in_both_units(unit, relations):
    check_method(Related(relations=relations, lam=0.5), unit)


def of_equal_sizes(federation):
    """Give as many examples of each silo: a mean weighted by sizes is the uniform one."""
    rows = min(federation.sizes)
    silos = (dataclasses.replace(silo, x=silo.x[:rows], y=silo.y[:rows]) for silo in federation.silos)
    return dataclasses.replace(federation, silos=tuple(silos))


def related_to(federation):
    return Relations(federation.names, groups=("x", "x", *["y"] * (len(federation) - 2)))


@pytest.mark.parametrize("how", [None, Participation(0.5, "poisson"), Participation(0.5)])
@pytest.mark.parametrize("kind", ["groups", "joint"])
def test_engines_agree(federation, kind, how):
    method = Related(lam=0.3, relations=related_to(federation)) if kind == "groups" else Joint(lam=0.3)
    made = made_of(federation, method, participation=how, seeds=(0, 3))
    for run in range(2):
        torch.testing.assert_close(vectors(made)[run], reference_of(made, run), atol=1e-4, rtol=1e-4)


def test_one_group_is_mean_regularisation(federation):
    """Without noise and clip, with equal sizes: a uniform mean is the mean."""
    equal = of_equal_sizes(federation)
    a, b = (vectors(made_of(equal, m, epsilon=math.inf)) for m in (Related(lam=0.7), MRMTL(lam=0.7)))
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_the_mean_regularising_matrix_is_mean_regularisation():
    """Omega = I - 11'/m gives the pull w - mean, written with the others' models only."""
    count = len(NAMES)
    rows = tuple(tuple(float(k == j) - 1 / count for j in range(count)) for k in range(count))
    sums, read, pulls = Relations(NAMES, omega=rows).parts(NAMES)
    models = torch.randn(count, 5, generator=torch.Generator().manual_seed(0))
    pull = pulls.unsqueeze(1) * (models - read @ (sums @ models))
    torch.testing.assert_close(pull, models - models.mean(0))


def test_a_matrix_pulls_by_its_gradient():
    sums, read, pulls = OMEGA.parts(NAMES)
    models = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    omega = torch.tensor(OMEGA.omega)
    (gradient,) = torch.autograd.grad((models.t() @ omega @ models).trace() / 2, models)
    torch.testing.assert_close(pulls.unsqueeze(1) * (models - read @ (sums @ models)), gradient)


def test_groups_do_not_touch_each_other(federation):
    """Without noise, what one group learns does not depend on the other's examples."""
    method = Related(lam=0.7, relations=related_to(federation))
    plain = vectors(made_of(federation, method, epsilon=math.inf))
    last = federation.silos[-1]
    other = dataclasses.replace(
        federation, silos=(*federation.silos[:-1], dataclasses.replace(last, y=last.y.flip(0)))
    )
    changed = vectors(made_of(other, method, epsilon=math.inf))
    assert torch.equal(plain[:, :2], changed[:, :2])
    assert not torch.equal(plain[:, 2:], changed[:, 2:])


def mixed(matrix, uploads, noise=1.5, clip=2.0, seed=0, names=NAMES, cohort=None):
    roster = Roster(names, torch.ones(len(names)), torch.full((1, len(names)), 4.0))
    how = MergeRule(torch.tensor([noise]), torch.tensor([clip]), float(cohort or len(names)))
    facts = dataclasses.replace(roster, round=3)
    return PrivateMerger.of(facts, how, SeededStreams(((seed, 0),)), uploads).mix(uploads, matrix)


@pytest.mark.parametrize("relations", [GROUPS, OMEGA], ids=str)
def test_the_noise_of_every_row_is_that_of_the_largest_column(relations):
    sums, _, _ = relations.parts(NAMES)
    found = mixed(sums, torch.zeros(1, 4, 20_000))[0].double().numpy()
    deviation = 1.5 * 2.0 * max(float(column.norm()) for column in sums.t())
    for row in found:
        assert stats.kstest(row / deviation, "norm").pvalue > CHANCE
    for other in found[1:]:
        assert abs(stats.pearsonr(found[0], other).statistic) < 5.5 / math.sqrt(20_000)


@pytest.mark.parametrize("relations", [GROUPS, OMEGA], ids=str)
def test_one_silo_moves_all_rows_together_by_no_more_than_is_noised(relations, monkeypatch):
    sums, _, _ = relations.parts(NAMES)
    uploads = 50 * torch.randn(1, 4, 9, generator=torch.Generator().manual_seed(0))

    def reach():
        whole, found = mixed(sums, uploads, noise=0.0), []
        for k in range(4):
            without = uploads.clone()
            without[:, k] = 0
            found.append(float((whole - mixed(sums, without, noise=0.0)).norm()))
        return max(found)

    allowed = 2.0 * max(float(column.norm()) for column in sums.t())
    assert allowed * 0.999 < reach() <= allowed * (1 + 1e-6)
    monkeypatch.setattr(merging, "clipped_sum", lambda *given: 2 * clipped_sum(*given))
    assert reach() > allowed


def test_noise_does_not_depend_on_the_order_of_silos_and_differs_between_rows():
    sums, _, _ = OMEGA.parts(NAMES)
    turned, _, _ = OMEGA.parts(NAMES[::-1])
    found = mixed(sums, torch.zeros(1, 4, 7))
    again = mixed(turned, torch.zeros(1, 4, 7), names=NAMES[::-1])
    assert torch.equal(found.flip(1), again)
    assert len({tuple(row) for row in found[0].tolist()}) == 4


def test_the_noise_of_the_joint_mechanism_is_that_of_one_upload(federation):
    """Each model has all the noise that the mean of all would share: silos times as much."""
    task = task_for(federation)
    made = made_of(federation, Joint(lam=0.0), rounds=1, lr=1e-9)
    start = task.initial(made.keys[0][0])
    plan = made.plan()
    drawn = [
        (vectors(made_of(federation, Joint(lam=0.0), rounds=1, lr=1e-9, seeds=(s,)))[0]) for s in range(1, 60)
    ]
    moved = torch.stack(drawn).double().flatten() - (0 if not start.any() else math.nan)
    stated = plan.silos[0][0].noise * 0.5
    assert stats.kstest((moved / stated).numpy(), "norm").pvalue > CHANCE
    assert plan.silos[0][0].merges.raw_personal is False


def test_absent_silos_rows_are_noised_too():
    """Otherwise who took part would show."""
    roster = Roster(NAMES, torch.ones(4), torch.ones(1, 4))
    how = MergeRule(torch.tensor([1.0]), torch.tensor([1.0]), 2.0)
    here = torch.tensor([[True, False, True, False]])
    uploads = torch.zeros(1, 4, 3)
    one = PrivateMerger.of(roster.at(here), how, SeededStreams(((0, 0),)), uploads)
    assert (one.mix(uploads, torch.eye(4)) != 0).all()


def test_with_noise_of_the_silos_sums_are_refused(federation):
    privacy = Privacy(epsilon=6.0, delta=1e-2, unit="silo", noise_by="silos")
    made = Experiment(federation, task_for(federation), Related(), privacy, Training(rounds=2, batch=8))
    with refused("take noise_by = 'server' here"):
        made.plan()


@pytest.mark.parametrize("unit", ["example", "silo"])
def test_without_a_personal_part_it_is_averaging(federation, unit):
    privacy = Privacy(epsilon=6.0, delta=1e-2, unit=unit)
    training = Training(rounds=4, batch=8, lr=0.3)
    frozen, plain = (
        vectors(Experiment(federation, task_for(federation), method, privacy, training))
        for method in (PPSGD(personal_rate=0.0), FedAvg())
    )
    torch.testing.assert_close(frozen, plain)


def test_personal_parts_stay_at_home_and_differ(federation):
    made = made_of(federation, PPSGD())
    found = vectors(made)[0]
    assert len({tuple(row) for row in found.tolist()}) == len(federation)
    assert made.plan().silos[0][0].merges.raw_personal


@pytest.mark.parametrize("how", [None, Participation(0.5, "poisson")])
def test_engines_agree_on_sums_of_shared_and_personal(federation, how):
    made = made_of(federation, PPSGD(personal_rate=0.5), participation=how)
    torch.testing.assert_close(vectors(made)[0], reference_of(made, 0), atol=1e-5, rtol=1e-4)


def test_no_pull_is_local(federation):
    relations = related_to(federation)
    a, b = (vectors(made_of(federation, m)) for m in (Related(lam=0.0, relations=relations), Local()))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("silo,group\na,x\na,y\n", "silo 'a' appears twice"),
        ("silo,group\na,\n", "expected two cells per line"),
        ("a,b\n1,2\n3,1\n", "must be symmetric, but the two entries of 'b' and 'a' differ"),
        ("a,b\n1,nan\nnan,1\n", "must be finite"),
        ("a,b\n0,1\n1,1\n", "with a number above 0 on the diagonal"),
        ("a,b\n1,x\nx,1\n", "must contain numbers"),
        ("a,b\nb,1,0\na,0,1\n", "in the order of the header"),
        ("a,b\n", "has no rows"),
    ],
)
def test_files_that_are_no_relations(tmp_path, content, sentence):
    path = tmp_path / "relations.csv"
    path.write_text(content)
    with refused(sentence):
        read_relations(path)


def test_files(tmp_path):
    path = tmp_path / "relations.csv"
    path.write_text("silo,group\na,x\nb,y\n")
    assert read_relations(path) == Relations(("a", "b"), groups=("x", "y"))
    path.write_text(",a,b\na,1,-1\nb,-1,1\n")
    assert read_relations(path) == Relations(("a", "b"), omega=((1, -1), (-1, 1)))
    path.write_text("a,b\n1,-1\n-1,1\n")
    assert read_relations(path) == Relations(("a", "b"), omega=((1, -1), (-1, 1)))
    with refused("cannot read"):
        read_relations(tmp_path / "none.csv")
    with refused("silo 'z' is missing"):
        alike(NAMES).parts(("a", "z"))


def test_from_a_configuration(tmp_path, monkeypatch, capsys):
    groups = tmp_path / "groups.csv"
    names = [f"clinic-{k}" for k in range(10)]
    groups.write_text("silo,group\n" + "".join(f"{name},{k % 2}\n" for k, name in enumerate(names)))
    config = tmp_path / "related.toml"
    text = """
[data]
source = "digits"
silos = 4
[model]
name = "linear"
[train]
rounds = 2
batch = 16
[privacy]
unit = "silo"
epsilon = 4
delta = 1e-2
[[method]]
name = "related"
relations = "RELATIONS"
"""
    config.write_text(text.replace("RELATIONS", str(groups)))
    code, _, said = call(monkeypatch, capsys, "run", config, "--out", tmp_path / "out")
    assert code == 2
    assert "is missing; add a row" in said
    groups.write_text("silo,group\n" + "".join(f"silo-{k},{k % 2}\n" for k in range(4)))
    code, out, said = call(monkeypatch, capsys, "run", config, "--out", tmp_path / "out", "--json")
    assert code == 0, said
    assert "2 groups of 4 silos" in out
    config.write_text(text.replace("RELATIONS", str(tmp_path / "none.csv")))
    code, _, said = call(monkeypatch, capsys, "run", config)
    assert code == 2
    assert "method[0].relations: expected a file or a table of relations: cannot read" in said


@pytest.mark.parametrize("unit", ["example", "silo"])
@pytest.mark.parametrize("how", [Participation(0.5), Participation(0.4, "poisson")])
def test_with_some_silos_a_round_what_is_shared_is_still_the_mean_of_all(federation, unit, how):
    """Dividing by those who came would move it too far: it runs away where few come."""
    privacy = Privacy(epsilon=math.inf, unit=unit)
    equal = of_equal_sizes(federation)
    training = Training(rounds=6, batch=8, lr=0.3, participation=how)
    for method in (MRMTL(lam=0.7), Related(lam=0.7), Related(lam=0.7, relations=related_to(federation))):
        made = Experiment(equal, task_for(equal), method, privacy, training)
        plan = made.plan()
        *_, last = simulate(made.running, made.cohort(plan), plan, made.roster, [0], SeededStreams(made.keys))
        sent = method.broadcast(last.shared)
        if isinstance(method, MRMTL):
            torch.testing.assert_close(sent[:, 0], last.own.mean(1))
        elif method.relations is None:
            torch.testing.assert_close(sent.target[:, 0], last.own.mean(1))
        else:
            torch.testing.assert_close(sent.target[:, 0], last.own[:, :2].mean(1))


def test_joint_models_move_by_their_own_uploads_only(federation):
    """Also where few silos come: without noise and pull it is Local."""
    how = Participation(0.5)
    a, b = (
        vectors(made_of(federation, m, epsilon=math.inf, participation=how))
        for m in (Joint(lam=0.0), Local())
    )
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("relations", [GROUPS, OMEGA], ids=str)
def test_a_table_holds_relations(relations):
    assert read_relations(plain_relations(relations)) == relations


@pytest.mark.parametrize(
    "table",
    [
        {"silos": ["a"], "groups": "x"},
        {"silos": ["a"], "groups": [1]},
        {"silos": ["a"], "matrix": [["1"]]},
        {"silos": ["a"], "matrix": 1},
        {"silos": ["a"], "groups": ["x"], "file": "x.csv"},
    ],
)
def test_a_table_of_something_else_is_refused(table):
    with refused("expected a table of lists: silos, and groups or a matrix of numbers"):
        read_relations(table)
