"""The settings that Coterie puts on top of NVFlare's: what a site allows, and nothing more.

A kit must hold exactly these files with exactly these values; `kit.check_kit` compares. What a site does not
need is off: jobs with code, shell commands, log streaming, connections between silos.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..frames import MOST
from .job import CONTROLLER, EXECUTOR

SERVER, COORDINATOR, SILO = "server", "coordinator", "silo"  # kinds of parties
IDENTITY = "coordinator"  # the name in the server's certificate
SCHEME = "grpc"
LAUNCHER = "coterie.network.nvflare.worker.WorkerLauncher"
ROLE = "lead"
ROOM = 2**20  # bytes that NVFlare adds to a message
FRAME = 2**24  # bytes of one frame on the wire
RIGHTS = (
    "submit_job clone_job manage_job download_job view operate shell_commands byoc server-predeployed-flwr"
).split()
ROLES = ("project_admin", "org_admin", "lead", "member")
COORDINATORS_RIGHTS = {"submit_job": "any", "manage_job": "n:submitter", "view": "any"}


@dataclass(frozen=True)
class Party:
    """Whose kit it is: the contents of `coterie.json`."""

    federation: str
    kind: str
    name: str
    host: str
    port: int
    organisation: str
    authority: str  # the fingerprint of the federation's root certificate
    silos: tuple[str, ...] = ()  # known to the server and the coordinator


def administrator(federation: str) -> str:
    """Return the name under which the coordinator submits jobs; NVFlare wants the form of a mail address."""
    return f"coordinator@{federation.replace('_', '-')}.coterie"


def files_for(party: Party, folder: Path) -> dict[str, Any]:
    """Return the JSON files of a kit in this folder, by their path in it."""
    if party.kind == SILO:
        startup: dict[str, Any] = {"startup/fed_client.json": _fed_client(party)}
        resources = _silo_resources()
    elif party.kind == SERVER:
        startup = {"startup/fed_server.json": _fed_server(party)}
        resources = _server_resources(folder)
    else:
        return {"startup/fed_admin.json": _fed_admin(party), "local/resources.json": _admin_resources()}
    return {
        **startup,
        "local/resources.json": resources,
        "local/authorization.json": _authorization(),
        "local/comm_config.json": _communication(),
        "local/log_config.json": _logging(),
    }


def credentials_of(kind: str) -> tuple[str, str, str]:
    """Return the paths of root certificate, own certificate and private key in a kit."""
    own = "server" if kind == SERVER else "client"
    return "startup/rootCA.pem", f"startup/{own}.crt", f"startup/{own}.key"


def _authorization() -> dict[str, Any]:
    """Return who may do what: the coordinator may submit and end jobs, and nobody anything else."""
    permissions: dict[str, Mapping[str, str]] = {role: dict.fromkeys(RIGHTS, "none") for role in ROLES}
    permissions[ROLE] = {**permissions[ROLE], **COORDINATORS_RIGHTS}
    return {"format_version": "1.0", "permissions": permissions}


def _communication() -> dict[str, Any]:
    """Return the limits of what may come in, and no connections but those to the server.

    A long message travels as a stream of frames of 1 MB. NVFlare itself would take a frame of 2 GB.
    A party's processes talk to each other over loopback, which other users of the machine reach too. So
    the one who connects must show a certificate of the federation, which NVFlare does not ask for by default.
    """
    frames = ["grpc.max_send_message_length", "grpc.max_receive_message_length"]
    return {
        "allow_adhoc_conns": False,
        "backbone_conn_gen": 2,
        "internal": {
            "scheme": "tcp",
            "resources": {"host": "localhost", "connection_security": "mtls"},
        },
        "max_message_size": MOST + ROOM,
        "streaming_max_blob_size": MOST + ROOM,
        "grpc": {"max_workers": 100, "options": [[name, FRAME] for name in frames]},
    }


def _silo_resources() -> dict[str, Any]:
    managers = "nvflare.app_common.resource_managers.passthrough_resource_manager.PassthroughResourceManager"
    consumers = (
        "nvflare.app_common.resource_consumers.passthrough_resource_consumer.PassthroughResourceConsumer"
    )
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [EXECUTOR],
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "NoCompression"},
        "components": [
            {"id": "resource_manager", "path": managers, "args": {}},
            {"id": "resource_consumer", "path": consumers, "args": {}},
            {"id": "process_launcher", "path": LAUNCHER, "args": {}},
        ],
    }


def _server_resources(folder: Path) -> dict[str, Any]:
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [CONTROLLER],
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": 1000,
                "heart_beat_timeout": 60,
                "admin_timeout": 4.0,  # below the 5 s that a session waits for the server
            }
        ],
        "snapshot_persistor": {
            "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
            "args": {
                "uri_root": "/",
                "storage": {
                    "path": storage,
                    "args": {"root_dir": str(folder / "snapshots"), "uri_root": "/"},
                },
            },
        },
        "components": [
            {
                "id": "job_scheduler",
                "path": "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                "args": {"max_jobs": 100},
            },
            {
                "id": "job_manager",
                "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                "args": {"uri_root": str(folder / "jobs"), "job_store_id": "job_store"},
            },
            {"id": "job_store", "path": storage},
            {
                "id": "process_launcher",
                "path": "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher",
                "args": {},
            },
        ],
    }


def _admin_resources() -> dict[str, Any]:
    return {
        "format_version": 1,
        "admin": {
            "idle_timeout": 900.0,
            "login_timeout": 10.0,
            "with_debug": False,
            "authenticate_msg_timeout": 2.0,
            "prompt": "> ",
        },
    }


def _fed_client(party: Party) -> dict[str, Any]:
    service = {"target": f"{party.host}:{party.port}", "scheme": SCHEME}
    return {
        "format_version": 2,
        "require_signed_jobs": True,
        "servers": [{"name": party.federation, "service": service, "identity": IDENTITY}],
        "client": {
            "ssl_private_key": "client.key",
            "ssl_cert": "client.crt",
            "ssl_root_cert": "rootCA.pem",
            "fqsn": party.name,
            "is_leaf": True,
            "connection_security": "mtls",
        },
    }


def _fed_server(party: Party) -> dict[str, Any]:
    return {
        "format_version": 2,
        "require_signed_jobs": True,
        "servers": [
            {
                "name": party.federation,
                "service": {"target": f"{IDENTITY}:{party.port}", "scheme": SCHEME},
                "admin_server": IDENTITY,
                "admin_port": party.port,
                "ssl_private_key": "server.key",
                "ssl_cert": "server.crt",
                "ssl_root_cert": "rootCA.pem",
                "connection_security": "mtls",
            }
        ],
    }


def _fed_admin(party: Party) -> dict[str, Any]:
    return {
        "format_version": 1,
        "admin": {
            "project_name": party.federation,
            "username": administrator(party.federation),
            "server_identity": IDENTITY,
            "scheme": SCHEME,
            "host": party.host,
            "port": party.port,
            "connection_security": "mtls",
            "uid_source": "user_input",
            "with_file_transfer": True,
            "upload_dir": "transfer",
            "download_dir": "transfer",
            "client_key": "client.key",
            "client_cert": "client.crt",
            "ca_cert": "rootCA.pem",
        },
    }


def _logging() -> dict[str, Any]:
    """Return what is logged: everything from INFO up, to the console and to 10 files of 20 MB."""
    base = {
        "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
        "fmt": "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s",
    }
    console = {"class": "logging.StreamHandler", "formatter": "base", "stream": "ext://sys.stdout"}
    files = {
        "class": "logging.handlers.RotatingFileHandler",
        "formatter": "base",
        "filename": "log.txt",
        "maxBytes": 20_000_000,
        "backupCount": 10,
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"base": base},
        "handlers": {"console": console, "file": files},
        "loggers": {"root": {"level": "INFO", "handlers": ["console", "file"]}},
    }
