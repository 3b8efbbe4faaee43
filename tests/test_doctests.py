"""The examples in docstrings print what they say."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import coterie


def modules_with_examples() -> list[str]:
    """Return the names of all modules of the package whose source has an example."""
    packages = pkgutil.walk_packages(coterie.__path__, "coterie.")
    names = ["coterie", *(module.name for module in packages)]
    return [name for name in names if ">>>" in source_of(name)]


def source_of(name: str) -> str:
    path = Path(coterie.__path__[0]).parent.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.read_text()


def test_there_are_examples():
    assert {"coterie.testing", "coterie.privacy.accountant", "coterie.theory.convergence.decay"} <= set(
        modules_with_examples()
    )


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_print_what_they_say(name, capsys):
    results = doctest.testmod(importlib.import_module(name))
    assert not results.failed, capsys.readouterr().out
    assert results.attempted == source_of(name).count(">>> "), "doctest does not find every example"
