"""The one application that Coterie submits to Flower: it names objects that are installed at both ends."""

from __future__ import annotations

from pathlib import Path

PROJECT = """\
[project]
name = "coterie-carrier"
version = "1.0.0"
description = "Carries messages between a coordinator and the guards of silos."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "coterie"

[tool.flwr.app.components]
serverapp = "coterie_carrier:server"
clientapp = "coterie_carrier:client"

[tool.flwr.app.config]
socket = ""
token = ""
most = 0
"""
MODULE = """\
from coterie.network.flower import carrier

client = carrier.client
server = carrier.server
"""


def write_app(folder: Path) -> Path:
    """Write the application into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "coterie_carrier.py").write_text(MODULE)
    return folder


def run_settings(socket: Path, token: str, most: int) -> str:
    """Return what a run is told: where the coordinator listens, the word that names it, and its limit."""
    return f"socket='{socket}' token='{token}' most={most}"
