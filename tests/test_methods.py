"""Every method passes the conformance check, and methods that break a rule do not."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import pytest
import torch

from coterie.errors import Problem, Refused
from coterie.methods import METHODS, MRMTL, FedAvg, Local, Then, Tune
from coterie.methods.adaptive_clip import AdaptiveClip
from coterie.protocol.messages import pack, unpack
from coterie.protocol.method import Method
from coterie.protocol.settings import PerRun, setting
from coterie.protocol.tree import leaves, map_leaves, record
from coterie.testing import NotConforming, check_method
from tests.helpers import UNSOUND_FOR_SILOS, every_method, experiment, refused, title, vectors


@pytest.mark.parametrize("method", every_method(), ids=title)
def test_conformance(method):
    check_method(method, "example")


@pytest.mark.parametrize("method", every_method(), ids=title)
def test_conformance_for_whole_silos(method):
    if method.name not in UNSOUND_FOR_SILOS:
        check_method(method, "silo")
        return
    with pytest.raises(Refused, match=UNSOUND_FOR_SILOS[method.name]):
        check_method(method, "silo")


@pytest.mark.parametrize("kind", [*METHODS.values(), Then, AdaptiveClip])
def test_a_class_of_methods_is_abstract_or_final(kind):
    """Methods do not inherit from methods that run: they wrap them, or share functions or an abstract base."""
    assert not inspect.isabstract(kind)
    ancestors = [each for each in kind.__mro__[1:] if issubclass(each, Method)]
    assert Method in ancestors
    assert all(inspect.isabstract(each) for each in ancestors)


@dataclass(frozen=True, kw_only=True)
class Shortest(Method):
    """A method that leaves to its defaults what it can: Ditto."""

    name: ClassVar[str] = "shortest"
    lam: PerRun = setting(1.0, minimum=0)

    def local(self, sent, own, oracle):
        trained = oracle.descend(sent)
        own = oracle.descend(own, toward=sent, strength=self.lam)
        return trained - sent, own

    def personal(self, sent, own):
        return own


@pytest.mark.parametrize("unit", ["example", "silo"])
def test_two_functions_are_enough(unit):
    check_method(Shortest(), unit)


@record
class Momentum(NamedTuple):
    model: torch.Tensor
    speed: torch.Tensor | None


@dataclass(frozen=True, kw_only=True)
class FasterLater(Method):
    """Names what it keeps, and goes by the number of the round."""

    name: ClassVar[str] = "faster-later"
    numbers: list[tuple[int, int]] = field(default_factory=list, metadata={"method": True})

    def init(self, task, silos):
        return Momentum(task.initial(), None), task.initial().expand(-1, silos, -1)

    def local(self, sent, own, oracle):
        trained = oracle.descend(sent.model)
        return trained - sent.model, trained

    def merge(self, shared, uploads, merger):
        self.numbers.append((merger.roster.round, merger.roster.rounds))
        speed = merger.mean(uploads) * (merger.roster.round + 1) / merger.roster.rounds
        return Momentum(shared.model + speed + (0 if shared.speed is None else shared.speed), speed)

    def personal(self, sent, own):
        return sent.model


@pytest.mark.parametrize("unit", ["example", "silo"])
def test_rounds_are_counted_the_same_everywhere(federation, unit):
    check_method(FasterLater(), unit)
    method = FasterLater()
    made = experiment(federation, method, rounds=4)
    made.plan()
    assert set(method.numbers) == {(number, 4) for number in range(4)}
    method.numbers.clear()
    vectors(made)
    assert method.numbers[-4:] == [(number, 4) for number in range(4)]


def test_the_second_method_of_a_chain_counts_its_own_rounds(federation):
    method = FasterLater()
    chain = Then(first=FedAvg(), second=Then(first=FedAvg(), second=method, share=0.5), share=0.4)
    made = experiment(federation, chain, rounds=10)
    made.plan()
    assert set(method.numbers) == {(number, 3) for number in range(3)}


def test_records_come_back_from_bytes_as_what_they_were():
    tree = {"a": Momentum(torch.ones(2), None), "b": [Momentum(torch.zeros(1), torch.ones(3))]}
    back = unpack(pack(tree))
    assert isinstance(back["a"], Momentum)
    assert back["a"].speed is None
    assert torch.equal(back["b"][0].speed, torch.ones(3))
    assert pack(back) == pack(tree)
    doubled = map_leaves(lambda leaf: 2 * leaf, tree)
    assert isinstance(doubled["a"], Momentum)
    assert [float(leaf.sum()) for leaf in leaves(doubled)] == [4, 0, 6]


def test_only_declared_records_are_made_of_bytes():
    class Loose(NamedTuple):
        value: torch.Tensor

    with refused("Loose', which is not declared: put @record above the class"):
        pack(Loose(torch.ones(1)))
    packed = pack(Momentum(torch.ones(2), None))
    for other in (b"os.system", b"test_methods.Momentun"):
        name = (other * 9)[: len(b"tests.test_methods.Momentum")]
        with refused("which is not declared here"):
            unpack(packed.replace(b"tests.test_methods.Momentum", name))
    with refused("with 1 parts, which is not declared here"):
        unpack(packed.replace(b"[0, null]", b"[0      ]"))


def test_methods_check_task_and_silos_before_a_training(federation):
    @dataclass(frozen=True, kw_only=True)
    class Picky(FedAvg):
        name: ClassVar[str] = "picky"

        def check(self, task, federation):
            raise Problem(f"{task.classes} {' '.join(federation.names)} {sum(federation.sizes)}")

    sentence = f"0 {' '.join(federation.names)} {sum(federation.sizes)}"
    with refused(sentence):
        experiment(federation, Picky())
    with refused(sentence):
        experiment(federation, Then(first=Picky(), second=Local()))
    with refused(sentence):
        experiment(federation, Then(first=FedAvg(), second=Picky()))
    with refused("does not work with a numeric target"):
        experiment(federation, Then(first=Tune(how="kl"), second=Local()))
    with refused("nested"):
        AdaptiveClip(method=Nested(), first=(1.0,)).check(None, None)


@dataclass(frozen=True, kw_only=True)
class Nested(FedAvg):
    name: ClassVar[str] = "nested"

    def check(self, task, federation):
        raise Problem("nested")


@dataclass(frozen=True, kw_only=True)
class Impure(Local):
    name: ClassVar[str] = "impure"
    calls: ClassVar[list[int]] = []

    def local(self, sent, own, oracle):
        self.calls.append(1)
        return None, oracle.descend(own) + len(self.calls)


@dataclass(frozen=True, kw_only=True)
class Writes(FedAvg):
    name: ClassVar[str] = "writes"

    def merge(self, shared, uploads, merger):
        return shared.add_(merger.mean(uploads))


@dataclass(frozen=True, kw_only=True)
class Doubles(FedAvg):
    name: ClassVar[str] = "doubles"

    def merge(self, shared, uploads, merger):
        return (shared + merger.mean(uploads)).double()


@dataclass(frozen=True, kw_only=True)
class Mixes(MRMTL):
    name: ClassVar[str] = "mixes"

    def local(self, sent, own, oracle):
        trained = oracle.descend(own) + own.mean(1, keepdim=True)
        return trained - own, trained


@dataclass(frozen=True, kw_only=True)
class FirstIsSpecial(FedAvg):
    name: ClassVar[str] = "first"

    def merge(self, shared, uploads, merger):
        return shared + uploads[:, :1]


@dataclass(frozen=True, kw_only=True)
class Greedy(FedAvg):
    """Asks a second time if the model has grown: which doors are called depends on vectors."""

    name: ClassVar[str] = "greedy"

    def local(self, sent, own, oracle):
        moved = oracle.descend(sent)
        if float(moved.sum()) > 0:
            moved = oracle.descend(moved)
        return moved - sent, None


@dataclass(frozen=True, kw_only=True)
class OneSilo(FedAvg):
    name: ClassVar[str] = "one"

    def local(self, sent, own, oracle):
        return oracle.descend(sent)[:, :1] - sent, None


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Impure(), "pure"),
        (Writes(), "in place"),
        (Doubles(), "float32"),
        (Mixes(), "mixes silos"),
        (FirstIsSpecial(), "order of the silos"),
        (Greedy(), "mixes silos"),
        (OneSilo(), r"\[runs, silos, ...\]"),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_broken_methods_are_refused(broken, said):
    with pytest.raises(Refused, match=said):
        check_method(broken)


def test_a_method_must_be_frozen():
    class Plain(Local):
        __dataclass_fields__: ClassVar[dict] = {}

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)

    with pytest.raises(NotConforming, match="frozen"):
        check_method(Plain())


@pytest.mark.parametrize("lam", [-1.0, float("nan"), float("inf"), "a", None, True, [0.1, -2.0], []])
def test_settings_are_checked(lam):
    with pytest.raises(Problem, match="lam must be a number"):
        MRMTL(lam=lam)


def test_setting_sentence():
    with pytest.raises(Problem, match=r"^lam must be a number >= 0 or 'auto', got -1$"):
        MRMTL(lam=-1)


def test_mean_is_weighted_by_declared_sizes():
    from coterie.protocol.merging import PlainMerger
    from coterie.protocol.roster import Roster

    sizes = torch.tensor([1.0, 3.0], dtype=torch.float64)
    roster = Roster(("a", "b"), sizes, torch.ones(1, 2))
    uploads = torch.tensor([[[4.0], [8.0]]])
    merger = PlainMerger(roster)
    assert torch.equal(merger.mean(uploads), torch.tensor([[[7.0]]]))
    assert merger.mean(uploads).dtype == torch.float32
