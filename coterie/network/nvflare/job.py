"""The one job that Coterie submits: two small configurations that name classes installed at both ends.

A job carries no code. Every silo gets the same files, byte by byte, so that a node can refuse all others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TASK = "coterie"
MESSAGE, ANSWER, PROBLEM = "message", "answer", "coterie_problem"  # keys of what a task carries
CONTROLLER = "coterie.network.nvflare.controller.BatchController"
EXECUTOR = "coterie.network.nvflare.executor.GuardExecutor"
SERVER_APP, SILO_APP = "coordinator", "silo"
POLL = 0.1  # seconds between two questions of a node for a task


def as_text(value: Any) -> str:
    """Return a value as the JSON text that files of jobs and kits hold."""
    return json.dumps(value, indent=2) + "\n"


def silo_files() -> dict[str, bytes]:
    """Return the files that a node may be given, by their path in the application."""
    config = {
        "format_version": 2,
        "default_task_fetch_interval": POLL,
        "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }
    return {"config/config_fed_client.json": as_text(config).encode()}


def server_config(socket: Path, token: str, most: int) -> dict[str, Any]:
    """Return the server's configuration: where the coordinator listens, and the word that names this job."""
    return {
        "format_version": 2,
        "server": {"heart_beat_timeout": 600, "task_request_interval": POLL},
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [
            {
                "id": "batches",
                "path": CONTROLLER,
                "args": {"socket": str(socket), "token": token, "most": most},
            }
        ],
    }


def write_job(folder: Path, silos: Sequence[str], socket: Path, token: str, most: int) -> Path:
    """Write the job for these silos into a folder, and return the folder."""
    meta = {
        "name": "coterie",
        "resource_spec": {},
        "deploy_map": {SERVER_APP: ["server"], SILO_APP: list(silos)},
        "min_clients": len(silos),
        "mandatory_clients": list(silos),
    }
    server = folder / SERVER_APP / "config" / "config_fed_server.json"
    server.parent.mkdir(parents=True)
    server.write_text(as_text(server_config(socket, token, most)))
    for name, content in silo_files().items():
        path = folder / SILO_APP / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    (folder / "meta.json").write_text(as_text(meta))
    return folder
