"""What a node does for the server, and nothing else.

NVFlare's client obeys its server in more than a silo wants. A server with changed code can read files by
shell commands, and can delete a kit's settings by naming a job `local`. Anyone who holds the federation's
root key can have foreign code run by signing a job in the role `super`. So a node lets only these requests
through, and only for jobs that are exactly Coterie's.
"""

from __future__ import annotations

import io
import logging
import re
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any

from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor

from .job import SILO_APP, silo_files

TOPICS = (
    TrainingTopic.CHECK_RESOURCE,
    TrainingTopic.CANCEL_RESOURCE,
    TrainingTopic.DEPLOY,
    TrainingTopic.START_JOB,
    TrainingTopic.ABORT,
    TrainingTopic.CHECK_STATUS,
    TrainingTopic.NOTIFY_JOB_STATUS,
)
JOB = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
LARGEST = 2**20  # bytes of a job
FACTS = frozenset(  # what a job's description may say: facts about it that change nothing at a silo
    "name deploy_map min_clients mandatory_clients study submitter_name submitter_org submitter_role"
    " job_folder_name job_id submit_time submit_time_iso start_time duration data_storage_format status"
    " schedule_history schedule_count last_schedule_time job_clients job_deploy_detail resource_spec".split()
)
log = logging.getLogger(__name__)


class Gate(RequestProcessor):  # type: ignore[misc]
    """One of NVFlare's processors, behind a check of what it is asked."""

    def __init__(self, inner: RequestProcessor) -> None:
        self.inner = inner

    def get_topics(self) -> list[str]:
        """Return those topics of the processor that a node needs."""
        return [topic for topic in self.inner.get_topics() if topic in TOPICS]

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Return the processor's reply, or a refusal."""
        if problem := next(request_problems(req), None):
            log.warning("refused %s from the server: %s", req.topic, problem)
            return error_reply(f"refused: {problem}")
        return self.inner.process(req, app_ctx)


def gated(processors: Iterable[RequestProcessor]) -> list[RequestProcessor]:
    """Return the processors that a node needs, each behind a gate."""
    gates = [Gate(processor) for processor in processors]
    return [gate for gate in gates if gate.get_topics()]


def request_problems(request: Message) -> Iterator[str]:
    """Yield what is wrong with a request of the server."""
    job = request.get_header(RequestHeader.JOB_ID)
    if request.topic != TrainingTopic.CHECK_STATUS and not (isinstance(job, str) and JOB.fullmatch(job)):
        yield "it names no job"
    if request.topic in (TrainingTopic.DEPLOY, TrainingTopic.START_JOB):
        yield from _meta_problems(request.get_header(RequestHeader.JOB_META))
    if request.topic == TrainingTopic.START_JOB and request.body:
        yield "it asks for resources"
    if request.topic == TrainingTopic.DEPLOY:
        if request.get_header(RequestHeader.APP_NAME) != SILO_APP:
            yield "the job's application has another name than Coterie's"
        yield from _content_problems(request.body)


def _meta_problems(meta: Any) -> Iterator[str]:
    if not isinstance(meta, dict):
        yield "the job has no description"
        return
    if unknown := sorted(str(key) for key in meta if str(getattr(key, "value", key)) not in FACTS):
        yield f"the job's description says more than it may: {', '.join(unknown)}"
    if meta.get("resource_spec"):
        yield "the job asks for resources"


def _content_problems(content: Any) -> Iterator[str]:
    """Yield how a job's files differ from those of Coterie's job."""
    expected = silo_files()
    if not isinstance(content, bytes | bytearray) or len(content) > LARGEST:
        yield "the job is no small archive"
        return
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len({entry.filename for entry in entries}) < len(entries):
                yield "the job holds a file twice"
            if sum(entry.file_size for entry in entries) > LARGEST:
                yield "the job is too large"
                return
            found = {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError):
        yield "the job is no archive"
        return
    for name in sorted(found.keys() - expected.keys()):
        if name.rpartition("/")[2] not in SIGNATURES or name.rpartition("/")[0] not in ("", "config"):
            yield f"the job brings '{name[:80]}', and no job may bring files of its own"
    for name, inside in expected.items():
        if found.get(name) != inside:
            yield f"the job's '{name}' is not Coterie's: are coordinator and silo of the same version?"
