"""A server whose code was changed: it says to nodes whatever a test tells it to, on a Unix socket.

python lying_server.py KIT SOCKET
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import sys
import threading
from pathlib import Path

from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.fuel.f3.streaming.byte_streamer import STREAM_TYPE_BLOB
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import Stream
from nvflare.private.admin_defs import Message
from nvflare.private.defs import new_cell_message
from nvflare.private.fed.app.server import server_train

from coterie.network.frames import receive, send


class Zeros(Stream):
    """As many zeros as are announced, or more."""

    def __init__(self, announced: int, length: int) -> None:
        super().__init__(announced)
        self.length = length

    def read(self, size: int) -> bytes:
        piece = bytes(min(size, self.length - self.pos))
        self.pos += len(piece)
        return piece


def say(services, words):
    """Send a request to a node and return its reply."""
    message = Message(
        words["topic"], base64.b64decode(words["bytes"]) if "bytes" in words else words.get("body")
    )
    message.set_headers(words.get("headers", {}))
    reply = services.cell.send_request(
        target=words["silo"],
        channel=CellChannel.CLIENT_MAIN,
        topic=words["topic"],
        request=new_cell_message({}, message),
        timeout=10.0,
    )
    body = reply.payload.body if isinstance(reply.payload, Message) else repr(reply.payload)
    return {"code": reply.get_header(MessageHeaderKey.RETURN_CODE), "body": str(body)}


def manage(services, words):
    """Ask for the management of a node's cell and return the reply."""
    reply = services.cell.core_cell.send_request(
        "_net_manager", words["topic"], words["silo"], CellMessage(payload=words.get("body")), 10.0
    )
    return {"code": reply.get_header(MessageHeaderKey.RETURN_CODE), "body": str(reply.payload)}


def flood(services, words):
    """Send a node a message of many bytes and return what became of it."""
    headers = {StreamHeaderKey.PAYLOAD_ENCODING: words["encoding"] or Encoding.FOBS}
    stream = Zeros(words["announced"], words["length"])
    future = services.cell.byte_streamer.send(
        CellChannel.AUX_COMMUNICATION, "x", words["silo"], headers, stream, STREAM_TYPE_BLOB
    )
    try:
        return {"sent": future.result(60)}
    except Exception as error:
        return {"error": str(error)}


def frame(services, words):
    """Send a node one single frame of many bytes and return what became of it."""
    try:
        services.cell.core_cell.max_msg_size = 2**31
        reply = services.cell.core_cell.send_request(
            CellChannel.CLIENT_MAIN, "x", words["silo"], CellMessage({}, bytes(words["length"])), 10.0
        )
        return {"code": reply.get_header(MessageHeaderKey.RETURN_CODE)}
    except Exception as error:
        return {"error": str(error)}


def obey(services, listener):
    while True:
        connection, _ = listener.accept()
        with connection:
            words = json.loads(receive(connection))
            if words["do"] == "clients":
                answer = [client.name for client in services.engine.get_clients()]
            else:
                answer = {"say": say, "manage": manage, "flood": flood, "frame": frame}[words["do"]](
                    services, words
                )
            send(connection, json.dumps(answer).encode())


def main(kit: str, path: str) -> int:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    create = server_train.create_admin_server

    def lie(services, **named):
        threading.Thread(target=obey, args=(services, listener), daemon=True).start()
        return create(services, **named)

    server_train.create_admin_server = lie
    settings = ["secure_train=true", "config_folder=config", "org=coterie", "streaming_max_blob_size=0"]
    args = argparse.Namespace(workspace=str(Path(kit).resolve()), fed_server="fed_server.json", set=settings)
    return MainProcessMonitor.run(main_func=server_train.main, run_dir=args.workspace, args=args)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
