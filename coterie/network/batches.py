"""What the coordinator and the engine's end at the server say to each other on the coordinator's Unix socket.

Everything is a frame. A small JSON frame says what follows; messages and answers are frames of raw bytes.
The controller passes each answer on as it comes, so that none is lost when a job dies during a batch.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .frames import Broken, receive, send

WORDS = 2**20  # bytes of a JSON frame


@dataclass(frozen=True)
class Hello:
    """Which job has connected, and which silos it reaches."""

    job: str
    token: str
    silos: tuple[str, ...]


@dataclass(frozen=True)
class Batch:
    """A message for each silo, and how many seconds they have to answer."""

    number: int
    seconds: float
    messages: Mapping[str, bytes]


@dataclass(frozen=True)
class Answer:
    """What one silo answered to a batch: bytes, or a sentence that says why there are none."""

    number: int
    silo: str
    content: bytes | None
    problem: str = ""


@dataclass(frozen=True)
class Done:
    """No more answers to this batch will come."""

    number: int


def _send_words(connection: socket.socket, **words: Any) -> None:
    send(connection, json.dumps(words).encode())


def _words(connection: socket.socket) -> dict[str, Any]:
    try:
        words = json.loads(receive(connection, WORDS))
    except ValueError as error:
        if isinstance(error, Broken):
            raise
        raise Broken("the other side sent what is no JSON") from error
    if not isinstance(words, dict):
        raise Broken("the other side sent what is no JSON object")
    return words


def send_hello(connection: socket.socket, hello: Hello) -> None:
    """Tell the coordinator which job has connected."""
    _send_words(connection, job=hello.job, token=hello.token, silos=list(hello.silos))


def receive_hello(connection: socket.socket) -> Hello:
    """Return which job has connected."""
    words = _words(connection)
    try:
        return Hello(str(words["job"]), str(words["token"]), tuple(map(str, words["silos"])))
    except (KeyError, TypeError) as error:
        raise Broken("the other side did not say which job it is") from error


def send_batch(connection: socket.socket, batch: Batch) -> None:
    """Hand a batch to the controller."""
    _send_words(connection, batch=batch.number, seconds=batch.seconds, silos=list(batch.messages))
    for message in batch.messages.values():
        send(connection, message)


def send_stop(connection: socket.socket) -> None:
    """Tell the controller to end the job."""
    _send_words(connection, stop=True)


def receive_batch(connection: socket.socket, most: int) -> Batch | None:
    """Return the next batch, or None if the job is to end."""
    words = _words(connection)
    if words.get("stop"):
        return None
    try:
        number, seconds, silos = int(words["batch"]), float(words["seconds"]), list(words["silos"])
    except (KeyError, TypeError, ValueError) as error:
        raise Broken("the coordinator sent what is no batch") from error
    return Batch(number, seconds, {str(silo): receive(connection, most) for silo in silos})


def send_answer(connection: socket.socket, answer: Answer) -> None:
    """Pass one silo's answer on to the coordinator."""
    if answer.content is None:
        _send_words(connection, batch=answer.number, silo=answer.silo, problem=answer.problem)
        return
    _send_words(connection, batch=answer.number, silo=answer.silo)
    send(connection, answer.content)


def send_done(connection: socket.socket, done: Done) -> None:
    """Tell the coordinator that a batch is over."""
    _send_words(connection, batch=done.number, done=True)


def receive_answer(connection: socket.socket, most: int) -> Answer | Done:
    """Return the next answer, or `Done` after the last."""
    words = _words(connection)
    try:
        number = int(words["batch"])
        if words.get("done"):
            return Done(number)
        silo = str(words["silo"])
    except (KeyError, TypeError, ValueError) as error:
        raise Broken("the controller sent what is no answer") from error
    if "problem" in words:
        return Answer(number, silo, None, str(words["problem"]))
    return Answer(number, silo, receive(connection, most))


def take_answer(
    connection: socket.socket, batch: Batch, most: int, answers: dict[str, bytes], problems: dict[str, str]
) -> bool:
    """Note the next answer to a batch, or why there is none; return whether more will come."""
    said = receive_answer(connection, most)
    if said.number != batch.number:
        raise Broken("the engine answered another batch")
    if isinstance(said, Done):
        return False
    if said.silo in batch.messages and said.content is not None:
        answers[said.silo] = said.content
    elif said.silo in batch.messages:
        problems[said.silo] = said.problem
    return True
