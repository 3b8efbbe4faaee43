"""Layers and networks that practitioners have: gradients, engines, masks, and the user's own module again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import coterie as ct
from coterie.cohort.examples import stack
from coterie.cohort.gradients.choose import candidates, recorder, summer, used_once
from coterie.cohort.outputs import outputs_of
from coterie.cohort.score import score
from coterie.data.federation import Federation, Silo
from coterie.experiment.experiment import Experiment
from coterie.methods import MRMTL, Then, Tune
from coterie.planning.training import Training
from coterie.tasks.layers import EXCHANGED
from coterie.tasks.layers.dropout import Dropout, Dropout2d, dropping
from coterie.tasks.layers.dropout import keys as keys_of
from coterie.tasks.layers.recurrent import LSTM
from coterie.tasks.layers.tables import Bag, Table
from coterie.tasks.task import Task
from tests.gradient_modules import one_at_a_time
from tests.helpers import experiment, reference_vectors, refused
from tests.helpers import vectors as trained
from tests.practical_modules import CLASSES, DROPPING, MODULES, examples, practical_task


def setup(name, rows=2, width=3):
    task = practical_task(name)
    generator = torch.Generator().manual_seed(3)
    vectors = task.initial(0) + 0.3 * torch.randn(rows, task.layout.size, generator=generator)
    y = torch.randint(0, CLASSES, (rows, width), generator=generator)
    return task, vectors, examples(task, rows, width), y


def single(task, vectors, x, y, keys=None):
    """Each example's gradient, picked off the tape with a weight of one, and the tape's norms."""
    tape = recorder(task)(task.layout.unflatten(vectors), x, y, keys)
    picks = torch.eye(x.shape[1]).unsqueeze(1).expand(-1, len(x), -1)
    found = torch.stack([task.layout.flatten(tape.weighted_sums(pick)) for pick in picks], 1)
    return found, tape.squared_norms().float()


@pytest.mark.parametrize("name", MODULES)
def test_gradients_equal_autograd_of_torchs_own_layers(name):
    task, vectors, x, y = setup(name)
    expected = one_at_a_time(task, vectors, x, y)
    found, norms = single(task, vectors, x, y)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(norms, expected.square().sum(-1), atol=1e-5, rtol=1e-4)
    weight = torch.tensor([[0.5, 2.0, -1.0]]).expand(2, -1)
    sums = summer(task)(task.layout.unflatten(vectors), x, y, weight)
    total = (expected * weight.unsqueeze(-1)).sum(1)
    torch.testing.assert_close(task.layout.flatten(sums), total, atol=1e-5, rtol=1e-4)


def test_gradients_are_computed_for_all_steps_at_once():
    """Else these layers would be slow without anybody noticing."""
    for name in (*MODULES, *DROPPING):
        task, vectors, x, _ = setup(name)
        parts = set(candidates(task)) - {"places"}  # whose ids are the same for all examples
        assert used_once(task, x[0, :1]) == parts, name
        tables = [
            f"{part}.weight" for part in parts if isinstance(task.module.get_submodule(part), (Table, Bag))
        ]
        tape = recorder(task)(task.layout.unflatten(vectors), x, torch.zeros(2, 3, dtype=torch.int64))
        assert list(tape.looked) == tables


@pytest.mark.parametrize("name", [*MODULES, *DROPPING])
def test_a_trained_model_is_the_users_own_module_again(name):
    task, vectors, x, _ = setup(name)
    module = task.to_module(vectors[0])
    assert not {type(part) for part in module.modules()} & set(EXCHANGED.values())
    parameters = {key: value[0] for key, value in task.layout.unflatten(vectors).items()}
    with torch.no_grad():
        torch.testing.assert_close(task.predict(parameters, x[0]), module(x[0]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", DROPPING)
def test_gradients_with_dropout_equal_one_example_at_a_time(name):
    task, vectors, x, y = setup(name)
    keys = torch.arange(6).reshape(2, 3) + 10
    found, norms = single(task, vectors, x, y, keys)
    torch.testing.assert_close(found, alone(task, vectors, x, y, keys), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(norms, found.square().sum(-1), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(found, alone(task, vectors, x, y, keys + 1), atol=1e-3)
    silent = one_at_a_time(task, vectors, x, y)  # torch's own layers, which predict
    torch.testing.assert_close(single(task, vectors, x, y)[0], silent, atol=1e-5, rtol=1e-4)
    weight = torch.tensor([[0.5, 2.0, -1.0]]).expand(2, -1)
    sums = task.layout.flatten(summer(task)(task.layout.unflatten(vectors), x, y, weight, keys))
    torch.testing.assert_close(sums, (found * weight.unsqueeze(-1)).sum(1), atol=1e-5, rtol=1e-4)


def alone(task, vectors, x, y, keys):
    """The gradient of each example with its key, by plain autograd."""
    found = []
    for row, vector in enumerate(vectors):
        for k in range(x.shape[1]):
            leaf = vector.clone().requires_grad_()
            given = (x[row, k : k + 1], y[row, k : k + 1], keys[row, k])
            loss = task.losses(task.layout.unflatten(leaf), *given).sum()
            found.append(torch.autograd.grad(loss, leaf)[0])
    return torch.stack(found).reshape(*x.shape[:2], -1)


def federation_of(task, silos=3, each=12):
    x, y = examples(task, silos, each), torch.arange(each) % CLASSES
    parts = [Silo(f"silo-{k}", own[:-4], y[:-4], own[-4:], y[-4:]) for k, own in enumerate(x)]
    return Federation("made", tuple(parts), tuple("abc"), ids=task.ids)


ENGINES = [
    "bag, mean",
    "lstm of words",
    "gru, deep, both ways",
    "attention",
    "transformer",
    "resnet",
    *DROPPING,
]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("epsilon", [4.0, float("inf")])
def test_engines_agree(name, epsilon):
    task = practical_task(name)
    made = experiment(federation_of(task), MRMTL(lam=0.5), task=task, epsilon=epsilon, rounds=2, batch=4)
    torch.testing.assert_close(trained(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_a_teacher_drops_nothing():
    task = practical_task("dropout")
    method = Then(first=MRMTL(lam=0.5), second=Tune(), share=0.5)
    made = experiment(federation_of(task), method, task=task, rounds=2, batch=4)
    torch.testing.assert_close(trained(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_masks_belong_to_examples():
    """They do not depend on who else is in a row, or on where; and they drop the right share."""
    task, vectors, x, y = setup("dropout", rows=1)
    keys = torch.tensor([[7, 8, 9]])
    found = single(task, vectors, x, y, keys)[0]
    turned = single(task, vectors, x[:, [2, 0]], y[:, [2, 0]], keys[:, [2, 0]])[0]
    torch.testing.assert_close(turned, found[:, [2, 0]])
    layer = Dropout(0.3)
    value = torch.ones(1, 40_000)
    with dropping(torch.tensor(5)):
        first, second = layer(value), layer(value)
    with dropping(torch.tensor(5)):
        again = layer(value)
    assert torch.equal(first, again)
    for kept in (first != 0, second != 0):
        assert abs(float(kept.float().mean()) - 0.7) < 0.01
    both = ((first != 0) & (second != 0)).float().mean()
    assert abs(float(both) - 0.49) < 0.01
    torch.testing.assert_close(first[first != 0], torch.full_like(first[first != 0], 1 / 0.7))
    assert torch.equal(layer(value), value)
    with dropping(torch.tensor(5)):
        channels = Dropout2d(0.5)(torch.ones(1, 100, 3, 4)).flatten(2)
        assert torch.equal(channels.amin(2), channels.amax(2))
        assert 0 < int((channels[0, :, 0] != 0).sum()) < 100
        assert not Dropout(1.0)(value).any()
        assert torch.equal(Dropout(0.5).eval()(value), value)


def test_keys_differ_in_every_way():
    bases = torch.tensor([1, 2]).reshape(-1, 1, 1)
    found = {int(key) for step in range(5) for key in keys_of(bases, step, torch.arange(50)).flatten()}
    assert len(found) == 2 * 5 * 50


class OwnDropout(nn.Module):
    """Calls torch's functions itself."""

    def __init__(self):
        super().__init__()
        self.inside, self.head = nn.Linear(4, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(nn.functional.dropout(torch.relu(self.inside(x)).mean(1), 0.5, self.training))


def test_dropout_by_function_is_seeded_too():
    task = Task(OwnDropout, "cross-entropy", (6, 4), CLASSES)
    assert task.draws
    made = experiment(federation_of(task), MRMTL(lam=0.5), task=task, rounds=2, batch=4)
    torch.testing.assert_close(trained(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


class OwnCells(nn.GRU):
    pass


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (nn.LSTM(4, 5, proj_size=2, batch_first=True), "projects its hidden states: leave out proj_size"),
        (
            OwnCells(4, 5, batch_first=True),
            "is derived from a layer whose code cannot take one example at a time",
        ),
        (nn.FeatureAlphaDropout(0.5), "draws random numbers that no seed reaches: use nn.Dropout"),
    ],
)
def test_layers_that_cannot_be_exchanged_are_named(part, said):
    with refused(said):
        _ = Task(lambda: nn.Sequential(part, nn.Linear(2, 3)), "cross-entropy", (6, 4), CLASSES).module


class Packs(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x):
        packed = nn.utils.rnn.pack_sequence(list(x))
        return self.head(self.cells(packed)[1][-1])


def test_packed_sequences_are_refused_with_a_remedy():
    with refused("nn.GRU is trained without packed sequences: pad them, and choose the last real step"):
        _ = Task(Packs, "cross-entropy", (6, 4), CLASSES).module


def test_a_layer_that_computes_other_numbers_is_noticed(monkeypatch):
    wrong = LSTM.forward
    monkeypatch.setattr(LSTM, "forward", lambda self, x: (1.01 * wrong(self, x)[0], None))
    with refused("a layer computes other numbers when it trains one example at a time"):
        _ = practical_task("lstm").module


def test_a_metered_training_drops_too(tmp_path):
    """Its masks come from a secret keystream; nothing else differs."""
    task = practical_task("dropout")
    data = replace(federation_of(task), source="made")
    ct.open_ledgers(tmp_path / "ledgers", data, epsilon=50.0, delta=0.1)
    privacy = ct.Privacy(4.0, delta=1e-3)
    result = ct.run(
        data, "fedavg", model=task, privacy=privacy, rounds=2, batch=4, ledger=tmp_path / "ledgers"
    )
    assert torch.isfinite(result.vectors[0]).all()


PERSONS = ["bag, mean", "lstm of words", "transformer", "dropout", "lstm with dropout", "resnet"]


@pytest.mark.parametrize("name", PERSONS)
@pytest.mark.parametrize("epsilon", [4.0, float("inf")])
def test_engines_agree_on_persons(name, epsilon):
    """All rows of a person count once: those of a table, too, where persons say the same word again."""
    task, person = practical_task(name), torch.tensor([0, 1, 1, 2, 3, 3, 3, 4])
    silos = tuple(
        replace(silo, person=person, test_person=torch.arange(4)) for silo in federation_of(task).silos
    )
    data = replace(federation_of(task), silos=silos, rows_per_person=2)
    privacy = ct.Privacy(epsilon, delta=1e-3, unit="person")
    made = Experiment(data, task, MRMTL(lam=0.5), privacy, Training(rounds=2, batch=2, lr=0.2))
    made.check()
    torch.testing.assert_close(trained(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


def test_plain_sequences_with_dropout_take_the_quick_tape():
    for name in ("dropout",):
        task = practical_task(name)
        assert recorder(task).__module__ == summer(task).__module__ == "coterie.cohort.gradients.sequential"
    images = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Dropout2d(0.5), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(48, 3)
    )
    task = Task(lambda: images, "cross-entropy", (2, 6, 6), CLASSES)
    assert recorder(task).__module__ == "coterie.cohort.gradients.sequential"
    vectors = task.initial(0) + 0.1 * torch.randn(
        2, task.layout.size, generator=torch.Generator().manual_seed(0)
    )
    x, y, keys = examples(task, 2, 3), torch.tensor([[0, 1, 2], [2, 1, 0]]), torch.arange(6).reshape(2, 3)
    found, _ = single(task, vectors, x, y, keys)
    torch.testing.assert_close(found, alone(task, vectors, x, y, keys), atol=1e-5, rtol=1e-4)


class AlongTheBatch(nn.Module):
    """A common slip: without batch_first, cells run along the examples of a batch."""

    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(self.cells(x)[0].mean(1))


class AttendsToOthers(nn.Module):
    """The same slip with attention, on words."""

    def __init__(self):
        super().__init__()
        self.words, self.attention = nn.Embedding(11, 4), nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        value = self.words(x)
        return self.head(self.attention(value, value, value, need_weights=False)[0].mean(1))


class SharesWords(nn.Module):
    """Takes the words of all examples off each."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(11, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        bags = self.words(x)
        return self.head(bags - bags.mean(0))


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (AlongTheBatch, "expects them, or set its batch_first = True"),
        (AttendsToOthers, "the layer 'attention' expects them, or set its batch_first = True"),
        (
            SharesWords,
            "mixes examples of a batch (its output for one depends on the others): normalise within",
        ),
    ],
    ids=["cells", "attention", "bags"],
)
def test_modules_that_mix_examples_are_refused(kind, remedy):
    shape = (6, 4) if kind is AlongTheBatch else (6,)
    with refused(remedy):
        _ = Task(kind, "cross-entropy", shape, CLASSES, ids=shape == (6,)).module


class RemembersMasks(nn.Module):
    """Drops by a mask of its own, which it keeps from its last call."""

    def __init__(self):
        super().__init__()
        self.layer, self.mask = nn.Linear(4, CLASSES), None

    def forward(self, x):
        mask, self.mask = self.mask, torch.rand(x.shape[-1]) < 0.5
        return self.layer(x if mask is None else x * mask)


def test_masks_of_ones_own_are_refused():
    with pytest.raises(ct.Problem, match="model: "):
        _ = Task(RemembersMasks, "cross-entropy", (4,), CLASSES).module


def test_a_single_row_of_examples_is_scored_and_imitated_too():
    """Torch does not map group norm over a single row of images whose channels come last."""
    task, vector = practical_task("resnet"), practical_task("resnet").initial(1)
    one, three = federation_of(task, silos=1), federation_of(task)
    alone = score(task, stack(one, "test"), vector[None, None])
    together = score(task, stack(three, "test"), vector.expand(1, 3, -1))
    torch.testing.assert_close(alone[0, 0], together[0, 0])
    told = [
        outputs_of(task, stack(data, "test"), vector.expand(1, len(data), -1))[0, :4] for data in (one, three)
    ]
    torch.testing.assert_close(*told, atol=1e-5, rtol=1e-4)
    method = Then(first=MRMTL(lam=0.5), second=Tune(how="kl"), share=0.5)
    made = experiment(one, method, task=task, rounds=2, batch=2)
    torch.testing.assert_close(trained(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)
