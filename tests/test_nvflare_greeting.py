"""What a node or a coordinator says of a server before NVFlare looks at it."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading

import pytest

pytest.importorskip("nvflare", reason="needs the extra 'nvflare'")

import contextlib

from coterie.network.nvflare.greeting import Away, Stranger, greet
from coterie.network.nvflare.kit import Record, make_kits, read_party


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kits")
    return {
        name: make_kits(Record(name, "localhost", 8002, ("north",)), folder / name)
        for name in ("clinics", "schools")
    }


class Answering:
    """A listener that treats its first connection in some way; it takes the kit's port."""

    def __init__(self, treat) -> None:
        self.listener = socket.create_server(("localhost", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._run, args=(treat,))
        self.thread.start()

    def _run(self, treat) -> None:
        connection, _ = self.listener.accept()
        with connection:
            treat(connection)

    def end(self) -> None:
        self.thread.join(10)
        self.listener.close()


def as_server(kit):
    """Answer with the certificate of a server's kit, to those who come with one of the same federation."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit / "startup" / "server.crt", kit / "startup" / "server.key")
    context.load_verify_locations(kit / "startup" / "rootCA.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def treat(connection) -> None:
        with contextlib.suppress(OSError):
            context.wrap_socket(connection, server_side=True).close()

    return treat


def moved(kit, port, folder):
    """A copy of a kit whose server is at another port; only its record matters here."""
    copy = shutil.copytree(kit, folder / kit.name)
    record = copy / "coterie.json"
    record.write_text(record.read_text().replace("8002", str(port)))
    return copy


def greeted(kit, treat, folder) -> None:
    answering = Answering(treat)
    try:
        copy = moved(kit, answering.port, folder)
        greet(read_party(copy), copy, 5.0)
    finally:
        answering.end()


@pytest.mark.parametrize("party", ["north", "coordinator"])
def test_the_own_server_is_greeted_in_silence(kits, tmp_path, party):
    greeted(kits["clinics"][party], as_server(kits["clinics"]["server"]), tmp_path)


def test_the_server_of_another_federation_is_named(kits, tmp_path):
    with pytest.raises(Stranger, match=r"belongs to another federation than this kit's \('clinics'\)"):
        greeted(kits["clinics"]["north"], as_server(kits["schools"]["server"]), tmp_path)


def test_something_else_at_the_port_is_named(kits, tmp_path):
    with pytest.raises(Stranger, match=r"what answers at localhost:\d+ is no server of a federation"):
        greeted(kits["clinics"]["north"], lambda connection: connection.sendall(b"SSH-2.0-x\r\n"), tmp_path)


def test_a_port_without_a_server_and_an_unknown_host_are_named(kits, tmp_path):
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    kit = moved(kits["clinics"]["north"], port, tmp_path)
    with pytest.raises(Away, match=rf"nothing listens at localhost:{port}: is `coterie server` running"):
        greet(read_party(kit), kit)
    record = kit / "coterie.json"
    record.write_text(record.read_text().replace("localhost", "nowhere.invalid"))
    with pytest.raises(Away, match=r"this machine does not know the address of the server's host 'nowhere"):
        greet(read_party(kit), kit)
