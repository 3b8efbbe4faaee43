"""The systemd units and the container file name only what exists, and keep guard and node apart."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from coterie.cli.main import app

ROOT = Path(__file__).parent.parent
UNITS = sorted((ROOT / "deploy").glob("*.service"))
PROGRAM = "/opt/coterie/bin/coterie"


def settings_of(unit):
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(unit.read_text())
    return parser["Service"]


def check_command(words):
    """Fail unless these words, without the program's name, are a command with options that exist."""
    command = get_command(app)
    while words and hasattr(command, "commands"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known, words


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_every_line(unit, tmp_path):
    copy = tmp_path / unit.name
    assert PROGRAM in unit.read_text()
    copy.write_text(unit.read_text().replace(PROGRAM, "/bin/true"))  # the program need not be installed here
    for sibling in UNITS:
        if sibling != unit:
            (tmp_path / sibling.name).write_text(sibling.read_text().replace(PROGRAM, "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists(unit):
    program, *words = shlex.split(settings_of(unit)["ExecStart"])
    assert program == PROGRAM
    check_command(words)


def unit_of(role):
    return settings_of(ROOT / "deploy" / f"coterie-{role}.service")


def test_the_units_use_the_users_and_folders_of_the_page():
    page = (ROOT / "docs" / "deploy.md").read_text()
    guard, node, server = units = [unit_of(role) for role in ("guard@", "node@", "server")]
    for unit in units:
        assert f"useradd --system --create-home {unit['User']}" in page
        assert unit["Group"] == unit["User"]
        assert unit["BindPaths"] == f"/home/{unit['User']}"  # all other homes are hidden
        assert unit["ProtectHome"] == "tmpfs"
    assert len({unit["User"] for unit in units}) == 3
    assert guard["ReadWritePaths"] == "/var/lib/coterie"
    assert "-m 2750 /var/lib/coterie" in page
    assert "ReadWritePaths" not in node  # it cannot write the guard's folders
    assert "ReadWritePaths" not in server
    assert guard["PrivateNetwork"] == "yes"
    assert guard["RestrictAddressFamilies"] == "AF_UNIX"
    assert "PrivateUsers" not in guard  # it would hide who connects to the guard's socket


def test_the_units_run_the_commands_of_the_page_for_any_silo():
    page = (ROOT / "docs" / "deploy.md").read_text()
    for role in ("guard@", "node@", "server"):
        unit = unit_of(role)
        command = unit["ExecStart"].removeprefix("/opt/coterie/bin/").replace("%i", "north")
        assert f"\n{command.replace('/home/' + unit['User'] + '/', '')}\n" in page
        name = f"coterie-{role}".removesuffix("@")
        assert name in page


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_the_units_well_locked(unit):
    """Of 10 points of exposure, a unit without any setting has 9.6. A node must reach the network."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze is too old to look at a file")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr


def container_lines():
    text = (ROOT / "deploy" / "Containerfile").read_text()
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def test_the_container_file_copies_and_installs_what_exists():
    lines, project = container_lines(), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [word for word, _ in lines] == ["FROM", "WORKDIR", "COPY", "RUN", "USER", "ENTRYPOINT"]
    said = dict(lines)
    assert all((ROOT / source).exists() for source in said["COPY"].split()[:-1])
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    for command in said["RUN"].split("&&"):
        words = shlex.split(command)
        if words[:2] != ["pip", "install"]:
            assert words == ["rm", "-rf", said["WORKDIR"]]
            continue
        assert (ROOT / words[words.index("-c") + 1]).exists()
        for extra in re.findall(r"\.\[(\w+)\]", command):
            assert extra in project["optional-dependencies"]
        for name, version in re.findall(r"(\w+)==([\d.]+)", command):
            assert any(line.startswith(f"{name}=={version}") for line in constraints) or (
                f"{name}=={version}" in (ROOT / "Makefile").read_text()
            )
    assert said["ENTRYPOINT"] == '["coterie"]'
    assert "coterie" in project["scripts"]
    assert int(said["USER"]) > 0


def test_the_container_files_examples_are_commands_that_exist():
    text = (ROOT / "deploy" / "Containerfile").read_text()
    commands = re.findall(r"^#.*podman run .*? coterie (.*)$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        check_command([word for word in command.split() if word != "..."])
