"""A server lies, strangers knock, jobs bring code: a node gives nothing away. Run by `make test-deploy`.

Every attack is also made on a node as NVFlare itself starts it, with the same kit. Where it works there, only what
Coterie puts around the node stands in its way; where it does not, the kit's settings are enough.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import socket
import ssl
import time
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from nvflare.lighter.utils import (
    Identity,
    generate_cert,
    generate_keys,
    load_crt,
    serialize_cert,
    sign_folders,
)
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic

from coterie.network.frames import ask
from coterie.network.nvflare.job import EXECUTOR, SILO_APP, silo_files

from .nvflare_parties import ROOT, Parties, wait_for

pytestmark = pytest.mark.deploy
GATED, PLAIN = "north", "south"
LIMIT = 16_000_000  # bytes of a message to the gated node


def offered_until(
    liar: Liar, silo: str, files: Path, happened: Callable[[Path], bool], **meta: object
) -> bool:
    """Offer a job to a plain node until something happened.

    At a heartbeat, a node ends jobs that the server says it does not know, perhaps before they have done anything.
    """
    for _ in range(5):
        said, log = liar.offer(silo, files, **meta)
        assert "deployed" in said
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            if happened(log):
                return True
            time.sleep(0.1)
    return False


class Liar:
    """A lying server with two nodes: one of Coterie's, and one as NVFlare starts it."""

    def __init__(self, folder: Path) -> None:
        self.parties = Parties(folder, silos=(GATED, PLAIN))
        self.socket = folder / "liar"

    def start(self) -> None:
        kit = str(self.parties.kits["server"])
        self.parties.start("server", str(ROOT / "tests" / "lying_server.py"), kit, str(self.socket))
        self.parties.start_node(GATED, most=LIMIT)
        self.parties.start_plain_node(PLAIN)
        wait_for(self.socket.exists, 60, "the server's start")
        wait_for(lambda: len(self.do("clients")) == 2, 60, "both registrations")

    def do(self, what: str, **words: object):
        return json.loads(ask(self.socket, json.dumps({"do": what, **words}).encode(), 120))

    def say(self, silo: str, topic: str, **words: object):
        return self.do("say", silo=silo, topic=topic, **words)

    def offer(self, silo: str, folder: Path, **meta: object):
        """Give a node a job, and start it if the node took it."""
        job = str(uuid.uuid4())
        description = {"name": "x", "job_id": job, "resource_spec": {}, "submitter_role": "lead", **meta}
        headers = {
            RequestHeader.JOB_ID: job,
            RequestHeader.JOB_META: {"submitter_name": "a", "submitter_org": "b", **description},
            RequestHeader.APP_NAME: SILO_APP,
        }
        content = base64.b64encode(zipped(folder)).decode()
        given = self.say(silo, TrainingTopic.DEPLOY, bytes=content, headers=headers)
        if "deployed" in given["body"]:
            self.say(silo, TrainingTopic.START_JOB, body={}, headers=headers)
        return given["body"], self.parties.kits[silo] / job / "log.txt"


def zipped(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    liar = Liar(tmp_path_factory.mktemp("liar"))
    try:
        liar.start()
        yield liar
    finally:
        liar.parties.end()


@pytest.fixture
def sign(liar):
    """A function that signs a job as the coordinator does, or in another role."""
    authority = liar.parties.folder / "kits" / "authority"

    def signed(folder: Path, role: str = "lead") -> Path:
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        root = load_pem_private_key((authority / "rootCA.key").read_bytes(), None)
        key, public = generate_keys()
        issuer = Identity(
            load_crt(str(authority / "rootCA.pem")).subject.rfc4514_string().removeprefix("CN=")
        )
        certificate = generate_cert(Identity("x@y.coterie", "coterie", role), issuer, root, public)
        path = folder.with_suffix(".crt")
        path.write_bytes(serialize_cert(certificate))
        sign_folders(str(folder), key, str(path))
        return folder

    return signed


@pytest.fixture
def job(tmp_path):
    """A function that writes a job from a client configuration and further files."""

    def written(executor: object = None, **files: str) -> Path:
        folder = tmp_path / "job"
        config = json.loads(silo_files()["config/config_fed_client.json"])
        if executor is not None:
            config["executors"][0]["executor"] = executor
        (folder / "config").mkdir(parents=True)
        (folder / "config" / "config_fed_client.json").write_text(json.dumps(config))
        for name, content in files.items():
            (folder / "custom").mkdir(exist_ok=True)
            (folder / "custom" / f"{name}.py").write_text(content)
        return folder

    return written


def test_shell_commands_read_nothing(liar):
    for silo, works in ((PLAIN, True), (GATED, False)):
        key = liar.parties.kits[silo] / "startup" / "client.key"
        for command in (f"cat {key}", f"grep KEY {key}", f"head {key}"):
            said = liar.say(silo, SysCommandTopic.SHELL, body=command)
            assert ("PRIVATE KEY" in said["body"]) == works, said
    assert said["body"] == "invalid_request"


@pytest.mark.parametrize(
    "topic",
    [
        "sys.info",
        "sys.report_env",
        "sys.configure_site_log",
        "train.shutdown",
        "train.restart",
        "train.delete_run",
    ],
)
def test_other_commands_are_unknown_to_a_node(liar, topic):
    assert (
        liar.say(GATED, topic, body="", headers={RequestHeader.JOB_ID: "local"})["body"] == "invalid_request"
    )


@pytest.mark.parametrize("topic", ["config_vars", "process_info", "peers"])
def test_a_nodes_cell_is_managed_by_nobody(liar, topic):
    assert liar.do("manage", silo=PLAIN, topic=topic)["code"] == "ok"
    assert liar.do("manage", silo=GATED, topic=topic)["code"] != "ok"


def test_a_node_is_not_sent_to_another_address(liar):
    liar.do("manage", silo=GATED, topic="change_root", body="tcp://localhost:1")
    assert liar.say(GATED, TrainingTopic.CHECK_STATUS)["code"] == "ok"


def test_a_job_named_like_a_folder_deletes_nothing(liar, job, sign, tmp_path):
    files = sign(job())
    victim = shutil.copytree(liar.parties.kits[PLAIN], tmp_path / "before")
    for silo, works in ((GATED, False), (PLAIN, True)):
        headers = {
            RequestHeader.JOB_ID: "local",
            RequestHeader.JOB_META: {"job_id": "local"},
            "app_name": SILO_APP,
        }
        content = base64.b64encode(zipped(files)).decode()
        said = liar.say(silo, TrainingTopic.DEPLOY, bytes=content, headers=headers)
        assert (liar.parties.kits[silo] / "local" / "resources.json").exists() != works, said
    shutil.rmtree(liar.parties.kits[PLAIN] / "local")
    shutil.copytree(victim / "local", liar.parties.kits[PLAIN] / "local")


def test_code_in_a_job_is_refused(liar, job, sign, tmp_path):
    mark = tmp_path / "ran"
    files = sign(job({"path": "evil.Evil", "args": {}}, evil=f"open({str(mark)!r}, 'w').close()"))
    said, _ = liar.offer(GATED, files)
    assert "refused: the job brings 'custom/" in said
    said, _ = liar.offer(PLAIN, files)
    assert "BYOC not permitted" in said
    assert not mark.exists()


def test_code_signed_in_the_role_super_is_refused_too(liar, job, sign, tmp_path):
    """NVFlare allows everything to that role, and whoever holds the root key can give it away."""
    code = (
        "from nvflare.apis.executor import Executor\nclass Evil(Executor):\n    def execute(self, *a): pass\n"
    )
    for silo, works in ((GATED, False), (PLAIN, True)):
        mark = tmp_path / f"ran-{silo}"
        files = job({"path": "evil.Evil", "args": {}}, evil=f"{code}open({str(mark)!r}, 'w').close()")
        sign(files, "super")
        if works:
            assert offered_until(
                liar, silo, files, lambda log, mark=mark: mark.exists(), submitter_role="super"
            )
        else:
            said, _ = liar.offer(silo, files, submitter_role="super")
            assert said.startswith("refused: ")
            assert not mark.exists()
        shutil.rmtree(files)


@pytest.mark.parametrize(
    "executor",
    [
        {
            "path": "nvflare.app_common.executors.statistics.statistics_executor.StatisticsExecutor",
            "args": {},
        },
        {"path": "subprocess.Popen", "args": {"args": ["touch", "MARK"]}},
        {"path": EXECUTOR, "args": {"x": {"path": "subprocess.Popen", "args": {"args": ["touch", "MARK"]}}}},
    ],
    ids=["installed", "popen", "nested"],
)
def test_a_class_that_is_not_listed_is_refused(liar, job, sign, executor, tmp_path):
    mark = tmp_path / "ran"
    files = sign(job(json.loads(json.dumps(executor).replace("MARK", str(mark)))))
    said, _ = liar.offer(GATED, files)
    assert "is not Coterie's" in said
    words = "is not in allow_list"
    assert offered_until(liar, PLAIN, files, lambda log: log.exists() and words in log.read_text())
    assert not mark.exists()


def test_an_unsigned_job_is_refused(liar, job):
    files = job()
    assert "refused: " in liar.offer(GATED, files)[0]
    assert "unsigned job rejected" in liar.offer(PLAIN, files)[0]


def memory(silo: str, liar: Liar) -> int:
    """Return the most bytes that a node's process has ever held."""
    status = Path(f"/proc/{liar.parties.running[silo].pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.parametrize("encoding", ["", "bytes"])
def test_an_announced_message_of_two_gigabytes_takes_no_memory(liar, encoding):
    before = memory(GATED, liar)
    said = liar.do("flood", silo=GATED, announced=2**31, length=2**31, encoding=encoding)
    assert "exceeds configured limit" in said.get("error", ""), said
    assert memory(GATED, liar) < before + 100_000_000
    assert psutil.pid_exists(liar.parties.running[GATED].pid)


def test_a_message_that_announces_less_than_it_brings_is_cut_off(liar):
    before = memory(GATED, liar)
    said = liar.do("flood", silo=GATED, announced=0, length=2**30, encoding="")
    assert "error" in said, said
    assert memory(GATED, liar) < before + 200_000_000


def test_a_single_frame_of_a_gigabyte_is_not_taken(liar):
    before = memory(GATED, liar)
    said = liar.do("frame", silo=GATED, length=2**30)
    assert said.get("code") != "ok", said
    assert memory(GATED, liar) < before + 100_000_000
    wait_for(lambda: liar.say(GATED, TrainingTopic.CHECK_STATUS)["code"] == "ok", 90, "the node's return")


def reached(port: int, root: Path, *own: Path) -> bool:
    """Return whether the server talks to somebody with this certificate, or with none."""
    context = ssl.create_default_context(cafile=str(root))
    context.set_alpn_protocols(["h2"])
    if own:
        context.load_cert_chain(*map(str, own))
    try:
        with (
            socket.create_connection(("localhost", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            return bool(secure.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False


def test_strangers_are_not_let_in(tmp_path):
    """No certificate, one of another federation, and another silo's under one's own name."""
    parties = Parties(tmp_path / "ours")
    others = Parties(tmp_path / "theirs")
    startup = {silo: parties.kits[silo] / "startup" for silo in ("north", "south", "west")}
    for name in ("rootCA.pem", "client.crt", "client.key"):
        shutil.copy(others.kits["north"] / "startup" / name, startup["north"] / name)
    for name in ("client.crt", "client.key"):
        shutil.copy(startup["south"] / name, startup["west"] / name)
    try:
        parties.start_server()
        wait_for(lambda: "Server started" in parties.said("server"), 60, "the server's start")
        root, south, foreign = startup["south"] / "rootCA.pem", startup["south"], startup["north"]
        assert reached(parties.record.port, root, south / "client.crt", south / "client.key")
        assert not reached(parties.record.port, root)
        assert not reached(parties.record.port, root, foreign / "client.crt", foreign / "client.key")
        for silo in ("north", "south", "west"):
            parties.start_plain_node(silo)
        wait_for(lambda: "New client south@" in parties.said("server"), 60, "south's registration")
        wait_for(lambda: "west" in parties.said("server"), 60, "west's attempt")
        with parties.transport(patience=20) as transport:
            present = set(transport._desk.nodes())
        assert present == {"south"}
        assert "New client north@" not in parties.said("server")
        assert "New client west@" not in parties.said("server")
    finally:
        parties.end()
