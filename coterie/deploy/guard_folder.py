"""The folder of a guard: its settings, its policy, and the examples it guards.

```
guard.toml     whose data this is, where it lies, who may ask, where ledger and witness are
policy.toml    what may be asked (see `policy`)
data.npz       prepared examples: x, y, test_x, test_y and, for labels, classes; perhaps person, test_person
preparation.json   how raw rows became examples, if that is known: saved models carry it
coordinator.pub    the key that signs what the coordinator asks
keys/ ledger/ guard.sqlite results/ log.txt     made by the guard
```
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from ..data.federation import Silo
from ..data.persons import facts_of_persons
from ..data.preparation import Preparation
from ..errors import Problem, reason
from ..experiment.config.schema import sentence
from ..network.serve import user_ids
from ..privacy.keys import Key, PublicKey, find_key, new_key, read_public_key
from ..privacy.ledger.custody import Custody
from ..privacy.ledger.identity import Identity
from ..privacy.ledger.ledger import Ledger, open_ledger
from ..privacy.ledger.witness import FolderWitness
from .policy import PolicyTable

GUARD, POLICY, DATA, COORDINATOR = "guard.toml", "policy.toml", "data.npz", "coordinator.pub"
ARRAYS = ("x", "y", "test_x", "test_y")
PERSONS = ("person", "test_person")
PREPARATION = "preparation.json"
LARGEST = 2**40


class GuardTable(BaseModel):
    """The settings in `guard.toml`; paths are relative to the folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    silo: Annotated[str, Field(min_length=1, max_length=200)]
    data: str = DATA
    data_name: Annotated[str, Field(min_length=1, max_length=200)]
    coordinator: str = COORDINATOR
    socket: str = "guard.sock"
    users: list[str] = []
    witness: str = "witness"
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


def read_table(path: Path, kind: type[BaseModel]) -> Any:
    """Return the checked content of a TOML file; raise one `Problem` that lists everything wrong with it."""
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise Problem(f"there is no '{path}': make the folder with `coterie guard init`") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"cannot read '{path}': {reason(error)}") from error
    except tomllib.TOMLDecodeError as error:
        raise Problem(f"'{path}' is not valid TOML: {error}") from error
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        lines = "".join(f"\n  {sentence(dict(each))}" for each in error.errors())
        raise Problem(f"'{path}' has {error.error_count()} problem(s):{lines}") from error


class GuardFolder:
    """A guard's folder, read once."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder).absolute()
        self.table: GuardTable = read_table(self.path / GUARD, GuardTable)
        self.silo = self.table.silo

    @property
    def socket(self) -> Path:
        """The Unix socket that the guard answers on."""
        return self.path / self.table.socket

    def key(self) -> Key:
        """Return the silo's key."""
        return find_key(self.path / "keys", self.silo)

    def coordinator(self) -> PublicKey:
        """Return the key of the coordinator, which must be valid today."""
        key = read_public_key(self.path / self.table.coordinator)
        key.check("coordinator")
        return key

    def ledger(self, budget: tuple[float, float] | None = None, unit: str = "example") -> Ledger:
        """Open the ledger of the data; with a budget, make it if there is none."""
        return open_ledger(self.path / "ledger", self.identity(), budget, unit, custody=self.custody())

    def custody(self) -> Custody:
        """Return which key signs, and which witness remembers."""
        return Custody(self.path / "keys", FolderWitness(self.path / self.table.witness))

    def identity(self) -> Identity:
        """Return who the data is in its ledger: by the owner's words, whatever a plan calls it."""
        sizes = self._shapes()
        return Identity(self.table.data_name, self.silo, sizes["y"][0] + sizes["test_y"][0])

    def preparation(self) -> Preparation | None:
        """Return how raw rows became this silo's examples; None if nobody said."""
        path = self.path / PREPARATION
        if not path.exists():
            return None
        try:
            return Preparation.from_json(json.loads(path.read_text())).pick([self.silo])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise Problem(f"'{path}' is not what `coterie guard init` wrote: {error}") from error

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        with _opened(self.path / self.table.data) as arrays:
            return {name: arrays[name].shape for name in ("y", "test_y")}

    def examples(self, classes: Sequence[str]) -> Silo:
        """Return the silo's examples, with labels numbered as in `classes`."""
        path = self.path / self.table.data
        with _opened(path) as arrays:
            x, y, test_x, test_y = (arrays[name] for name in ARRAYS)
            own = [str(name) for name in arrays["classes"]] if "classes" in arrays else []
            persons = _persons(arrays)
        if bool(own) != bool(classes):
            kinds = ("numbers", "labels") if classes else ("labels", "numbers")
            raise Problem(f"'{path}' has {kinds[0]} as targets, and the plan has {kinds[1]}")
        if classes:
            if unknown := [name for name in own if name not in classes]:
                raise Problem(f"'{path}' has labels that the plan does not know, such as '{unknown[0]}'")
            number = np.array([list(classes).index(name) for name in own], dtype=np.int64)
            y, test_y = number[y], number[test_y]
        train, test = ((_tensor(a), _tensor(b)) for a, b in ((x, y), (test_x, test_y)))
        return Silo(self.silo, *train, *test, *persons)


def _opened(path: Path) -> Any:
    """Return the arrays of a data file; nothing in it may be pickled."""
    try:
        arrays = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise Problem(f"cannot read the examples in '{path}': {error}") from error
    missing = [name for name in ARRAYS if name not in arrays]
    if missing:
        raise Problem(f"'{path}' has no array {', '.join(missing)}: write it with `coterie guard init`")
    return arrays


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _persons(arrays: Any) -> tuple[Tensor | None, Tensor | None]:
    """Return whose rows are whose, in training and in test, if the data says so."""
    train, test = (torch.from_numpy(arrays[key]) if key in arrays else None for key in PERSONS)
    return train, test


def examples_form(folder: GuardFolder) -> dict[str, Any]:
    """Return the sizes and the form of a guard's examples, which are public."""
    with _opened(folder.path / folder.table.data) as arrays:
        x, y, test_y = (arrays[name] for name in ("x", "y", "test_y"))
        classes = [str(name) for name in arrays["classes"]] if "classes" in arrays else []
        persons = _persons(arrays)
    form = {"shape": list(x.shape[1:]), "bytes": x.dtype == np.uint8, "classes": classes}
    if (known := folder.preparation()) is not None:
        form |= {
            "columns": list(known.encoded),
            "not_covered": list(known.not_covered),
            "steps": _steps(known),
        }
    if (about := facts_of_persons(*persons)) is not None:
        form |= {"persons": asdict(about)}
    return {**form, "train": len(y), "test": len(test_y), "scale": folder.table.scale}


def _steps(preparation: Preparation) -> dict[str, Any]:
    """Return the steps of a preparation that all silos must take alike."""
    content = preparation.to_json()
    found = {key: content[key] for key in ("features", "feature_range", "norm", "target_range")}
    found["standardize"] = content.get("standardize")
    own = ("name", "values")  # which are among the names of the columns that a model gets
    rules = {each["name"]: {k: v for k, v in each.items() if k not in own} for each in content["columns"]}
    found["rules"] = {name: rule for name, rule in rules.items() if rule} or None
    return {key: value for key, value in found.items() if value not in (None, "auto")}


def write_examples(path: Path, silo: Silo, classes: Sequence[str]) -> None:
    """Write a silo's prepared examples."""
    arrays: dict[str, Any] = {name: getattr(silo, name).numpy() for name in ARRAYS}
    arrays |= {key: getattr(silo, key).numpy() for key in PERSONS if getattr(silo, key) is not None}
    if classes:
        arrays["classes"] = np.array(list(classes), dtype=np.str_)
    try:
        np.savez(path, **arrays)
        path.chmod(0o600)
    except OSError as error:
        raise Problem(f"cannot write '{path}': {reason(error)}") from error


def make_guard(
    folder: str | Path,
    silo: Silo,
    classes: Sequence[str],
    data_name: str,
    coordinator: PublicKey,
    budget: tuple[float, float],
    policy: str,
    unit: str = "example",
    users: Sequence[str] = (),
    scale: float = 1.0,
    socket: str | None = None,
    preparation: Preparation | None = None,
) -> GuardFolder:
    """Make the folder of a new guard, with its key and its ledger; nothing in it may exist before.

    Its socket is in the folder too, unless a path says where. With the `preparation` of its only silo, saved
    models take raw rows, and others can be told how examples were made. If anything is wrong, no folder
    remains.
    """
    path = Path(folder)
    if path.exists() and any(path.iterdir()):
        raise Problem(f"'{path}' is not empty: a guard is made in a new folder")
    if unit == "person" and silo.persons is None:
        raise Problem("unit: 'person' needs to know whose rows are whose: name the column with --person")
    user_ids(users)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    try:
        write_examples(path / DATA, silo, classes)
        table: dict[str, Any] = {
            "silo": silo.name,
            "data_name": data_name,
            "users": list(users),
            "scale": scale,
        }
        if socket is not None:
            table["socket"] = socket
        if preparation is not None:
            (steps,) = preparation.silos.values()
            content = replace(preparation, silos={silo.name: steps}).to_json()
            (path / PREPARATION).write_text(json.dumps(content, indent=1))
            (path / PREPARATION).chmod(0o600)
        (path / GUARD).write_text(tomli_w.dumps(table))
        (path / POLICY).write_text(policy)
        read_table(path / POLICY, PolicyTable)
        (path / COORDINATOR).write_text(json.dumps(coordinator.facts(), indent=1))
        (path / "witness").mkdir(mode=0o700)
        new_key(path / "keys", silo.name)
        made = GuardFolder(path)
        made.ledger(budget, unit).close()
    except Problem:
        shutil.rmtree(path)  # so that the same command works once the mistake is mended
        raise
    return made
