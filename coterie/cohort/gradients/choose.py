"""Choose how to compute a model's gradients by trying it on random examples, never on a silo's.

A layer may be taped if the layer itself uses its parameters, exactly once and on the one example it is
given, and if the tape then agrees with autograd. Everything else is differentiated explicitly, which is
slower but always right. Plain sequences of known layers have a faster tape (`sequential`).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...tasks.layers.attention import Attention
from ...tasks.task import Task
from ...tasks.trials import drawn_for
from ..derived import derived
from .sequential import is_sequence, sequential, sequential_sums
from .tape import CONVOLUTIONS, Recorder, Summer, summed, taped
from .tapped import RECURRENT, TABLES

if TYPE_CHECKING:
    from ..compiled.program import Stages

# From this many parameters on, the compiled kernels pay off without convolutions: 1.4 to 2.9 times as fast.
LARGE = 5_000
# A gradient below this is too small to be compared with another one.
TOO_SMALL = 1e-4


@derived
def recorder(task: Task) -> Recorder:
    """Return the recorder of a task, with as many layers taped as the module allows."""
    parameters, x, y, weight = _random_inputs(task)
    plain = _one_by_one(task, parameters, x, y, weight)

    def agree(record: Recorder) -> bool:
        try:
            sums = record(parameters, x, y).weighted_sums(weight)
        except RuntimeError:  # the shapes do not fit: the layer sees more than one vector
            return False
        return _close(sums, plain)

    if is_sequence(task) and agree(sequential(task)):
        return sequential(task)
    once = used_once(task, x[0, :1])
    kept = tuple(layer for layer in candidates(task) if layer in once and agree(taped(task, (layer,))))
    return taped(task, kept if agree(taped(task, kept)) else ())


@derived
def summer(task: Task) -> Summer:
    """Return the fastest function the module allows for summing gradients without clipping."""
    inputs = _random_inputs(task)

    def agree(sums: Summer) -> bool:
        try:
            return _close(sums(*inputs), _one_by_one(task, *inputs))
        except RuntimeError:  # a layer overwrites its input, or sees more than one vector
            return False

    return sequential_sums(task) if is_sequence(task) and agree(sequential_sums(task)) else summed(task)


@derived
def stages(task: Task) -> Stages | None:
    """Return the stages of a task for the compiled kernels, if these know its layers and match autograd.

    Return None for small models without convolutions: compiling takes seconds and gains nothing there. The
    kernels also need matrix products that keep to one core.
    """
    convolves = any(isinstance(part, nn.Conv2d) for part in task.module.modules())
    if task.device.type != "cpu" or not (convolves or task.layout.size >= LARGE):
        return None
    try:
        from ..compiled.blas import one_core_sgemm
        from ..compiled.program import stages_of

        program = stages_of(task) if one_core_sgemm() is not None else None
        return program if program is not None and _kernels_agree(task, program) else None
    except Exception as error:  # anything may be wrong with a compiler, or with what it cached on disk
        warnings.warn(
            f"the compiled kernels do not work on this machine ({type(error).__name__}: {error}), so training"
            " uses slower code; if they worked before, delete the package's __pycache__ folders",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _kernels_agree(task: Task, program: Stages) -> bool:
    """Compare the kernels with autograd, on initial and other models and on a whole and a partial block.

    Every parameter must have a gradient in some model, or the comparison would say nothing about it.
    """
    from ..compiled.walk import sum_compiled

    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(3, task.layout.size, generator=generator)
    vectors = torch.stack([task.initial(0), task.initial(1) + drawn[1] / 10, drawn[2] / 3])
    x = torch.randn(3, 3, *task.shape, generator=generator)
    y = torch.randint(0, task.classes, (3, 3), generator=generator)
    moved = sum_compiled(program, vectors, x, y, 2 * program.bytes_of_an_example)
    seen = dict.fromkeys(task.layout.names, False)
    for pair, sums in enumerate(moved):
        row = slice(pair, pair + 1)
        inputs = task.layout.unflatten(vectors[row]), x[row], y[row], torch.ones(1, 3)
        for name, plain in _one_by_one(task, *inputs).items():
            size, compiled = float(plain.abs().max()), task.layout.unflatten(sums)[name]
            seen[name] |= size > TOO_SMALL
            if not torch.allclose(compiled, plain[0], rtol=0, atol=1e-3 * size + TOO_SMALL / 10):
                return False
    return all(seen.values())


def _one_by_one(
    task: Task, parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor
) -> dict[str, Tensor]:
    """Sum the weighted gradients of one row, one example at a time.

    This uses autograd alone: torch.func takes more than a second to import, and plain sequences never
    need it.
    """
    leaves = {name: value[0].clone().requires_grad_() for name, value in parameters.items()}
    single = (task.losses(leaves, x[0, i : i + 1], y[0, i : i + 1]).sum() for i in range(x.shape[1]))
    total = sum((w * loss for w, loss in zip(weight[0], single, strict=True)), torch.zeros(()))
    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {name: gradient.unsqueeze(0) for name, gradient in zip(leaves, gradients, strict=True)}


def _random_inputs(task: Task) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    """Return random parameters, examples, labels and weights for one row of three examples."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(1, task.layout.size, generator=generator).to(task.device)
    x = drawn_for(task.module, (1, 3, *task.shape), task.kind, generator).to(task.device)
    y = task.blank_targets(1, 3) + (task.classes != 1)
    weight = torch.tensor([[0.5, 2.0, -1.0]], device=task.device)
    return task.layout.unflatten(vectors), x, y, weight


def _close(sums: dict[str, Tensor], plain: dict[str, Tensor]) -> bool:
    return set(sums) == set(plain) and all(
        sums[name].shape == plain[name].shape
        and torch.allclose(
            sums[name], plain[name], rtol=1e-4, atol=1e-5 * (1 + float(plain[name].abs().max()))
        )
        for name in plain
    )


def candidates(task: Task) -> list[str]:
    """Return the names of the layers whose gradient follows from their error and input."""
    names = []
    for name, part in task.module.named_modules():
        module: Any = part
        plain = type(part) in (nn.Linear, *RECURRENT, *TABLES, Attention) or (
            type(part) in CONVOLUTIONS
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        )
        parameters = [f"{name}.{key}" for key, _ in module.named_parameters()]
        if type(part) is Attention and module.bias_k is not None:
            continue
        if name and plain and parameters and set(parameters) <= set(task.layout.names):
            names.append(name)
    return names


class _Uses(TorchFunctionMode):
    """Count how many torch functions receive each of some tensors."""

    def __init__(self, watched: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = {id(tensor): name for name, tensor in watched.items()}
        self.count = dict.fromkeys(watched, 0)

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        for value in (*args, *(kwargs or {}).values()):
            for argument in value if isinstance(value, tuple | list) else (value,):
                if id(argument) in self.names:
                    self.count[self.names[id(argument)]] += 1
        return func(*args, **(kwargs or {}))


def used_once(task: Task, x: Tensor) -> set[str]:
    """Return the layers that are called once, on one example, and whose parameters nothing else reads."""
    parameters = {name: torch.zeros(shape, device=x.device) for name, shape in _shapes(task).items()}
    calls: dict[str, int] = {}

    def watch(layer: str, axes: range, first: int) -> Any:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            alone = all(each.dim() in axes and each.shape[first] == 1 for each in given)
            calls[layer] = calls.get(layer, 0) + (1 if alone else 2)

        return hook

    handles = []
    for layer in candidates(task):
        module: Any = task.module.get_submodule(layer)
        handles.append(module.register_forward_pre_hook(watch(layer, *_one_example(module))))
    uses = _Uses(parameters)
    try:
        with torch.no_grad(), uses:
            task.predict(parameters, x)
    finally:
        for handle in handles:
            handle.remove()
    return {
        layer
        for layer, count in calls.items()
        if count == 1 and all(n == 1 for name, n in uses.count.items() if name.startswith(f"{layer}."))
    }


def _one_example(module: Any) -> tuple[range, int]:
    """Return how many axes one example of a layer may have, and which is that of examples."""
    if isinstance(module, (*RECURRENT, Attention)):
        return range(3, 4), 0 if module.batch_first else 1
    if isinstance(module, (nn.Linear, *TABLES)):
        return range(2, 9), 0
    axes = module.weight.dim()
    return range(axes, axes + 1), 0


def _shapes(task: Task) -> dict[str, torch.Size]:
    return dict(zip(task.layout.names, task.layout.shapes, strict=True))
