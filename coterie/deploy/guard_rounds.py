"""How a guard does a training's work: rounds, steps of secure sums, the end. `guard` says in which order."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, cast

from ..engines.network import vector_of
from ..errors import Problem
from ..guard.claims import is_drawn
from ..guard.secret_streams import EntropyStreams, secret_of
from ..noise.dice import KeyedDice
from ..planning.plan import Plan
from ..privacy.ledger.entries import runs_of
from ..protocol.envelope import Envelope
from ..protocol.messages import pack, unpack
from ..protocol.streams import Streams
from ..protocol.tree import Tree
from ..secure_sum import Silo as SumSilo
from ..secure_sum import State, check_boxes
from .calls import read_tree
from .masking import BEFORE_UPLOAD, masked, open_sum, split_upload, take_step
from .plan_file import read_plan
from .prepared import Prepared
from .replies import remembered, sealed
from .results import finish_training
from .scores import noised_score, score_of
from .store import Training
from .sum_terms import is_masked, sum_terms

if TYPE_CHECKING:
    from .guard import Guard


def do_round(guard: Guard, request: Envelope) -> bytes:
    """Do the work of a round: charge, train, remember, and only then answer."""
    prepared, known = open_training(guard, request)
    number = request.round
    _check_due(guard, prepared, known, number)
    if is_masked(prepared.plan, number):
        raise Problem(f"round {number}: the plan's uploads are masked, so ask for the steps of their sum")
    reservation, results = _worked(guard, request, prepared, known)
    state, body = pack(results.pop()), pack(results.pop())  # vectors are dropped once they are bytes
    digest = _digest(guard, prepared.plan, body)
    reply = sealed(guard, request, "upload", _salt(prepared.plan), body)
    del body  # the reply holds it
    answer = remembered(guard, request, reply, state, number + 1)
    guard.ledger.commit(reservation, digest)
    return answer


def _worked(guard: Guard, request: Envelope, prepared: Prepared, known: Training) -> tuple[int, list[Tree]]:
    """Charge a round and do its work; return the reservation, and a list of the upload and the new state."""
    number, side = request.round, prepared.side
    sent, own = read_body(request.body, prepared), own_state(guard, prepared)
    side.check(number, sent, own)
    reservation, streams = reserve(guard, prepared, known, number)
    drawn = is_drawn(prepared.plan, streams, number)
    return reservation, [*side.work(number, sent, own, streams, drawn)]


def do_sum_step(guard: Guard, request: Envelope) -> bytes:
    """Take a step of a round's secure sum."""
    prepared, known = open_training(guard, request)
    number = request.round
    if request.kind in BEFORE_UPLOAD:
        _check_due(guard, prepared, known, number)
    terms = sum_terms(prepared.file, prepared.plan, number)
    kept = guard.store.sum_state(request.training, number)
    silo, state = open_sum(terms, guard.silo, guard.key, kept, request)
    if request.kind == "upload":
        return _masked_upload(guard, request, prepared, known, silo, state)
    state, body = take_step(silo, state, request)
    reply = sealed(guard, request, request.kind, {}, body)
    return remembered(guard, request, reply, sum_state=state.to_bytes())


def _masked_upload(
    guard: Guard, request: Envelope, prepared: Prepared, known: Training, silo: SumSilo, state: State
) -> bytes:
    """Do the work of a round whose upload is masked: charge, train, remember, and only then answer."""
    number, side, (boxes, rest) = request.round, prepared.side, split_upload(request)
    check_boxes(silo, state, boxes)
    sent, own = read_body(rest, prepared), own_state(guard, prepared)
    side.check(number, sent, own)
    reservation, streams = reserve(guard, prepared, known, number)
    drawn = is_drawn(prepared.plan, streams, number)
    upload, own = side.train(number, sent, own, streams, drawn)
    dice = cast(KeyedDice, streams.merging(0, guard.silo, number))
    vector = vector_of(upload).detach().cpu().numpy()
    state, body = masked(silo, state, boxes, vector, dice, side.own_clip)
    digest, reply = hashlib.sha256(body).hexdigest(), sealed(guard, request, "upload", {}, body)
    del body, upload, vector, sent  # the reply holds what leaves
    answer = remembered(guard, request, reply, pack(own), number + 1, state.to_bytes())
    guard.ledger.commit(reservation, digest)
    return answer


def finish(guard: Guard, request: Envelope) -> bytes:
    """Save the silo's own model, score and statement at home; if the plan says so, tell a noised score.

    The score is a release like that of a round: charged, computed, remembered, and only then sent.
    """
    prepared, known = open_training(guard, request)
    if request.round != prepared.experiment.training.rounds:
        raise Problem("a training finishes after its last round")
    sent, own = read_body(request.body, prepared), own_state(guard, prepared)
    vector = prepared.side.checked_personal(sent, own)
    assert known.run is not None
    told: dict[str, object] = {}
    if (event := score_of(prepared)) is not None:
        reservation, streams = reserve(guard, prepared, known, request.round)
        told = {"score": noised_score(prepared, vector, event, streams)}
    facts = finish_training(guard.folder, prepared, vector, guard.ledger, known.run)
    reply = sealed(guard, request, "finished", {**facts, **told})
    answer = remembered(guard, request, reply, status="finished")
    if told:
        guard.ledger.commit(reservation, hashlib.sha256(repr(told["score"]).encode()).hexdigest())
    guard.log(f"training {request.training} finished: model and statement are in {facts['folder']}")
    return answer


def open_training(guard: Guard, request: Envelope) -> tuple[Prepared, Training]:
    """Return the training that a request belongs to; raise `Problem` unless it was accepted and is open."""
    known = guard.store.training(request.training)
    if known is None or known.run is None:
        raise Problem(f"training {request.training} was never accepted here: send its plan first")
    if known.status != "begun":
        raise Problem(f"training {request.training} is {known.status}")
    return guard.prepare(read_plan(known.plan.encode())), known


def _check_due(guard: Guard, prepared: Prepared, known: Training, number: int) -> None:
    """Raise `Problem` unless a round is still to be done, and asks this silo."""
    rounds = prepared.experiment.training.rounds
    if not known.round <= number < rounds:
        raise Problem(f"round {number} is not among the rounds {known.round} to {rounds - 1} still to do")
    if prepared.place not in prepared.plan.asked_at(number):
        raise Problem(f"the plan does not ask '{guard.silo}' for round {number}")


def read_body(body: bytes | memoryview, prepared: Prepared) -> Tree:
    """Return the tree in a request's body; raise `Problem` unless it holds tensors of a sound form."""
    silo = prepared.plan.silos[0][prepared.place]
    most = 4 * (silo.bytes_down + silo.bytes_up) + 64 * prepared.experiment.task.layout.size + 2**20
    if len(body) > most:
        raise Problem(f"a message of {len(body):,} bytes is more than this plan needs ({most:,})")
    return read_tree(body, most, share=True)  # nobody reads the message again


def own_state(guard: Guard, prepared: Prepared) -> Tree:
    """Return what the silo keeps between rounds."""
    state = guard.store.state(prepared.file.training)
    return prepared.side.begin() if state is None else unpack(state)


def reserve(guard: Guard, prepared: Prepared, known: Training, number: int) -> tuple[int, Streams]:
    """Charge a round, unless a crash came after it was charged; return its row and its randomness."""
    assert known.run is not None
    state = guard.ledger.state()
    rows = [
        seq
        for seq, body in state.reservations.items()
        if runs_of(body) == [known.run] and body["first"] == number and seq not in state.committed
    ]
    row = rows[-1] if rows else guard.ledger.reserve(known.run, number, number + 1).seq
    entry = guard.ledger.entries()[row - 1]
    if guard.streams is not None:
        return row, guard.streams(prepared.experiment, guard.silo, entry.hash, number)
    streams = EntropyStreams({guard.silo: _secret(guard)})
    streams.begin(guard.silo, entry.hash, number, number + 1)
    return row, streams


def _digest(guard: Guard, plan: Plan, body: bytes) -> str:
    """Return a digest of an upload for the ledger; nobody else can test guesses about a raw one by it."""
    if plan.merge is None or plan.merge.where != "server":
        return hashlib.sha256(body).hexdigest()
    return hashlib.blake2b(body, key=_secret(guard), digest_size=32).hexdigest()


def _secret(guard: Guard) -> bytes:
    return secret_of(guard.folder.path / "ledger", guard.ledger.identity)


def _salt(plan: Plan) -> dict[str, object]:
    """Return a fact that makes digests of an answer tell nothing, if who was drawn is secret."""
    return {"salt": secrets.token_hex(16)} if plan.drawn_in_secret else {}
