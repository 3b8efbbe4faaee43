"""Look at a server before NVFlare does: its own words for what is wrong are long, and mostly missing."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from ...errors import Problem, reason
from .settings import Party, credentials_of

PROMPT = 5.0  # seconds in which a server must answer
TOO_OLD, TOO_NEW = 10, 9  # OpenSSL's codes for certificates out of their time


class Away(Problem):
    """The server cannot be reached now; it may be later."""


class Stranger(Away):
    """Something answers, but it is not the server of this federation."""


def greet(party: Party, kit: Path, seconds: float = PROMPT) -> None:
    """Raise `Away`, with what to do, unless the server of a kit's federation answers where the kit says."""
    where = f"{party.host}:{party.port}"
    root, own, key = credentials_of(party.kind)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = (
        False  # NVFlare's servers all have one name; the root certificate tells them apart
    )
    context.load_verify_locations(kit / root)
    context.load_cert_chain(kit / own, kit / key)
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((party.host, party.port), seconds) as plain:
            try:
                context.wrap_socket(plain).close()
            except ssl.SSLCertVerificationError as error:
                raise Stranger(f"the server at {where} {_blamed(error, party)}") from error
            except OSError as error:  # no TLS, or silence
                raise Stranger(f"what answers at {where} is no server of a federation") from error
    except ConnectionRefusedError as error:
        raise Away(f"nothing listens at {where}: is `coterie server` running there?") from error
    except socket.gaierror as error:
        raise Away(f"this machine does not know the address of the server's host '{party.host}'") from error
    except TimeoutError as error:
        raise Away(f"no answer from {where}: does a firewall close this port?") from error
    except OSError as error:
        raise Away(f"the server at {where} cannot be reached: {reason(error)}") from error


def _blamed(error: ssl.SSLCertVerificationError, party: Party) -> str:
    """Return what is wrong with a server's certificate."""
    if error.verify_code == TOO_OLD:
        return "has a certificate that has expired: its kit must be made anew"
    if error.verify_code == TOO_NEW:
        return "has a certificate that is not valid yet: is the clock of this machine right?"
    return f"belongs to another federation than this kit's ('{party.federation}'), or to an older authority"
