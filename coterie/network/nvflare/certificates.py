"""Certificates of a federation: made by NVFlare's provisioning, checked here without it."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from ...errors import Problem, first_line, reason
from ...privacy.keys import now
from .settings import COORDINATOR, IDENTITY, ROLE, SERVER, SILO, Party, administrator, credentials_of

ROOT_CERTIFICATE, ROOT_KEY = "rootCA.pem", "rootCA.key"


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 fingerprint of a certificate."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def common_name(party: Party) -> str:
    """Return the name that a party's certificate carries."""
    return {SERVER: IDENTITY, COORDINATOR: administrator(party.federation)}.get(party.kind, party.name)


def root_of(authority: Path, federation: str, days: int) -> x509.Certificate:
    """Return the federation's root certificate; make it, with its key, if the folder does not exist yet."""
    if not authority.exists():
        state = _provision(federation, days, [], None)
        authority.mkdir(mode=0o700, parents=True)
        write_private(authority / ROOT_KEY, state["root_pri_key"].encode())
        (authority / ROOT_CERTIFICATE).write_text(state["root_cert"])
    return x509.load_pem_x509_certificate((authority / ROOT_CERTIFICATE).read_bytes())


def issue(authority: Path, days: int, parties: Sequence[Party]) -> dict[str, tuple[bytes, bytes]]:
    """Return a certificate and a new private key for each party, by the name in the certificate."""
    if not parties:
        return {}
    key = serialization.load_pem_private_key((authority / ROOT_KEY).read_bytes(), password=None)
    root = ((authority / ROOT_CERTIFICATE).read_bytes(), key)
    state = _provision(parties[0].federation, days, parties, root)
    names = [common_name(party) for party in parties]
    return {name: (state[name]["cert"].encode(), state[name]["pri_key"].encode()) for name in names}


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


def _provision(
    federation: str, days: int, parties: Sequence[Party], root: tuple[bytes, Any] | None
) -> dict[str, Any]:
    """Run NVFlare's provisioning in a private folder and return what its certificate builder remembers."""
    from nvflare.lighter.entity import Participant, Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(
        federation, "", serialized_root_cert=root and root[0], root_private_key=root and root[1]
    )
    server = next((party for party in parties if party.kind == SERVER), None)
    organisation = parties[0].organisation if parties else "coterie"
    hosts = {"default_host": server.host, "host_names": ["localhost", "127.0.0.1"]} if server else {}
    project.add_participant(Participant("server", IDENTITY, organisation, hosts))
    for party in parties:
        if party.kind == SILO:
            project.add_client(party.name, organisation, {})
        elif party.kind == COORDINATOR:
            project.add_participant(Participant("admin", common_name(party), organisation, {"role": ROLE}))
    builder = CertBuilder(root_valid_days=days)
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        context = Provisioner(folder, [WorkspaceBuilder(), builder]).provision(project)
    if context.get("build_error"):
        raise Problem(f"NVFlare could not make certificates: {said.getvalue().strip()}")
    content: dict[str, Any] = builder.persistent_state.content
    return content


def certificate_problems(party: Party, kit: Path, at: datetime | None = None) -> Iterator[str]:
    """Yield what is wrong with the certificates and the private key in a kit."""
    root_path, own_path, key_path = credentials_of(party.kind)
    try:
        root = x509.load_pem_x509_certificate((kit / root_path).read_bytes())
        own = x509.load_pem_x509_certificate((kit / own_path).read_bytes())
        key = serialization.load_pem_private_key((kit / key_path).read_bytes(), password=None)
    except OSError as error:
        yield f"{Path(str(error.filename)).relative_to(kit)}: {reason(error)}"
        return
    except (ValueError, TypeError) as error:
        yield f"startup: a certificate or the private key cannot be read: {first_line(error)}"
        return
    if fingerprint(root) != party.authority:
        yield f"{root_path}: it is the certificate of another federation than '{party.federation}'"
    for path, certificate in ((root_path, root), (own_path, own)):
        yield from _time_problems(path, certificate, at or now())
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        yield f"{own_path}: it was not issued by {root_path}"
    names = [str(name.value) for name in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [common_name(party)]:
        yield f"{own_path}: it names {' and '.join(names) or 'nobody'}, not {common_name(party)}"
    if key.public_key() != own.public_key():
        yield f"{key_path}: it is not the key of {own_path}"


def _time_problems(path: str, certificate: x509.Certificate, at: datetime) -> Iterator[str]:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if at < first:
        yield f"{path}: it is valid from {first:%Y-%m-%d %H:%M} UTC on; is the clock of this machine right?"
    if at > last:
        yield f"{path}: it expired on {last:%Y-%m-%d %H:%M} UTC; ask the coordinator for a new kit"
