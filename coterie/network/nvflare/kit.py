"""Kits: one folder per party, with its certificate and settings that allow no more than Coterie needs.

`make_kits` is for whoever organises the federation. `check_kit` is for everyone: it says all that is wrong
with a folder, and nothing starts from a folder with a problem.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import Problem, reason, shown
from .certificates import (
    certificate_problems,
    common_name,
    fingerprint,
    issue,
    root_of,
    write_private,
)
from .job import as_text
from .settings import COORDINATOR, SERVER, SILO, Party, credentials_of, files_for

RECORD, RESOURCES = "coterie.json", "local/resources.json"
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,38}[A-Za-z0-9])?")
HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
)
RESERVED = {"server", "coordinator", "authority"}


@dataclass(frozen=True)
class Record:
    """Who takes part, where the coordinator is reached, and how many days certificates last."""

    federation: str
    host: str
    port: int
    silos: tuple[str, ...]
    organisation: str = "coterie"
    days: int = 360

    def __post_init__(self) -> None:
        """Raise `Problem` with everything that is wrong."""
        if problems := list(_record_problems(self)):
            raise Problem("; ".join(problems))


def _record_problems(record: Record) -> Iterator[str]:
    for what, name in [("federation", record.federation), *(("silo", silo) for silo in record.silos)]:
        if not NAME.fullmatch(name):
            yield f"{what} '{name}': a name has 1 to 40 letters, digits, '-' and '_', the outer ones no signs"
    for silo in RESERVED & set(record.silos):
        yield f"silo '{silo}': that name is taken by a part of the deployment"
    if not record.silos or len(set(record.silos)) < len(record.silos):
        yield "silos: name at least one, and none twice"
    if not HOST.fullmatch(record.host):
        yield f"host: expected a name or an IPv4 address, got {shown(record.host)}"
    if not 0 < record.port < 2**16:
        yield f"port: expected 1 to 65535, got {shown(record.port)}"
    if not re.fullmatch(r"\w+", record.organisation, re.ASCII):
        yield f"organisation '{record.organisation}': use letters, digits and '_'"
    if not 0 < record.days <= 360:
        yield f"days: expected 1 to 360, got {shown(record.days)}"


def record_from(content: Mapping[str, Any]) -> Record:
    """Return the record that a TOML file describes; raise `Problem` with everything that is wrong with it."""
    fields = {each.name: each for each in dataclasses.fields(Record)}
    problems = [f"'{name}': there is no such key" for name in content if name not in fields]
    for name, field in fields.items():
        if name not in content:
            if field.default is dataclasses.MISSING:
                problems.append(f"'{name}' is missing")
        elif name == "silos":
            silos = content[name]
            if not isinstance(silos, list) or not all(isinstance(silo, str) for silo in silos):
                problems.append(f'silos: expected a list of names such as ["north"], got {shown(silos)}')
        elif type(content[name]) is not (kind := int if name in ("port", "days") else str):
            what = "a whole number" if kind is int else "text"
            problems.append(f"{name}: expected {what}, got {shown(content[name])}")
    if problems:
        raise Problem("; ".join(problems))
    return Record(**{**content, "silos": tuple(content["silos"])})


def make_kits(record: Record, folder: Path) -> dict[str, Path]:
    """Make a kit for every party that has none in the folder yet, and return all kits by name.

    The folder `authority` holds the root key that signs certificates. Keep it, and keep it secret: with it, a
    second call with one more silo makes a kit for that silo and leaves the others as they are. The kits of
    `server` and `coordinator` name all silos, so delete these two folders before such a call. A kit that does
    not fit the record is refused.
    """
    authority = folder / "authority"
    root = fingerprint(root_of(authority, record.federation, record.days))
    parties = [_party(record, SERVER, "server", root), _party(record, COORDINATOR, "coordinator", root)]
    parties += [_party(record, SILO, silo, root) for silo in record.silos]
    kits = {party.name: folder / party.name for party in parties}
    missing = [party for party in parties if not kits[party.name].exists()]
    if stale := [party.name for party in parties if party not in missing and _is_stale(party, kits)]:
        folders = " and ".join(f"'{kits[name]}'" for name in stale)
        raise Problem(
            f"{folders}: made from another federation.toml. To make them anew, delete them and repeat"
            f" this; for another federation, choose another folder than '{folder}'"
        )
    issued = issue(authority, record.days, missing)
    for party in missing:
        _write(party, kits[party.name], (authority / "rootCA.pem").read_bytes(), *issued[common_name(party)])
    return kits


def _is_stale(party: Party, kits: dict[str, Path]) -> bool:
    """Return whether the kit that is there says something else than a new one would."""
    return dataclasses.replace(read_party(kits[party.name]), authority=party.authority) != party


def _party(record: Record, kind: str, name: str, authority: str) -> Party:
    silos = record.silos if kind != SILO else ()
    return Party(
        record.federation, kind, name, record.host, record.port, record.organisation, authority, silos
    )


def _write(party: Party, kit: Path, root: bytes, certificate: bytes, key: bytes) -> None:
    kit.mkdir(mode=0o700)
    for name in ("startup", "local"):
        (kit / name).mkdir(mode=0o700)
    (kit / RECORD).write_text(as_text(dataclasses.asdict(party)))
    root_path, own_path, key_path = credentials_of(party.kind)
    (kit / root_path).write_bytes(root)
    (kit / own_path).write_bytes(certificate)
    write_private(kit / key_path, key)
    for name, content in files_for(party, kit.resolve()).items():
        (kit / name).write_text(as_text(content))


def follow_move(kit: Path) -> None:
    """Let a server's settings, which name the folder of their kit, name the folder where it is now."""
    path, party = kit / RESOURCES, read_party(kit)
    if party.kind != SERVER or not path.is_file():
        return
    found = path.read_text()
    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
        before = Path(json.loads(found)["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"]).parent
        if found == as_text(files_for(party, before)[RESOURCES]):
            path.write_text(as_text(files_for(party, kit.resolve())[RESOURCES]))


def read_party(kit: Path) -> Party:
    """Return whose kit a folder is; raise `Problem` if it is none."""
    try:
        record = json.loads((kit / RECORD).read_text())
        return Party(**{**record, "silos": tuple(record["silos"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        why = reason(error) if isinstance(error, OSError) else "it is not what Coterie wrote"
        inside = sorted(path.parent.name for path in kit.glob(f"*/{RECORD}"))
        hint = f"; name one of the kits in it: {', '.join(inside)}" if inside else ""
        raise Problem(f"'{kit}' is no kit: {RECORD}: {why}{hint}") from error


def check_kit(kit: Path, federation: str | None = None, kind: str | None = None) -> list[str]:
    """Return all that is wrong with a kit; an empty list if it may be used."""
    try:
        party = read_party(kit)
    except Problem as problem:
        return [str(problem)]
    problems = []
    if federation is not None and party.federation != federation:
        problems.append(f"{RECORD}: the kit is for the federation '{party.federation}', not '{federation}'")
    if kind is not None and party.kind != kind:
        problems.append(f"{RECORD}: this is the kit of a {party.kind}, not of a {kind}")
    problems += certificate_problems(party, kit)
    problems += _file_problems(party, kit)
    problems += _permission_problems(party, kit)
    return problems


def _file_problems(party: Party, kit: Path) -> Iterator[str]:
    """Yield files that are missing, differ from what they must be, or do not belong there."""
    expected = files_for(party, kit.resolve())
    known = {*expected, *credentials_of(party.kind)}
    for folder in ("startup", "local"):
        for path in sorted((kit / folder).rglob("*")):
            name = path.relative_to(kit).as_posix()
            if name not in known:
                yield f"{name}: it is not part of a kit, so remove it"
    for name, content in expected.items():
        try:
            found = json.loads((kit / name).read_text())
        except (OSError, ValueError) as error:
            yield f"{name}: {reason(error) if isinstance(error, OSError) else 'it is no JSON'}"
            continue
        yield from (
            f"{name}: {difference}" for difference in _differences(json.loads(as_text(content)), found)
        )


def _differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yield where a setting differs from what it must be."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            place = f"{where}.{key}" if where else str(key)
            if key not in found:
                yield f"'{place}' is missing, it must be {shown(expected[key])}"
            elif key not in expected:
                yield f"'{place}' does not belong there"
            else:
                yield from _differences(expected[key], found[key], place)
    elif type(expected) is not type(found) or expected != found:
        yield f"'{where}' is {shown(found)}, it must be {shown(expected)}"


def _permission_problems(party: Party, kit: Path) -> Iterator[str]:
    """Yield files that others can read or change although they must not."""
    key = credentials_of(party.kind)[2]
    if (kit / key).exists() and (mode := stat.S_IMODE((kit / key).stat().st_mode)) & 0o077:
        yield f"{key}: others can read the private key (mode {mode:o}), so run: chmod 600 {key}"
    for name in (".", "startup", "local", RECORD, *files_for(party, kit), *credentials_of(party.kind)):
        path = kit / name
        if not path.exists() or name == key:
            continue
        state = path.lstat()
        if stat.S_ISLNK(state.st_mode):
            yield f"{name}: it is a link, and a kit holds only files"
        elif state.st_mode & 0o022:
            yield f"{name}: others can change it (mode {stat.S_IMODE(state.st_mode):o})"
        elif state.st_uid not in (os.getuid(), 0):
            yield f"{name}: it belongs to another user"
