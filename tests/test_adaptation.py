"""A public start, frozen parts and adapters: less is trained, and the saved model is whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coterie as ct
from coterie.cohort.gradients.choose import recorder
from coterie.deploy.make_plan import check_used
from coterie.experiment.config.schema import check
from coterie.experiment.saved_models import RAW
from coterie.tasks.adaptation import Adaptation
from coterie.tasks.layers import EXCHANGED, is_exchanged
from coterie.tasks.start import Start
from coterie.tasks.task import Task
from tests.gradient_modules import one_at_a_time
from tests.helpers import experiment, reference_vectors, refused
from tests.helpers import vectors as trained
from tests.practical_modules import CLASSES, MODULES, SENTENCE, Transformer, examples
from tests.test_practical_modules import federation_of, single

ONE = ct.Privacy(epsilon=4.0, delta=1e-3)


def small():
    return Transformer()


def task_of(build=Transformer, shape=SENTENCE, **changed) -> Task:
    return Task(
        build, "cross-entropy", shape, CLASSES, ids=shape == SENTENCE, adaptation=Adaptation(**changed)
    )


@pytest.fixture
def start(tmp_path):
    """Numbers of a transformer, as torch saves them."""
    torch.manual_seed(5)
    module = Transformer()
    save_file(module.state_dict(), str(tmp_path / "weights.safetensors"))
    return Start(tmp_path / "weights.safetensors"), module


def test_a_start_is_every_seeds_start(start):
    file, module = start
    task = task_of(start=file)
    expected = task.layout.flatten(dict(module.named_parameters())).detach()
    assert torch.equal(task.initial(0), expected)
    assert torch.equal(task.initial(7), expected)
    assert not torch.equal(task_of().initial(0), expected)


def test_a_new_head_starts_from_the_seed(start):
    file, module = start
    rest = {name: value for name, value in module.state_dict().items() if not name.startswith("head")}
    save_file(rest, str(file.path))
    task = task_of(start=Start(file.path), only=("head",))
    assert task.layout.names == ("head.weight", "head.bias")
    assert not torch.equal(task.initial(0), task.initial(1))
    assert torch.equal(task.module.words.weight, module.words.weight)
    with pytest.raises(ct.Problem) as caught:
        _ = task_of(start=Start(file.path), only=("words",)).module
    assert str(caught.value).splitlines() == [
        "model.start: the file lacks 'head.weight', which is frozen",
        "model.start: the file lacks 'head.bias', which is frozen",
    ]


def test_frozen_parts_are_not_in_the_vector_and_stay_as_they_are(start):
    file, module = start
    task = task_of(start=file, only=("head", "*.norm1.weight"))
    assert task.layout.names == ("encoder.layers.0.norm1.weight", "head.weight", "head.bias")
    made = experiment(federation_of(task), ct.methods.FedAvg(), task=task, rounds=2, batch=4)
    found = trained(made)[0]
    torch.testing.assert_close(found, reference_vectors(made, 0), atol=1e-5, rtol=1e-4)
    result = task.to_module(found[0])
    assert torch.equal(result.words.weight, module.words.weight)
    assert not torch.equal(result.head.weight, module.head.weight)


ADAPTED = {
    "transformer": (Transformer, SENTENCE),
    "lstm": (MODULES["lstm of words"][1], SENTENCE),
    "layers": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 3)), (6, 4)),
}


@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_in_both_engines(name):
    task = task_of(*ADAPTED[name], lora=2)
    assert all("lora_" in part for part in task.layout.names)
    made = experiment(federation_of(task), ct.methods.MRMTL(lam=0.5), task=task, rounds=2, batch=4)
    torch.testing.assert_close(trained(made)[0], reference_vectors(made, 0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ADAPTED)
def test_gradients_of_adapters_equal_autograd_of_the_merged_module(name):
    """The gradient of a product of matrices follows from that of the plain weight, by hand."""
    task = task_of(*ADAPTED[name], lora=2)
    vectors = task.initial(0) + 0.3 * torch.randn(
        2, task.layout.size, generator=torch.Generator().manual_seed(0)
    )
    x, y = examples(task, 2, 3), torch.tensor([[0, 1, 2], [2, 1, 0]])
    found, norms = single(task, vectors, x, y)
    for row in range(2):
        merged, own = task.to_module(vectors[row]), task.layout.unflatten(vectors[row])
        assert not is_exchanged(merged)
        for k in range(3):
            loss = nn.functional.cross_entropy(merged(x[row, k : k + 1]), y[row, k : k + 1])
            parts = {}
            for name in {key.rsplit(".lora_", 1)[0] for key in own}:
                (slope,) = torch.autograd.grad(
                    loss, merged.get_parameter(f"{name}.weight"), retain_graph=True
                )
                up, down = own[f"{name}.lora_up.weight"], own[f"{name}.lora_down.weight"]
                parts[f"{name}.lora_up.weight"] = slope @ down.T
                parts[f"{name}.lora_down.weight"] = up.T @ slope
            expected = task.layout.flatten(parts)
            torch.testing.assert_close(found[row, k], expected, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(norms[row, k], expected.square().sum(), atol=1e-5, rtol=1e-4)


def test_an_adapter_starts_as_nothing_and_a_named_part_trains_whole():
    task = task_of(lora=2, only=("head",))
    assert task.layout.names[-2:] == ("head.weight", "head.bias")
    assert {name.rsplit(".", 2)[1] for name in task.layout.names[:-2]} == {"lora_down", "lora_up"}
    x = examples(task, 5)
    plain = task_of(Transformer).seeded_module()
    with torch.no_grad():
        torch.testing.assert_close(task.to_module(task.initial(0))(x), plain(x))
    assert task.layout.size < task_of().layout.size / 2
    assert not {type(part) for part in task.to_module(task.initial(0)).modules()} & set(EXCHANGED.values())


def test_the_frozen_layers_of_adapters_have_no_gradient():
    task = task_of(*ADAPTED["layers"], lora=1)
    tape = recorder(task)(
        task.layout.unflatten(task.initial(0)[None]), examples(task, 1, 2), torch.zeros(1, 2).long()
    )
    assert {name.rsplit(".", 1)[-1] for name in tape.error} == {"lora_down", "lora_up"}
    assert not tape.explicit


def test_a_study_with_adapters_is_saved_and_read_again(tmp_path, start):
    file, _ = start
    data = replace(federation_of(task_of()), source="made")
    options = {"model": small, "model_options": {"start": str(file.path), "lora": 2}, "only": ["head"]}
    options |= {"rounds": 1, "batch": 4}

    def stop(method, number, score):
        if method == "local":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ct.run(data, ["fedavg", "local"], ONE, out=tmp_path / "study", on_round=stop, **options)
    result = ct.run(data, ["fedavg", "local"], ONE, out=tmp_path / "study", **options)
    assert torch.equal(result.vectors[0], ct.run(data, "fedavg", ONE, **options).vectors[0])
    path = tmp_path / "study/models/fedavg/silo-0.safetensors"
    model = ct.load_model(path, small)
    assert type(model.module.head) is nn.Linear
    module, x = result.model("silo-0", method="fedavg"), examples(task_of(), 3)
    with torch.no_grad():
        torch.testing.assert_close(model.module(x), module(x))
    statement = json.loads((tmp_path / "study/statements/fedavg/silo-0.json").read_text())
    assert statement["model"]["start"] == file.digest
    assert ct.verify(tmp_path / "study/statements/fedavg/silo-0.json")
    assert any("must be public, because nothing is charged" in note for note in result.notes)
    config = ct.plan(data, "fedavg", ONE, **options).study.config
    assert (config.model.lora, config.train.only) == (2, ["head"])


def test_from_a_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(
        '[model]\nname = "mlp"\nhidden = 5\nlora = 1\n[train]\nrounds = 1\nonly = ["3"]\n'
        '[privacy]\nepsilon = 4.0\n[[method]]\nname = "fedavg"\n'
    )
    planned = ct.plan("study.toml")
    names = planned.study.experiments[0].task.layout.names
    assert names == ("1.lora_down.weight", "1.lora_up.weight", "3.weight", "3.bias")
    for changed, said in (
        ('model.start="missing.safetensors"', "model.start: cannot read 'missing.safetensors': no such file"),
        ("model.lora=0", "model.lora: expected a number >= 1, got 0"),
        ('train.only=["hed"]', "train.only: no part of the model is called 'hed'"),
    ):
        with pytest.raises(ct.Problem, match=said):
            ct.plan("study.toml", changes=[changed])


def test_everything_wrong_with_a_start_is_said_at_once(tmp_path, start):
    file, module = start
    wrong = dict(module.state_dict())
    wrong["head.weight"] = wrong["head.weight"].T.contiguous()
    wrong["words.weight"] = wrong["words.weight"].half()
    wrong["hed.bias"] = wrong.pop("head.bias")
    save_file(wrong, str(file.path), {"coterie": json.dumps({"notes": [RAW]})})
    with pytest.raises(ct.Problem) as caught:
        _ = task_of(start=Start(file.path), only=("hed",)).module
    lines = str(caught.value).splitlines()
    assert "train.only: no part of the model is called 'hed'; did you mean 'head'?" in lines
    for said in (
        "is not public: it was fitted to a silo's own examples without noise",
        "'head.weight' is (8, 3) F32 in the file, and (3, 8) float32 in the module",
        "'words.weight' is (11, 8) F16 in the file, and (11, 8) float32 in the module",
        "the module has no 'hed.bias'; did you mean 'head.bias'?",
    ):
        assert any(said in line for line in lines), said
    assert len(lines) == 6  # and the file lacks 'head.bias', which is frozen
    broken = dict(module.state_dict()) | {"head.bias": torch.full((3,), torch.nan)}
    save_file(broken, str(file.path))
    with refused("'head.bias' in"):
        _ = task_of(start=Start(file.path)).module
    file.path.write_bytes(b"nothing")
    with refused("is no safetensors file, or damaged"):
        _ = task_of(start=Start(file.path)).module


def test_what_cannot_be_adapted_is_refused(start):
    with refused("model.lora: the module has no linear layer (nn.Linear) to adapt"):
        _ = task_of(lambda: nn.Sequential(nn.Conv1d(6, 3, 4), nn.Flatten()), (6, 4), lora=2).module
    frozen = lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 8).requires_grad_(False), nn.Linear(8, 3))  # noqa: E731
    with refused("train.only: '1' is frozen by the module itself (requires_grad = False)"):
        _ = task_of(frozen, (6, 4), only=("1",)).module
    data = federation_of(task_of())
    with pytest.raises(ct.Problem, match=r"model\.lora: expected a whole number >= 1, got 0"):
        ct.run(data, "fedavg", ONE, model=Transformer, model_options={"lora": 0, "start": 3})


def test_a_plan_names_no_file(start):
    content = {
        "model": {"start": str(start[0].path)},
        "privacy": {"epsilon": 1.0},
        "method": [{"name": "fedavg"}],
    }
    with refused("model.start: a deployment sends no files, and guards open none that a plan names"):
        check_used(check(content))


def test_gradients_with_frozen_parts_equal_autograd():
    task = task_of(only=("encoder",))
    vectors = task.initial(0) + 0.1 * torch.randn(
        2, task.layout.size, generator=torch.Generator().manual_seed(0)
    )
    x, y = examples(task, 2, 3), torch.tensor([[0, 1, 2], [2, 1, 0]])
    found, _ = single(task, vectors, x, y)
    torch.testing.assert_close(found, one_at_a_time(task, vectors, x, y), atol=1e-5, rtol=1e-4)


def test_a_start_is_read_once(start, monkeypatch):
    """A file that changes during a training changes nothing, and one that changes while it is read is noticed."""
    file, module = start
    task = task_of(start=file)
    before, digest = task.initial(0), file.digest
    save_file({name: value + 1 for name, value in module.state_dict().items()}, str(file.path))
    assert torch.equal(task.initial(1), before)
    assert task.start_digest == digest != Start(file.path).digest
    changing = Start(file.path)
    monkeypatch.setattr(Start, "_digest", lambda self, known=iter("ab"): next(known))
    with refused("changed while it was read: try again"):
        _ = task_of(start=changing).module
