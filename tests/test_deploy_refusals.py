"""What goes wrong around a deployment is said in one sentence, with exit code 2."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from coterie.deploy.guard import Guard
from coterie.deploy.guard_folder import GuardFolder
from coterie.deploy.process import _locked
from coterie.network.nvflare.kit import Record, make_kits
from coterie.privacy.keys import _write_key
from tests.federations import Small, config_of, digits
from tests.helpers import call
from tests.nvflare_parties import free_port
from tests.test_guard import ask, begin, first_broadcast, reserved


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits")
    return make_kits(Record("clinics", "localhost", free_port(), ("north",)), folder / "kits")


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Small:
    made = Small(tmp_path_factory.mktemp("small"), config_of(), digits(3, 90), seconds=1.0)
    made.plan.save(made.folder / "plan.json")
    _write_key(made.folder / "coordinator.key", made.key, None)
    return made


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command: exit code, standard output, standard error."""
    return lambda *words: call(monkeypatch, capsys, *words, columns=1000)


@pytest.fixture
def refused(command):
    """Run a command that is refused: the one sentence that it says."""

    def run(*words: object) -> str:
        code, out, err = command(*words)
        assert code == 2, (code, out, err)
        assert len(err.strip().splitlines()) == 1, err
        return " ".join(err.split())

    return run


def reissued(kits: dict[str, Path], kit: Path, first: datetime, last: datetime) -> None:
    """Give a kit a certificate of its own federation for another time."""
    authority = kits["server"].parent / "authority"
    root = x509.load_pem_x509_certificate((authority / "rootCA.pem").read_bytes())
    key = serialization.load_pem_private_key((authority / "rootCA.key").read_bytes(), password=None)
    own = x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
    made = x509.CertificateBuilder(root.subject, own.subject, own.public_key(), x509.random_serial_number())
    made = made.not_valid_before(first).not_valid_after(last)
    (kit / "startup" / "client.crt").write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [(-9, -2, "it expired on"), (1, 9, "is valid from"), (1, 9, "is the clock of this machine right?")],
)
def test_a_certificate_out_of_its_time_is_named(refused, kits, tmp_path, first, last, words):
    kit = shutil.copytree(kits["north"], tmp_path / "north")
    now = datetime.now(UTC)
    reissued(kits, kit, now + timedelta(days=first), now + timedelta(days=last))
    said = refused("node", kit, "--guard", tmp_path / "guard.sock", "--as-root")
    assert f"the kit '{kit}' cannot be used: startup/client.crt: " in said
    assert words in said


def test_a_kit_of_another_federation_is_named(refused, command, kits, tmp_path):
    others = make_kits(Record("schools", "localhost", free_port(), ("north",)), tmp_path / "others")
    kit = shutil.copytree(kits["north"], tmp_path / "north")
    shutil.copy(others["north"] / "startup" / "rootCA.pem", kit / "startup" / "rootCA.pem")
    said = refused("node", kit, "--guard", tmp_path / "guard.sock", "--as-root")
    assert "it is the certificate of another federation than 'clinics'" in said
    code, out, _ = command("kit", "check", str(others["north"]), "--federation", "clinics")
    assert (code, out.strip()) == (
        2, "coterie.json: the kit is for the federation 'schools', not 'clinics'"
    )  # fmt: skip


def test_a_coordinators_kit_that_does_not_know_the_plans_silos_is_named(refused, kits, small):
    said = refused(*coordinate(small, "x"), "--kit", kits["coordinator"])
    assert "knows no silo silo-0 and silo-1 and silo-2: make a new kit" in said


def test_a_port_that_is_taken_is_named(refused, kits):
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        folder = kits["server"].parent.parent / f"taken-{other.getsockname()[1]}"
        taken = make_kits(Record("clinics", "localhost", other.getsockname()[1], ("north",)), folder)
        said = refused("server", taken["server"], "--as-root")
    assert f"cannot listen on port {other_port(taken)}: address already in use" in said


def other_port(kits: dict[str, Path]) -> int:
    from coterie.network.nvflare.kit import read_party

    return read_party(kits["server"]).port


def coordinate(small: Small, name: str) -> list[object]:
    key, plan = small.folder / "coordinator.key", small.folder / "plan.json"
    return ["coordinate", plan, "--folder", small.folder / name, "--key", key]


def test_silos_that_never_answer_are_named_after_the_plans_time(command, small):
    sockets = [
        word for name in small.federation.names for word in ("--socket", f"{name}={small.folder / name}.sock")
    ]
    code, told, said = command(*coordinate(small, "alone"), *sockets)
    assert code == 2
    assert "0 of 3 silos accepted the plan, and it needs 3; silo-0: nobody answers at '" in said
    assert f"waiting for 'silo-1': nobody answers at '{small.folder / 'silo-1'}.sock': No such file" in told


def test_a_server_that_never_comes_is_named_after_the_stated_time(command, tmp_path, small):
    record = Record("clinics", "localhost", free_port(), small.federation.names)
    kit = make_kits(record, tmp_path / "kits")["coordinator"]
    code, told, said = command(*coordinate(small, "nobody"), "--kit", kit, "--patience", 1)
    assert code == 2
    assert (
        f"no job could be started within 1 s: nothing listens at localhost:{record.port}: is `coterie" in said
    )
    assert f"waiting up to 1 s: nothing listens at localhost:{record.port}" in told


def test_two_guards_do_not_share_a_folder(refused, small):
    lock = _locked(small.folder / "silo-0" / "lock")
    try:
        said = refused("guard", "run", small.folder / "silo-0")
    finally:
        os.close(lock)
    assert f"another guard runs in '{small.folder / 'silo-0'}': two may not share a ledger" in said


@pytest.mark.parametrize("what", ["approve", "coordinate"])
def test_a_plan_of_another_version_is_named(refused, small, tmp_path, what):
    text = (small.folder / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"software": "', '"software": "9.'))
    words = {"approve": ["guard", "approve", small.folder / "silo-0", tmp_path / "plan.json"]}
    words["coordinate"] = [*coordinate(small, "other"), "--socket", "silo-0=x"]
    words["coordinate"][1] = tmp_path / "plan.json"
    said = refused(*words[what])
    assert "the plan was made by Coterie 9." in said
    assert "all parties need the same version" in said


@contextmanager
def small_disk(folder: Path, kilobytes: int):
    """A disk of a few kilobytes at a folder."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill a disk to the last byte, and return the file that does."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 512):
                pass
        except OSError:
            return ballast


@pytest.mark.deploy
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
class TestFullDisk:
    """On disks that are full: nothing leaves a guard, and it answers when there is room again."""

    def test_a_guard_on_a_full_disk_releases_nothing_and_recovers(self, tmp_path, small, capfd):
        with small_disk(tmp_path / "disk", 3000) as disk:
            shutil.copytree(small.folder / "silo-0", disk / "silo-0")
            guard = Guard(GuardFolder(disk / "silo-0"))
            begin(small, guard)
            ballast = fill(disk)
            answer = ask(small, guard, "round", 0, first_broadcast(small))
            assert answer.kind in ("refused", "failed")
            assert not answer.body
            said = capfd.readouterr().err + (disk / "silo-0" / "log.txt").read_text()
            assert "full" in said or "no space left" in said
            ballast.unlink()
            assert ask(small, guard, "round", 0, first_broadcast(small)).kind == "upload"
            assert reserved(guard) == 1
            guard.close()

    def test_a_full_disk_is_named_where_a_guard_is_made_or_started(self, refused, command, tmp_path, small):
        rows = "\n".join(f"{k % 50},{k % 7},{k % 2}" for k in range(200))
        (tmp_path / "records.csv").write_text(f"a,b,y\n{rows}\n")
        key = small.folder / "silo-0" / "coordinator.pub"
        words = [
            "--data",
            tmp_path / "records.csv",
            "--silo",
            "n",
            "--target",
            "y",
            "--coordinator",
            key,
            "--epsilon",
            8,
        ]
        with small_disk(tmp_path / "disk", 200) as disk:
            ballast = fill(disk)
            said = refused("guard", "init", disk / "n", *words)
            assert "no space left on device" in said
            ballast.unlink()
            shutil.rmtree(disk / "n", ignore_errors=True)
            assert command("guard", "init", disk / "n", *words)[0] == 0
            fill(disk)
            said = refused("guard", "run", disk / "n")
            assert any(words in said for words in ("disk is full", "no space left", "Free some space")), said

    def test_a_coordinator_on_a_full_disk_stops_with_a_sentence(self, refused, tmp_path, small):
        with small_disk(tmp_path / "disk", 100) as disk:
            (disk / "training").mkdir()
            fill(disk)
            words = coordinate(small, "y")
            words[3] = disk / "training"
            said = refused(*words, "--socket", f"silo-0={tmp_path}/x")
            assert "no space left on device" in said
