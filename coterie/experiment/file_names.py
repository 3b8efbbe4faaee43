"""File names for what people name: methods with their settings, and silos."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

MOST_CHARACTERS, MOST_BYTES = 80, 160  # of a name; file systems allow 255 bytes with the ending


def file_names(names: Sequence[str]) -> list[str]:
    """Return a distinct, harmless file name for each name.

    Names are told apart even where letters are not told from capitals. One that is too long is cut and ends
    with a digest of the whole, so that it is the same whatever other names there are.

    >>> file_names(["mr-mtl lam=1", "mr-mtl-lam=1"])
    ['mr-mtl-lam-1', 'mr-mtl-lam-1~2']
    """
    seen: dict[str, int] = {}
    made = []
    for name in names:
        safe = _harmless(name)
        seen[safe.lower()] = seen.get(safe.lower(), 0) + 1
        made.append(safe if seen[safe.lower()] == 1 else f"{safe}~{seen[safe.lower()]}")
    return made


def _harmless(name: str) -> str:
    """Return a name without anything that a file system or a shell would take in another way."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).lstrip(".") or "_"
    short = safe[:MOST_CHARACTERS].encode()[:MOST_BYTES].decode(errors="ignore")
    if short == safe:
        return safe
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{short}-{digest}"
