"""What a node and a server listen on for their own job processes is closed to other users of the machine."""

from __future__ import annotations

import socket
import ssl

import psutil
import pytest

pytest.importorskip("nvflare")

from coterie.network.nvflare.settings import SERVER, SILO, credentials_of

from .nvflare_parties import SILOS, Parties, wait_for

QUIET = 1.0  # seconds in which a listener that refuses somebody closes the connection


@pytest.fixture(scope="module")
def parties(tmp_path_factory):
    parties = Parties(tmp_path_factory.mktemp("loopback"))
    try:
        parties.start_all()
        with parties.transport() as transport:
            assert set(transport.exchange(dict.fromkeys(SILOS, b"hello"), 60)) == set(SILOS)
            yield parties
    finally:
        parties.end()


def internal_ports(parties, name):
    """The ports on which a process listens, without the one that silos connect to."""
    found = psutil.Process(parties.running[name].pid).net_connections("tcp")
    listening = [each.laddr for each in found if each.status == psutil.CONN_LISTEN]
    inside = [place for place in listening if place.port != parties.record.port]
    assert {place.ip for place in inside} <= {"127.0.0.1"}
    return [place.port for place in inside]


def as_stranger():
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def as_party(parties, silo="north"):
    context = as_stranger()
    _, certificate, key = (parties.kits[silo] / path for path in credentials_of(SILO))
    context.load_cert_chain(certificate, key)
    return context


def is_let_in(port, context):
    """Return whether a listener keeps a connection open after it has seen who connects."""
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        try:
            with context.wrap_socket(plain) as connection:
                connection.settimeout(QUIET)
                return connection.recv(1) != b""
        except TimeoutError:
            return True
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.mark.parametrize("name", ["north", SERVER])
def test_only_holders_of_a_certificate_are_let_in(parties, name):
    ports = internal_ports(parties, name)
    assert len(ports) == 1
    assert is_let_in(ports[0], as_party(parties))
    assert not is_let_in(ports[0], as_stranger())


@pytest.mark.parametrize("name", ["north", SERVER])
def test_nobody_is_heard_without_encryption(parties, name):
    (port,) = internal_ports(parties, name)
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(bytes(64))  # NVFlare's frames begin with their length
        connection.settimeout(30)
        try:
            while connection.recv(4096):  # the alert of TLS, then the end
                pass
        except ConnectionError:
            pass


def test_a_certificate_of_another_federation_is_refused(parties, tmp_path):
    others = Parties(tmp_path, federation="elsewhere")
    (port,) = internal_ports(parties, "north")
    assert not is_let_in(port, as_party(others))


def test_a_job_process_listens_nowhere(parties):
    node = psutil.Process(parties.running["north"].pid)
    wait_for(lambda: len(node.children(recursive=True)) > 0, 30, "a job process")
    for child in node.children(recursive=True):
        assert not [each for each in child.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
