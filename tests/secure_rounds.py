"""Whole rounds of a secure sum: silos that keep their state as bytes, and a server that may cheat."""

from __future__ import annotations

import functools
import json

import numpy as np

from coterie.privacy.keys import draw_key
from coterie.secure_sum import (
    Member,
    Server,
    Silo,
    State,
    Terms,
    add_uploads,
    begin,
    collect_confirmations,
    confirm,
    mask_upload,
    offer_keys,
    publish_keys,
    recover_sum,
    reveal_shares,
    route_shares,
    share_secrets,
)
from coterie.secure_sum.wire import LENGTH_BYTES, START, pack, unpack

STAGES = 5  # before each of which silos may drop out


@functools.cache
def key_of(name):
    return draw_key(name)


def terms_for(count=5, **facts):
    members = tuple(Member(f"silo-{k}", key_of(f"silo-{k}").public.public) for k in range(count))
    given = {
        "training": "plan",
        "round": 0,
        "size": 6,
        "clip": 1.0,
        "deviation": 0.5,
        "dropouts": 1,
        "colluding": 0,
    }
    return Terms(members=members, **given | facts)


def some_cells(terms, seed=0):
    """Uploads anywhere in their range, for each silo."""
    generator = np.random.default_rng(seed)
    return {
        member.name: generator.integers(-terms.reach, terms.reach, terms.size, endpoint=True)
        for member in terms.members
    }


class Round:
    """One round: `gone` says which silos drop out before each of the five stages."""

    def __init__(self, terms, cells=None, gone=((), (), (), (), ())):
        self.terms, self.gone = terms, gone
        self.silos = {member.name: Silo(terms, member.name, key_of(member.name)) for member in terms.members}
        self.stored = {name: begin(silo).to_bytes() for name, silo in self.silos.items()}
        self.cells = some_cells(terms) if cells is None else cells
        self.server, self.messages, self.answers = Server(terms), {}, {}

    def ask(self, step, name, *message):
        """Ask a silo; its state is read from bytes, and written before the answer leaves."""
        state, answer = step(self.silos[name], State.from_bytes(self.stored[name]), *message)
        self.stored[name] = state.to_bytes()
        return answer

    def here(self, stage):
        """The silos that the server asks at a stage, without those that dropped out."""
        asked = self.server.present or tuple(self.silos)
        lost = {f"silo-{k}" for before in self.gone[: stage + 1] for k in before}
        return [name for name in asked if name not in lost]

    def keys(self):
        self.answers["keys"] = {name: self.ask(offer_keys, name) for name in self.here(0)}
        self.server, self.messages["keys"] = publish_keys(self.server, self.answers["keys"])

    def shares(self):
        message = self.messages["keys"]
        self.answers["shares"] = {name: self.ask(share_secrets, name, message) for name in self.here(1)}
        self.server, self.messages["boxes"] = route_shares(self.server, self.answers["shares"])

    def uploads(self):
        boxes = self.messages["boxes"]
        self.answers["upload"] = {
            name: self.ask(mask_upload, name, boxes[name], self.cells[name]) for name in self.here(2)
        }
        self.server, self.messages["survivors"] = add_uploads(self.server, self.answers["upload"])

    def confirmations(self):
        message = self.messages["survivors"]
        self.answers["confirmations"] = {name: self.ask(confirm, name, message) for name in self.here(3)}
        self.server, self.messages["confirmations"] = collect_confirmations(
            self.server, self.answers["confirmations"]
        )

    def total(self):
        message = self.messages["confirmations"]
        self.answers["unmask"] = {name: self.ask(reveal_shares, name, message) for name in self.here(4)}
        return recover_sum(self.server, self.answers["unmask"])

    def until(self, last):
        """Run the stages up to and including one."""
        for stage in ("keys", "shares", "uploads", "confirmations"):
            getattr(self, stage)()
            if stage == last:
                break
        return self


def parts_of(message):
    """The header of a message as plain data, and the bytes of its rows."""
    begins = len(START) + LENGTH_BYTES
    length = int.from_bytes(message[len(START) : begins], "big")
    return json.loads(message[begins : begins + length]), message[begins + length :]


def message_of(header, rows):
    """A message with any header and rows, as somebody who cheats would write it."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-(len(START) + LENGTH_BYTES + len(text)) % 8)
    return START + len(text).to_bytes(LENGTH_BYTES, "big") + text + rows


def without(terms, kind, silo, message, gone):
    """A message without the rows of some silos."""
    read = unpack(terms, kind, silo, message)
    rows = {place: row.tobytes() for place, row in zip(*read, strict=True) if place not in gone}
    return pack(terms, kind, silo, tuple(rows), *rows.values())


def swapped(terms, kind, silo, message, one, other):
    """A message in which the rows of two silos changed places."""
    read = unpack(terms, kind, silo, message)
    rows = read.rows.copy()
    first, second = read.silos.index(one), read.silos.index(other)
    rows[[first, second]] = rows[[second, first]]
    return pack(terms, kind, silo, read.silos, rows.tobytes())
