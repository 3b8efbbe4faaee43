"""A node's job process: NVFlare's own, without the management of its cells.

NVFlare lets a server ask any cell for its connections and settings, send it to another address, or keep it
busy with tests of speed. A node needs none of that. `WorkerLauncher` is named in a kit's settings, so that a
node starts this module as its job process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.private.fed.client import fed_client_base


class Unmanaged:
    """The place of NVFlare's agent in a cell that nobody manages from outside."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def close(self) -> None:
        """Do nothing: nothing was opened."""


def seal() -> None:
    """Let the cells that this process makes as a client be managed by nobody."""
    if not hasattr(fed_client_base, "NetAgent"):
        raise RuntimeError("NVFlare has changed: its client makes no NetAgent")
    fed_client_base.NetAgent = Unmanaged


class WorkerLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Start job processes from this module."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        """Return the command line of a job process."""
        fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)[JobProcessArgs.EXE_MODULE] = ("-m", __name__)
        return str(super().get_command(job_meta, fl_ctx))


def main() -> int:
    """Run a job process and return its exit code."""
    from nvflare.fuel.f3.mpm import MainProcessMonitor
    from nvflare.private.fed.app.client import worker_process

    seal()
    arguments = worker_process.parse_arguments()
    folder = Path(arguments.workspace) / arguments.job_id
    code = MainProcessMonitor.run(main_func=worker_process.main, run_dir=str(folder), args=arguments)
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
