"""docs/configuration.md names every key and every setting, with its default, and its example is valid."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from coterie.experiment.config.schema import Data, PrivacyTable, Report, Scores, Train, Tuning, check
from coterie.experiment.notes import BUDGETS
from coterie.measures.catalogue import METRICS
from coterie.methods import METHODS
from coterie.protocol.settings import settings_of
from coterie.tasks.models import GIVEN, MODELS

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
TEXT = PAGE.read_text()
TABLES = {
    "data": Data,
    "train": Train,
    "privacy": PrivacyTable,
    "tuning": Tuning,
    "scores": Scores,
    "report": Report,
}


def section(title: str) -> str:
    """Return the text of one section, its subsections included."""
    (found,) = re.findall(rf"^## `\[+{title}\]+`.*?(?=^## |\Z)", TEXT, flags=re.M | re.S)
    return found


def rows(text: str) -> dict[str, list[str]]:
    """Return the cells of all table rows, by each name in the first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {name: cells for cells in lines for name in re.findall(r"`([^`]+)`", cells[0])}


@pytest.mark.parametrize("title", TABLES)
def test_every_key_is_there_with_its_default(title):
    documented, fields = rows(section(title)), TABLES[title].model_fields
    assert set(documented) >= set(fields)
    for key, field in fields.items():
        default = field.default
        if isinstance(default, str):
            assert f'"{default}"' in documented[key][1]
        elif type(default) in (int, float) and key != "memory":
            assert float(documented[key][1]) == default


def test_every_method_is_there_with_its_settings():
    documented, text = rows(section("method")), section("method")
    for name, kind in METHODS.items():
        assert name in documented
        for key, field in settings_of(kind).items():
            assert f"`{key}`" in text
            if name in ("dual", "pfa+", "random-projection") or field.default is None:
                continue
            assert re.search(rf'`{key}` = `?"?{re.escape(str(field.default))}"?', text)
    assert all(f'"{budgets}"' in text for budgets in BUDGETS)


def test_every_metric_is_there():
    assert set(rows(section("report"))) >= set(METRICS)


def test_every_model_is_there_with_its_settings():
    documented = rows(section("model"))
    for name, factory in MODELS.items():
        for key, parameter in inspect.signature(factory).parameters.items():
            if key not in GIVEN:
                assert f"`{key}` = {str(parameter.default).lower()}" in documented[name][1]


def test_the_example_is_valid_and_links_lead_somewhere():
    (example,) = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.S)
    assert check(tomllib.loads(example)).data.silo_column == "clinic"
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert all((PAGE.parent / link).exists() for link in links)
