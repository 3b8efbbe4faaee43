"""The coordinator's end inside NVFlare: batches come in by a Unix socket and go out as one task per silo."""

from __future__ import annotations

import queue
import socket as sockets
import time
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from ..batches import Answer, Batch, Done, Hello, receive_batch, send_answer, send_done, send_hello
from ..frames import MOST, Broken, connect, is_readable
from .job import ANSWER, MESSAGE, POLL, PROBLEM, TASK
from .waiting import Waiting

STALL = 60.0  # seconds that the coordinator may take to send or accept a piece of a message


class BatchController(Controller):  # type: ignore[misc]
    """Carry batches from the coordinator's socket to silos, and their answers back, until told to stop."""

    def __init__(self, socket: str, token: str, most: int = MOST) -> None:
        super().__init__(task_check_period=POLL)
        self.socket, self.token, self.most = socket, token, most
        self._results: queue.Queue[tuple[int, str, Shareable]] = queue.Queue()
        self._waiting = Waiting()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: `control_flow` connects."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: `control_flow` has closed its connection."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Serve the coordinator's batches until it says stop, goes away, or the job is aborted."""
        self._waiting.attach(fl_ctx)
        try:
            self._serve_batches(abort_signal, fl_ctx)
        finally:
            self._waiting.close()

    def _serve_batches(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        silos = tuple(client.name for client in fl_ctx.get_engine().get_clients())
        with connect(self.socket, STALL) as connection:
            send_hello(connection, Hello(fl_ctx.get_job_id(), self.token, silos))
            while not abort_signal.triggered:
                if not is_readable(connection, POLL):
                    continue
                try:
                    batch = receive_batch(connection, self.most)
                except Broken as error:
                    self.log_info(fl_ctx, f"the coordinator is gone: {error}")
                    return
                if batch is None:
                    return
                self._serve(connection, batch, silos, abort_signal, fl_ctx)

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Drop an answer that came too late."""

    def _serve(
        self,
        connection: sockets.socket,
        batch: Batch,
        silos: tuple[str, ...],
        abort_signal: Signal,
        fl_ctx: FLContext,
    ) -> None:
        deadline = time.monotonic() + batch.seconds
        tasks: dict[str, Task] = {}
        for silo, message in batch.messages.items():
            if silo in silos:
                tasks[silo] = self._task(batch.number, silo, message)
                self.send(tasks[silo], fl_ctx, targets=[silo])
                self._waiting.announce(silo)
            else:
                send_answer(connection, Answer(batch.number, silo, None, "it is not part of this job"))
        while tasks and time.monotonic() < deadline and not abort_signal.triggered:
            try:
                number, silo, result = self._results.get(timeout=POLL)
            except queue.Empty:
                continue
            if number == batch.number and tasks.pop(silo, None) is not None:
                send_answer(connection, _answer(number, silo, result))
        for task in tasks.values():
            self.cancel_task(task, fl_ctx=fl_ctx)
        if not abort_signal.triggered:
            send_done(connection, Done(batch.number))

    def _task(self, number: int, silo: str, message: bytes) -> Task:
        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            self._results.put((number, silo, client_task.result))
            client_task.result = None

        data = Shareable()
        data[MESSAGE] = message
        return Task(name=TASK, data=data, result_received_cb=received)


def _answer(number: int, silo: str, result: Any) -> Answer:
    """Return what came back for a task, as an answer."""
    if not isinstance(result, Shareable):
        return Answer(number, silo, None, "it sent no answer")
    content = result.get(ANSWER)
    if result.get_return_code() == ReturnCode.OK and isinstance(content, bytes | bytearray | memoryview):
        return Answer(number, silo, bytes(content))
    return Answer(
        number, silo, None, str(result.get_header(PROBLEM) or f"its node said {result.get_return_code()}")
    )
