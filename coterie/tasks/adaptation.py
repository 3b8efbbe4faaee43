"""What is trained of a module: from which public numbers it starts, which parts train, and by which adapters.

Only what is trained lies in the vector. What is frozen costs neither noise nor bytes.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from torch import nn

from ..errors import Problem, nearest
from .layers.adapters import adapt
from .start import Start


@dataclass(frozen=True)
class Adaptation:
    """A public `start`, the parts that train (`only`; all, if there are none) and the rank of adapters.

    A part is the name of a parameter or of what contains it, such as "head", or a pattern such as "*.bias".
    With `lora`, every linear layer outside these parts gets an adapter, and all else is frozen.
    """

    start: Start | None = None
    only: tuple[str, ...] = ()
    lora: int = 0

    def apply(self, module: nn.Module) -> nn.Module:
        """Change a new module; raise one `Problem` that lists everything that does not fit it."""
        problems = self._parts_problems(module)
        self._freeze(module)
        if self.start is not None:
            problems += self.start.fill(module)
        if problems:
            raise Problem("\n".join(problems))
        if self.lora:
            self._adapt(module)
        return module

    def _freeze(self, module: nn.Module) -> None:
        if self.only or self.lora:
            for name, parameter in module.named_parameters():
                if not self._is_named(name):
                    parameter.requires_grad_(False)

    def _is_named(self, name: str) -> bool:
        return any(_matches(name, part) for part in self.only)

    def _parts_problems(self, module: nn.Module) -> list[str]:
        names = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
        known = {name.rsplit(".", cut)[0] for name in names for cut in range(name.count(".") + 1)}
        problems = []
        for part in self.only:
            found = [free for name, free in names.items() if _matches(name, part)]
            if not found:
                problems.append(
                    f"train.only: no part of the model is called '{part}'; {nearest(part, known)}"
                )
            elif not any(found):
                problems.append(
                    f"train.only: '{part}' is frozen by the module itself (requires_grad = False)"
                )
        return problems

    def _adapt(self, module: nn.Module) -> None:
        layers = [
            part
            for name, part in module.named_modules()
            if type(part) is nn.Linear and not self._is_named(f"{name}.weight" if name else "weight")
        ]
        if not layers:
            raise Problem(
                "model.lora: the module has no linear layer (nn.Linear) to adapt: leave it out, or choose"
                " what trains with train.only"
            )
        for layer in layers:
            adapt(layer, self.lora)


def _matches(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.") or fnmatch.fnmatchcase(name, part)
