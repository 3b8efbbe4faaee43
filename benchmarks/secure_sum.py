"""Secure sums: what a silo and the server do per round, next to a plain sum of the same vectors."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np

from coterie.privacy.keys import draw_key
from coterie.secure_sum import (
    Member,
    Server,
    Silo,
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

NUMBERS = 1_000_000


class Clock:
    """Processor seconds and sent bytes of all silos, and processor seconds of the server."""

    def __init__(self) -> None:
        self.silos: dict[str, float] = {}
        self.server = self.sent = 0.0

    def answer(self, what, work, *given):
        began = time.process_time()
        state, answer = work(*given)
        self.silos[what] = self.silos.get(what, 0.0) + time.process_time() - began
        self.sent += len(answer)
        return state, answer

    def serve(self, work, *given):
        began = time.process_time()
        found = work(*given)
        self.server += time.process_time() - began
        return found


def whole_round(count: int, dropouts: int):
    """Run a round in which the last silos drop out before they upload; return its clock."""
    keys = [draw_key(f"s{k}") for k in range(count)]
    members = tuple(Member(f"s{k}", key.public.public) for k, key in enumerate(keys))
    terms = Terms("benchmark", 0, members, NUMBERS, 1.0, 1.0, dropouts=dropouts, colluding=1)
    silos = {f"s{k}": Silo(terms, f"s{k}", key) for k, key in enumerate(keys)}
    states = {name: begin(silo) for name, silo in silos.items()}
    cells, clock = np.arange(NUMBERS, dtype=np.int64), Clock()

    def ask(what, step, names, *given, each=None):
        answers = {}
        for name in names:
            more = given if each is None else (each[name], *given)
            states[name], answers[name] = clock.answer(what, step, silos[name], states[name], *more)
        return answers

    server, message = clock.serve(publish_keys, Server(terms), ask("rest", offer_keys, silos))
    answers = ask("rest", share_secrets, silos, message)
    server, boxes = clock.serve(route_shares, server, answers)
    alive = list(silos)[: count - dropouts]
    uploads = ask("upload", mask_upload, alive, cells, each=boxes)
    server, message = clock.serve(add_uploads, server, uploads)
    server, message = clock.serve(collect_confirmations, server, ask("rest", confirm, alive, message))
    found = clock.serve(recover_sum, server, ask("rest", reveal_shares, alive, message))
    assert (found == len(alive) * cells).all()
    tracemalloc.start()
    mask_upload(silos["s0"], states["s0"], boxes["s0"], cells)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return clock, len(alive), peak


def plain_sum(count: int) -> float:
    """Processor seconds for adding up as many float32 vectors in float64."""
    vectors, total = [np.ones(NUMBERS, dtype=np.float32) for _ in range(count)], np.zeros(NUMBERS)
    began = time.process_time()
    for vector in vectors:
        np.add(total, vector, out=total)
    return time.process_time() - began


def row(count: int, dropouts: int) -> str:
    clock, alive, peak = whole_round(count, dropouts)
    plain = min(plain_sum(alive) for _ in range(3))
    upload, rest = clock.silos["upload"] / alive, clock.silos["rest"] / count
    vector = 4 * NUMBERS
    return (
        f"| {count} | {dropouts} | {upload:.2f} | {rest:.3f} | {clock.server:.2f} | {plain:.3f} |"
        f" {clock.server / plain:.1f} | {clock.sent / count / vector:.2f} | {peak / vector:.1f} |"
    )


def report() -> list[str]:
    return [
        "## Secure sums",
        "",
        f"One round with {NUMBERS:,} numbers, in processor seconds of one core. The plain sum adds up float32 uploads.",
        "Bytes and memory are multiples of one float32 upload; the memory is what one silo needs to mask its upload.",
        "",
        "| silos | drop out | a silo masks its upload, s | a silo's other steps, s | server, s | plain sum, s"
        " | server : plain | bytes a silo sends | memory |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *[row(*case) for case in ((10, 0), (10, 3), (100, 0), (100, 10))],
        "",
        "Each silo that drops out costs the server a mask for each silo that is left.",
    ]
