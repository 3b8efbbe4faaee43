"""A node's gate lets through what Coterie's job needs, and refuses all else."""

from __future__ import annotations

import io
import zipfile

import pytest
from nvflare.private.admin_defs import Message, ok_reply
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from coterie.network.nvflare.gate import TOPICS, Gate, gated, request_problems
from coterie.network.nvflare.job import SILO_APP, silo_files

JOB = "4be0643f-1d98-573b-97cd-ca98a65347dd"
META = {"name": "coterie", "job_id": JOB, "resource_spec": {}, "submitter_role": "lead"}


def archive(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        for name, content in files:
            zipped.writestr(name, content)
    return buffer.getvalue()


def request(topic, body="", job=JOB, meta=META, app=SILO_APP):
    message = Message(topic, body)
    message.set_headers(
        {RequestHeader.JOB_ID: job, RequestHeader.JOB_META: meta, RequestHeader.APP_NAME: app}
    )
    return message


OURS = list(silo_files().items())
SIGNED = [*OURS, (".__nvfl_sig.json", "{}"), ("config/.__nvfl_submitter.crt", "x"), ("config/", "")]


def test_only_what_a_node_needs_is_left():
    topics = {
        topic for gate in gated(ClientRequestProcessors.request_processors) for topic in gate.get_topics()
    }
    assert topics == set(TOPICS)
    everything = {topic for one in ClientRequestProcessors.request_processors for topic in one.get_topics()}
    for closed in (
        "sys.shell",
        "sys.info",
        "sys.report_env",
        "train.delete_run",
        "train.restart",
        "train.shutdown",
    ):
        assert closed in everything
        assert closed not in topics


def test_coteries_job_passes():
    for files in (OURS, SIGNED):
        assert list(request_problems(request(TrainingTopic.DEPLOY, archive(files)))) == []
    assert list(request_problems(request(TrainingTopic.START_JOB, {}))) == []
    assert list(request_problems(Message(TrainingTopic.CHECK_STATUS, ""))) == []


NAME, CONFIG = OURS[0]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ([*OURS, ("custom/evil.py", "")], "brings 'custom/evil.py'"),
        ([*OURS, ("config/comm_config.json", "{}")], "brings 'config/comm_config.json'"),
        ([*OURS, ("config/config_fed_client.conf", "")], "brings"),
        ([*OURS, ("../../local/resources.json", "")], "brings"),
        ([*OURS, ("custom/.__nvfl_sig.json", "")], "brings"),
        ([(NAME, CONFIG.replace(b"GuardExecutor", b"OtherExecutor"))], "is not Coterie's"),
        (
            [(NAME, CONFIG.replace(b'"args": {}', b'"args": {"x": {"path": "subprocess.Popen"}}'))],
            "is not Coterie's",
        ),
        ([], "is not Coterie's"),
        ([("config/", "")], "is not Coterie's"),
        ([*OURS, (".__nvfl_sig.json", bytes(2**20))], "no small archive"),
    ],
)
def test_other_jobs_are_refused(files, problem):
    assert problem in " ".join(request_problems(request(TrainingTopic.DEPLOY, archive(files))))


def test_a_file_twice_or_a_bomb_is_refused():
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = archive([*OURS, *OURS])
    assert "holds a file twice" in " ".join(request_problems(request(TrainingTopic.DEPLOY, twice)))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr(".__nvfl_sig.json", bytes(2**24))
    assert len(buffer.getvalue()) < 2**20
    assert list(request_problems(request(TrainingTopic.DEPLOY, buffer.getvalue()))) == [
        "the job is too large"
    ]


@pytest.mark.parametrize("body", ["", None, b"", b"PK", b"x" * 100])
def test_what_is_no_archive_is_refused(body):
    assert "archive" in " ".join(request_problems(request(TrainingTopic.DEPLOY, body)))


@pytest.mark.parametrize(
    "job", [None, "", "local", "startup", "..", JOB + "/..", JOB + " -m os", JOB.upper(), 7]
)
@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic != TrainingTopic.CHECK_STATUS])
def test_a_job_without_a_proper_number_is_refused(topic, job):
    assert "it names no job" in list(request_problems(request(topic, {}, job=job)))


@pytest.mark.parametrize(
    ("meta", "problem"),
    [
        (None, "no description"),
        ({**META, "byoc": True}, "says more than it may: byoc"),
        (
            {**META, "launcher_spec": {"north": {"docker": {"image": "x"}}}},
            "says more than it may: launcher_spec",
        ),
        ({**META, "scope": "public", "stats_pool_config": {}}, "scope, stats_pool_config"),
        ({**META, "resource_spec": {"north": {"gpu": 1}}}, "asks for resources"),
    ],
)
@pytest.mark.parametrize("topic", [TrainingTopic.DEPLOY, TrainingTopic.START_JOB])
def test_a_description_that_changes_how_a_job_runs_is_refused(topic, meta, problem):
    body = archive(OURS) if topic == TrainingTopic.DEPLOY else {}
    (found,) = request_problems(request(topic, body, meta=meta))
    assert problem in found


def test_resources_and_another_application_are_refused():
    assert list(request_problems(request(TrainingTopic.START_JOB, {"gpu": 1}))) == ["it asks for resources"]
    (found,) = request_problems(request(TrainingTopic.DEPLOY, archive(OURS), app="other"))
    assert "another name" in found


def test_the_gate_asks_the_processor_only_if_nothing_is_wrong():
    class Recorder(RequestProcessor):
        asked = 0

        def get_topics(self):
            return [TrainingTopic.ABORT, "sys.shell"]

        def process(self, req, app_ctx):
            self.asked += 1
            return ok_reply(body="done")

    recorder = Recorder()
    gate = Gate(recorder)
    assert gate.get_topics() == [TrainingTopic.ABORT]
    assert gate.process(request(TrainingTopic.ABORT), None).body == "done"
    assert gate.process(request(TrainingTopic.ABORT, job="local"), None).body == "refused: it names no job"
    assert recorder.asked == 1
