"""Which code a name such as "package.module:function" may stand for.

A configuration is data: somebody may have sent it. Naming a model in it must not run anything but the
models its reader means to run. So a name stands for a function or class that is *defined in* the module it
names. The module is not part of Python's standard library, and it is imported only if it lies beside the
configuration or if whoever reads the configuration allows it by name (`--allow MODULE`).

This stops a configuration from naming code, not code from doing harm: a module that is imported runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from ..errors import Problem

RETURNED = {
    "model": "module",
    "loss": "loss of each example",
    "metric": "metric of one silo",
}  # by functions, by their kind


@dataclass(frozen=True)
class Allowed:
    """Which modules names may stand for: those that lie in `folder`, and `modules` with all they contain.

    Allowed modules are looked for where Python looks, then in the folder, then in the current one. What is
    allowed is no part of what a configuration says, so it does not make two of them differ.
    """

    folder: Path | None = field(default=None, compare=False)
    modules: tuple[str, ...] = field(default=(), compare=False)

    def names(self, module: str) -> bool:
        """Return whether a module, or a package that contains it, is allowed by name."""
        return any(module == name or module.startswith(f"{name}.") for name in self.modules)


def allowing(folder: Path | None, modules: Sequence[str]) -> Allowed:
    """Return what a configuration may name: modules in its folder, and those that its reader allows."""
    if isinstance(modules, str):
        raise Problem(f"allow: expected a list of names of modules, got {modules!r}")
    for name in modules:
        if not _is_dotted(name):
            raise Problem(f"allow: expected the name of a module, such as my_models, got {name!r}")
        if _is_standard(name):
            raise Problem(
                f"allow: '{name}' is part of Python's standard library, whose code is never a model: allow a"
                " module of your own"
            )
    return Allowed(None if folder is None else folder.resolve(), tuple(modules))


@dataclass(frozen=True)
class Asked:
    """A name in a configuration: under which `key`, and what `kind` of thing it is to be."""

    name: str
    key: str = "model.name"
    kind: str = "model"

    def problem(self, said: str) -> Problem:
        """Return the problem with this name."""
        return Problem(f"{self.key}: {said}")


def find_code(name: str, allowed: Allowed | None = None, key: str = "model.name", kind: str = "model") -> Any:
    """Import "package.module:function" and return the function or class, if it may be run.

    Without `allowed`, a person named it in Python or on the command line: the module may be any that is not
    part of the standard library, and it is looked for where Python looks. Problems name the `key` of the
    configuration, and say which `kind` of thing was meant.
    """
    asked = Asked(name, key, kind)
    module_name, _, attribute = name.partition(":")
    if not _is_dotted(module_name) or not attribute.isidentifier():
        raise asked.problem(
            f"'{name}' does not name a function or class at the top of a module: write"
            " 'package.module:function'"
        )
    if _is_standard(module_name):
        raise asked.problem(
            f"'{name}' is part of Python's standard library, which is never run as a {kind}: name"
            " a function or class of your own, in a module of another name"
        )
    if allowed is None or allowed.names(module_name):
        folders = [] if allowed is None else [*([allowed.folder] if allowed.folder else []), Path.cwd()]
        module = _import(asked, module_name, folders, by_name=allowed is None)
    else:
        _check_beside(asked, module_name, allowed.folder)
        module = _import(asked, module_name, [allowed.folder] if allowed.folder else [])
    try:
        thing = getattr(module, attribute)
    except AttributeError as error:
        raise asked.problem(f"cannot import '{name}': {error}") from error
    _check_defined(asked, thing, module)
    return thing


def _is_dotted(name: Any) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def _is_standard(module: str) -> bool:
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names or top in sys.builtin_module_names


def _check_beside(asked: Asked, module: str, folder: Path | None) -> None:
    """Raise `Problem` unless a module lies in a folder, and is the only one of its name."""
    top = module.partition(".")[0]
    importlib.invalidate_caches()
    beside = None if folder is None else PathFinder.find_spec(top, [str(folder)])
    if beside is None:
        raise asked.problem(
            f"'{asked.name}' needs the module '{module}', which does not lie beside the configuration:"
            f" put it there, or allow it with --allow {top} (in Python, allow=['{top}'])"
        )
    other = _known_place(top)
    if other is not None and other != _place(beside):
        raise asked.problem(
            f"'{asked.name}' is unclear, because '{top}' lies beside the configuration and also at"
            f" {other}: rename the one beside the configuration, or allow the other with --allow {top}"
        )


def _known_place(top: str) -> str | None:
    """Return where Python has or would find a module, or None if it has none of that name."""
    if top in sys.modules:
        module = sys.modules[top]
        spec = getattr(module, "__spec__", None)
        return _place(spec) if spec is not None else str(getattr(module, "__file__", top))
    spec = importlib.util.find_spec(top)
    return None if spec is None else _place(spec)


def _place(spec: ModuleSpec) -> str:
    """Return the file of a module, or the folder of a package that has none."""
    if spec.has_location and spec.origin is not None:
        return str(Path(spec.origin).resolve())
    folders = [str(Path(folder).resolve()) for folder in spec.submodule_search_locations or ()]
    return folders[0] if folders else str(spec.origin)


@contextmanager
def _looking_in(folders: Sequence[Path]) -> Iterator[None]:
    """Let Python look into folders last, for as long as the context lasts."""
    added = [str(folder) for folder in folders if str(folder) not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for folder in added:
            if folder in sys.path:
                sys.path.remove(folder)


def _import(asked: Asked, module: str, folders: Sequence[Path], by_name: bool = False) -> types.ModuleType:
    importlib.invalidate_caches()
    try:
        with _looking_in(folders):
            return importlib.import_module(module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        hint = "; its folder must be on Python's search path (sys.path)" if absent and by_name else ""
        raise asked.problem(f"cannot import '{asked.name}': {error}{hint}") from error
    except Problem:
        raise
    except Exception as error:  # a user's module may raise anything
        said = str(error).splitlines()[0] if str(error) else "it gives no reason"
        raise asked.problem(f"cannot import '{asked.name}': {type(error).__name__}: {said}") from error


def _check_defined(asked: Asked, thing: Any, module: types.ModuleType) -> None:
    """Raise `Problem` unless something is a function or class that this module defines."""
    if not isinstance(thing, type | types.FunctionType):
        raise asked.problem(
            f"'{asked.name}' is neither a function nor a class written in Python, but a"
            f" {type(thing).__name__}: define a function that returns the {RETURNED[asked.kind]}"
        )
    home = getattr(thing, "__module__", None)
    if home != module.__name__:
        where = f"is defined in '{home}'"
        if isinstance(home, str) and not _is_standard(home):
            raise asked.problem(f"'{asked.name}' {where}: name it there, as '{home}:{thing.__name__}'")
        raise asked.problem(
            f"'{asked.name}' {where}, which is never run as a {asked.kind}: define a function of your own"
        )
