"""A public start: numbers of a module in a safetensors file, checked before anything of it is loaded."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Problem, nearest, reason
from .layout import tensors_of, tied_names

KEY, SECRET = (
    "coterie",
    "no privacy protects this model",
)  # of a saved model's record, and of one that is secret
TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
TYPES |= {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
TYPES |= {"BOOL": torch.bool}


@dataclass(frozen=True)
class Start:
    """A file of public numbers. It must be public: nothing is charged for what was learned from it."""

    path: Path

    @cached_property
    def digest(self) -> str:
        """The SHA-256 digest of the file, by which plans and statements name it."""
        return self._digest()

    def _digest(self) -> str:
        try:
            with self.path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise Problem(f"model.start: cannot read '{self.path}': {reason(error)}") from error

    def fill(self, module: nn.Module) -> list[str]:
        """Replace a module's numbers by those of the file, or return everything that does not fit.

        The file must have every frozen tensor of the module. A trained one that it lacks, such as a new head,
        starts from the seed. The file is read once.
        """
        own, further = tensors_of(module), tied_names(module)
        if "values" not in vars(self):
            problems = self._read(own, further)
            if problems:
                return problems
        with torch.no_grad():
            for name, value in vars(self)["values"].items():
                own[name].copy_(value)
        return []

    def _read(self, own: dict[str, Tensor], further: dict[str, str]) -> list[str]:
        """Read the file, if its header fits; else return what does not."""
        from safetensors import safe_open

        before = self.digest  # which says why the file cannot be read
        try:
            with safe_open(str(self.path), "pt") as file:
                names = list(file.keys())
                about = {name: file.get_slice(name) for name in names}
                shapes = {name: (tuple(each.get_shape()), each.get_dtype()) for name, each in about.items()}
                problems = self._problems(own, further, shapes, file.metadata() or {})
                if problems:
                    return problems
                values = {further.get(name, name): file.get_tensor(name).clone() for name in names}
        except OSError as error:
            raise Problem(f"model.start: cannot read '{self.path}': {reason(error)}") from error
        except Exception as error:  # safetensors raises its own kinds
            raise Problem(f"model.start: '{self.path}' is no safetensors file, or damaged") from error
        if self._digest() != before:
            raise Problem(f"model.start: '{self.path}' changed while it was read: try again")
        if broken := [name for name, value in values.items() if not _finite(value)]:
            return [f"model.start: '{broken[0]}' in '{self.path}' has numbers that are not finite"]
        vars(self)["values"] = values
        return []

    def _problems(
        self,
        own: dict[str, Tensor],
        further: dict[str, str],
        found: dict[str, tuple[tuple[int, ...], str]],
        metadata: dict[str, str],
    ) -> list[str]:
        """Return what does not fit, from the header of the file alone."""
        problems = []
        if _is_secret(metadata):
            problems.append(
                f"model.start: '{self.path}' is not public: it was fitted to a silo's own examples without"
                " noise"
            )
        for name, (shape, kind) in found.items():
            tensor = own.get(further.get(name, name))
            if tensor is None:
                problems.append(f"model.start: the module has no '{name}'; {nearest(name, own)}")
            elif (shape, TYPES.get(kind)) != (tuple(tensor.shape), tensor.dtype):
                problems.append(
                    f"model.start: '{name}' is {shape} {kind} in the file, and {tuple(tensor.shape)}"
                    f" {str(tensor.dtype).removeprefix('torch.')} in the module"
                )
        there = {further.get(name, name) for name in found}
        problems += [
            f"model.start: the file lacks '{name}', which is frozen"
            for name, tensor in own.items()
            if name not in there and not tensor.requires_grad
        ]
        return problems


def _finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


def _is_secret(metadata: dict[str, str]) -> bool:
    """Return whether a file is a personal model that no privacy protects."""
    try:
        record: Any = json.loads(metadata.get(KEY, "{}"))
        return any(SECRET in str(note) for note in record.get("notes", []))
    except (ValueError, AttributeError):
        return False
