"""Both ends of a run inside Flower: batches come by the coordinator's socket, and go to guards' sockets.

Which silo a node belongs to, where its guard listens and what it may take come from the node's own
configuration (`--node-config`), which its owner sets. Nothing of that comes from a run. A node that claims
to be another silo gains nothing: its guard's key signs the answers.
"""

from __future__ import annotations

import socket as sockets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from ...errors import Problem
from ..batches import Answer, Batch, Done, Hello, receive_batch, send_answer, send_done, send_hello
from ..frames import MOST, Broken, ask, connect, is_readable

RECORD, MESSAGE, ANSWER, PROBLEM, SILO = "coterie", "message", "answer", "problem", "silo"
STALL = 60.0  # seconds that the coordinator may take to send or accept a piece of a message
POLL = 0.2  # seconds between two looks for answers
ROLL = 3.0  # seconds between two looks for nodes
AGAIN = 90.0  # seconds until a message without an answer is sent again: a node may have died with it

client = ClientApp()
server = ServerApp()


def reply_of(settings: Mapping[str, Any], content: bytes) -> dict[str, str | bytes]:
    """Return a node's reply: the guard's answer, or why there is none; to an empty message, its silo."""
    silo = str(settings.get("silo", ""))
    if not content:
        return {SILO: silo}
    most = int(settings.get("most", MOST))
    try:
        if len(content) > most:
            raise Broken(f"the message has {len(content):,} bytes, but the silo's limit is {most:,}")
        answer = ask(Path(str(settings["guard"])), content, float(settings.get("seconds", 600.0)), most)
    except KeyError:
        return {SILO: silo, PROBLEM: "its node was not told where the guard listens: guard='PATH'"}
    except Problem as problem:
        return {SILO: silo, PROBLEM: str(problem)}
    return {SILO: silo, ANSWER: answer}


def carry(message: Message, context: Context) -> Message:
    """Hand a message to the guard, and its answer back."""
    content = bytes(message.content[RECORD][MESSAGE])
    reply = ConfigRecord(reply_of(context.node_config, content))
    return Message(RecordDict({RECORD: reply}), reply_to=message)


client.query()(carry)


@dataclass
class Post:
    """Messages on their way through Flower's grid.

    `nodes` are the silos that nodes belong to, by their own words. `sent` has the silo and the time of every
    message that has no answer yet; no silo stands for the question which silo it is.
    """

    grid: Grid
    nodes: dict[int, str] = field(default_factory=dict)
    sent: dict[str, tuple[int, str, float]] = field(default_factory=dict)
    looked: float = float("-inf")

    def send(self, node: int, silo: str, content: bytes) -> None:
        """Send a message to a node; it counts as sent only if Flower took it."""
        record = RecordDict({RECORD: ConfigRecord({MESSAGE: content})})
        made = Message(record, dst_node_id=node, message_type="query")
        for number in self.grid.push_messages([made]):
            if number:
                self.sent[number] = (node, silo, time.monotonic())

    def look(self) -> None:
        """Ask new nodes which silo they belong to, and forget nodes that are gone."""
        if time.monotonic() < self.looked + ROLL:
            return
        self.looked = time.monotonic()
        there = set(self.grid.get_node_ids())
        self.nodes = {node: silo for node, silo in self.nodes.items() if node in there}
        asked = {node for node, silo, _ in self.sent.values() if not silo}
        for node in there - set(self.nodes) - asked:
            self.send(node, "", b"")

    def node_of(self, silo: str) -> int | None:
        """Return the node of a silo, unless a message is already on its way there."""
        if any(silo == other for _, other, _ in self.sent.values()):
            return None
        return next((node for node, other in self.nodes.items() if other == silo), None)

    def replies(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """Yield the replies that came: the silo that was asked, and what its node said."""
        late = [number for number, (_, _, when) in self.sent.items() if time.monotonic() > when + AGAIN]
        for number in late:
            del self.sent[number]
        for reply in self.grid.pull_messages(list(self.sent)) if self.sent else ():
            node, silo, _ = self.sent.pop(reply.metadata.reply_to_message_id, (0, "", 0.0))
            if reply.has_error():
                self.nodes.pop(node, None)
                yield silo, {PROBLEM: f"its node failed: {reply.error.reason}"}
            elif silo:
                yield silo, reply.content[RECORD]
            else:
                self.nodes[node] = str(reply.content[RECORD][SILO])


def serve(post: Post, connection: sockets.socket, batch: Batch) -> None:
    """Carry one batch; whoever is not there yet gets its message when it comes, if that is in time."""
    waiting, problems = dict(batch.messages), {}
    post.sent = {number: sent for number, sent in post.sent.items() if not sent[1]}
    deadline = time.monotonic() + batch.seconds
    while waiting and time.monotonic() < deadline:
        post.look()
        for silo, content in waiting.items():
            if (node := post.node_of(silo)) is not None:
                post.send(node, silo, content)
        for silo, said in post.replies():
            if silo in waiting and isinstance(said.get(ANSWER), bytes):
                send_answer(connection, Answer(batch.number, silo, said[ANSWER]))
                del waiting[silo]
            elif silo in waiting:
                problems[silo] = str(said.get(PROBLEM, "its node sent no answer"))
        time.sleep(POLL)
    for silo in waiting:
        why = problems.get(silo, "no node of it connected, or it gave no answer")
        send_answer(connection, Answer(batch.number, silo, None, why))
    send_done(connection, Done(batch.number))


def run(grid: Grid, context: Context) -> None:
    """Serve the coordinator's batches until it says stop or goes away."""
    settings, post = context.run_config, Post(grid)
    with connect(Path(str(settings["socket"])), STALL) as connection:
        send_hello(connection, Hello(str(context.run_id), str(settings["token"]), ()))
        while True:
            if not is_readable(connection, POLL):
                continue
            try:
                batch = receive_batch(connection, int(settings["most"]))
            except Broken:
                return
            if batch is None:
                return
            serve(post, connection, batch)


server.main()(run)
