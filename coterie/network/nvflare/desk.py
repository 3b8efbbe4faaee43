"""What the coordinator asks of NVFlare's server: who is there, take this job, how is it, end it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import first_line
from .greeting import PROMPT, Away, greet
from .settings import Party, administrator

SILENT = ("no_reply", "error")  # what the server says of a node that is registered but does not reply
ENDED = ("FINISHED", "FAILED", "ABANDONED")

# NVFlare's warnings go where the program logs, and nowhere if it does not.
logging.getLogger("nvflare").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class JobEnd:
    """How a job ended, and what each party said when it was given the job."""

    status: str
    details: tuple[str, ...]


class Desk:
    """A session with the server, opened when it is needed and opened again when it broke."""

    def __init__(self, kit: Path, party: Party) -> None:
        self.kit, self.party = kit, party
        self._session: Any = None

    def nodes(self) -> dict[str, set[str]]:
        """Return the silos whose nodes reply now, and the jobs that each of them runs."""
        with self._opened() as session:
            names = [client.name for client in session.get_connected_client_list()]
            rows = session.get_client_job_status(names) if names else []
        running: dict[str, set[str]] = {}
        for row in rows or []:
            if row.get("status") not in SILENT:
                running.setdefault(str(row.get("client_name")), set()).add(str(row.get("job_id")))
        return running

    def submit(self, folder: Path) -> str:
        """Submit a job and return its number."""
        with self._opened() as session:
            return str(session.submit_job(str(folder)))

    def end_of(self, job: str) -> JobEnd | None:
        """Return how a job ended; None if it has not."""
        with self._opened() as session:
            meta = session.get_job_meta(job)
        status, details = str(meta.get("status")), meta.get("job_deploy_detail") or []
        return JobEnd(status, tuple(map(str, details))) if status.startswith(ENDED) else None

    def abort(self, job: str) -> None:
        """End a job, if the server can be reached and still runs it."""
        with contextlib.suppress(Away), self._opened() as session:
            session.abort_job(job)

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.close()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        """Give a session; whatever goes wrong in it closes it and is raised as `Away`."""
        from nvflare.fuel.flare_api.flare_api import Session

        try:
            if self._session is None:
                greet(self.party, self.kit)
                self._session = Session(administrator(self.party.federation), str(self.kit))
                self._session.api._print_hci = _say_nothing
                self._session.try_connect(PROMPT)
            yield self._session
        except Away:
            raise
        except Exception as error:
            self.close()
            where = f"{self.party.host}:{self.party.port}"
            raise Away(
                f"the server at {where} does not let the coordinator in: {first_line(error)}"
            ) from error


def _say_nothing(words: str) -> None:
    """Take the place of a print in NVFlare's session."""
