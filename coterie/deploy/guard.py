"""The guard: it owns a silo's examples, ledger and keys, and decides what it answers.

A request is bytes, and so is the answer. No code arrives here, only plans and vectors. The guard trains with
the methods and models that are installed where it runs. It adds the noise that it planned itself, and charges
its own ledger before anything is computed. It answers each (training, round, call) once.

**Order of a round.** The round is reserved in the ledger; the work is done; answer and new state are written
in one transaction; the reservation is committed; only then do bytes leave. A crash before the answer was
written released nothing: the same reservation pays for doing the work again, with fresh noise. A crash after
it is followed by the stored bytes. So nothing leaves uncharged, and no call is answered in two ways.

**Secure sums.** If a plan's uploads are masked, the five steps of the sum (`coterie.secure_sum`) are calls of
their own, in place of the call 'round'. The third one is charged and does the work, in the order above. Its
terms are derived from the plan here (`coterie.deploy.sum_terms`). The state of the sum, with the seed of the
masks, is written in the transaction of each answer, so no seed masks two uploads that leave.

**Secret coins.** If silos are drawn in secret, every guard is asked in every round and tosses its own coin.
A silo that was not drawn works all the same, and uploads zeros. Every round is charged, drawn or not.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import cast

from ..data.federation import Silo
from ..engines.network import vector_of
from ..errors import Problem, reason
from ..experiment.experiment import Experiment
from ..guard.claims import is_drawn
from ..guard.secret_streams import EntropyStreams, secret_of
from ..noise.dice import KeyedDice
from ..planning.plan import Plan
from ..privacy.keys import Key, PublicKey, now, parse_time, stamp
from ..privacy.ledger.entries import runs_of
from ..privacy.ledger.heads import SignedHead
from ..privacy.ledger.ledger import Ledger
from ..protocol.envelope import Envelope, Unreadable, seal, unseal
from ..protocol.messages import pack, unpack
from ..protocol.streams import Streams
from ..protocol.tree import Tree, leaves
from ..secure_sum import Silo as SumSilo
from ..secure_sum import State, check_boxes
from ..tasks.code import Allowed, allowing
from .guard_folder import POLICY, GuardFolder, read_table
from .masking import BEFORE_UPLOAD, SUM_CALLS, masked, open_sum, split_upload, take_step
from .plan_file import PlanFile, plan_of, read_plan
from .policy import MONTH, PolicyTable, broken_rules, unknown_members
from .prepared import Prepared
from .results import finish_training
from .scores import against, claim_of, noised_score, score_of
from .store import Store, Training
from .sum_terms import check_sums, is_masked, sum_terms

CALLS = {"hello": 0, "plan": 1, "round": 2, "finish": 3, **SUM_CALLS}
COORDINATOR = "coordinator"
HEAD = ("text", "signature")
LINE, LOG = 500, 2**24  # letters of a line in the log, and bytes of a log: strangers can cause lines
StreamsFor = Callable[[Experiment, str, str, int], Streams]


class Guard:
    """A guard in its folder; `answer` turns a request into an answer, whatever the request is.

    `streams`, if given, replaces the system's entropy: tests compare trainings whose noise they know.
    """

    def __init__(self, folder: GuardFolder, streams: StreamsFor | None = None) -> None:
        self.folder, self.silo, self.streams = folder, folder.silo, streams
        self.coordinator: PublicKey = folder.coordinator()
        self.policy: PolicyTable = read_table(folder.path / POLICY, PolicyTable)
        self.key: Key = folder.key()
        self.ledger: Ledger = folder.ledger()
        self.store = Store(folder.path / "guard.sqlite")
        self.stale: str | None = None
        self._prepared: dict[str, Prepared] = {}

    def close(self) -> None:
        """Close ledger and memory."""
        self.ledger.close()
        self.store.close()

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a request; a request that is not granted gets a signed refusal."""
        request = None
        try:
            request = unseal(message, self.coordinator, self.policy.bytes, self.silo)
            return self._answer(request)
        except Problem as problem:
            self.log(f"refused: {problem}")
            words = str(problem).replace(str(self.folder.path), "the guard's folder")
            return self._refusal(request, "refused", words)
        except Exception as error:  # a guard stays up; what went wrong is for its owner's eyes only
            self.log(f"failed: {type(error).__name__}: {error}")
            return self._refusal(request, "failed", "the guard failed; its owner finds the reason in its log")

    def _answer(self, request: Envelope) -> bytes:
        if request.kind not in CALLS or request.call != CALLS[request.kind]:
            raise Problem(f"this guard has no answer to '{request.kind}', call {request.call}")
        self._check_witnessed(request)
        if request.kind == "hello":
            return self._hello(request)
        stored = self.store.answered(request.training, request.round, request.call)
        if stored is not None:
            if stored[0] != question(request):
                raise Problem(
                    f"round {request.round} of training {request.training} was answered for another request"
                )
            if stored[2] is None:
                raise Problem(f"round {request.round} was answered long ago; its answer is no longer kept")
            return stored[2]
        if expired := self.policy.expired():
            raise Problem(expired)
        work = {"plan": self._begin, "round": self._round, "finish": self._finish}
        return work.get(request.kind, self._sum_step)(request)

    def _check_witnessed(self, request: Envelope) -> None:
        """Raise `Problem` if the coordinator has seen rows of the ledger that it does not have."""
        facts = request.facts.get("witnessed")
        if facts is not None:
            seen = _head_in(facts)
            if seen is None or seen.public != self.key.public.public:
                raise Problem("the head that the coordinator has seen was not signed by this guard's key")
            if (why := self.ledger.why_refused(seen)) is not None:
                self.stale = f"the ledger is not the newest: the coordinator {why}, so nothing is answered"
        if self.stale is not None:
            raise Problem(self.stale)

    def _hello(self, request: Envelope) -> bytes:
        """Say where the ledger stands, and how far the training is."""
        known = self.store.training(request.training)
        return self._sealed(request, "hello", {"round": 0 if known is None else known.round})[1]

    def _begin(self, request: Envelope) -> bytes:
        """Accept a plan that the owner approved, and charge it to the ledger.

        What can be known without the examples is checked first. A refused plan leaves nothing behind.
        """
        file = read_plan(request.body)
        if request.round != 0:
            raise Problem(f"a plan is sent before round 0, not before round {request.round}")
        if file.training != request.training:
            raise Problem(f"the plan is for training {file.training}, not {request.training}")
        if file.coordinator.public != self.coordinator.public:
            raise Problem("the plan names another coordinator than this guard's")
        known = self.store.training(file.training)
        if known is not None and known.hash != file.hash:
            raise Problem(f"training {file.training} began with another plan")
        if known is None and self.policy.approve == "owner":
            self._check_approved(file)
        prepared = self.prepare(file)
        if known is None:
            self.check_policy(prepared)
            self._check_approved(file)
            epsilon = prepared.plan.silos[0][prepared.place].epsilon
            known = Training(
                file.training, file.hash, file.text, epsilon, stamp(now()), None, 0, None, "begun"
            )
            self.store.begin(known)
        if known.run is None:
            self.store.update(file.training, run=self._claim(prepared))
        self.log(f"training {file.training} accepted: {prepared.experiment.method.title}, hash {file.hash}")
        return self._send(request, "accepted", {"hash": file.hash}, b"")

    def _claim(self, prepared: Prepared) -> int:
        """Charge a training to the ledger as planned, once; return its row."""
        label = f"{prepared.experiment.method.title} (training {prepared.file.training})"
        state = self.ledger.state()
        for run, body in state.runs.items():
            if body.get("label") == label:
                return run  # a crash came after the charge
        return self.ledger.claim(claim_of(prepared, label)).run

    def _check_approved(self, file: PlanFile) -> None:
        if self.store.is_approved(file.hash):
            return
        if self.policy.approve == "policy":
            self.store.approve(file.hash, stamp(now()), "policy")
            return
        raise Problem(
            f"the plan with hash {file.hash} is not approved at '{self.silo}': its owner approves it with"
            " `coterie guard approve`"
        )

    def check_policy(self, prepared: Prepared) -> None:
        """Raise one `Problem` that lists every rule a plan breaks."""
        since = now() - timedelta(days=MONTH)
        others = [each for each in self.store.trainings() if each.training != prepared.file.training]
        spent = [each.epsilon for each in others if parse_time(each.began, "began") > since]
        rules = (self.policy, prepared.experiment, prepared.plan, prepared.file.model, prepared.place, spent)
        broken = broken_rules(*rules, against(prepared), score_of(prepared) is not None)
        keys = {name: key.id for name, key in prepared.file.keys.items()}
        broken += unknown_members(self.policy, prepared.plan, keys)
        if broken:
            raise Problem("the policy refuses the plan: " + "; ".join(broken))

    def prepare(self, file: PlanFile) -> Prepared:
        """Return a training of a plan, with this silo's examples; raise `Problem` if they do not fit.

        It is kept by the hash of the plan: no other plan can take its place.
        """
        if file.hash not in self._prepared:
            self._check_facts(file)
            experiment = file.experiment(self._examples(file), self._allowed())
            plan = plan_of(experiment, file)
            check_sums(file, plan)
            self._prepared.clear()  # examples of one training at a time stay in memory
            self._prepared[file.hash] = Prepared(file, experiment, plan, file.place(self.silo))
        return self._prepared[file.hash]

    def _check_facts(self, file: PlanFile) -> None:
        """Raise `Problem` unless the plan names this guard's key and scale, and only code of its list."""
        if file.keys[file.names[file.place(self.silo)]].public != self.key.public.public:
            raise Problem(f"the plan names another key of '{self.silo}' than this guard's")
        if ":" in file.model and file.model not in self.policy.models:  # nobody's code is even imported
            raise Problem(f"the policy refuses the plan: model: the policy does not allow '{file.model}'")
        if file.content["facts"]["scale"] != self.folder.table.scale:
            raise Problem(
                f"the plan multiplies examples by {file.content['facts']['scale']:g}, but those of"
                f" '{self.silo}' are prepared for {self.folder.table.scale:g}"
            )

    def _examples(self, file: PlanFile) -> Silo:
        """Return the silo's examples; raise `Problem` unless they have the sizes and the form of a plan."""
        place, facts = file.place(self.silo), file.content["facts"]
        own = self.folder.examples(facts["classes"])
        sizes, wanted = {"train": len(own.y), "test": len(own.test_y)}, facts["silos"][place]
        if {part: wanted[part] for part in sizes} != sizes:
            raise Problem(
                f"the plan says that '{self.silo}' has {wanted['train']} training and {wanted['test']}"
                f" test examples, but it has {sizes['train']} and {sizes['test']}"
            )
        blank = file.federation().silos[place]
        if (own.x.shape, own.x.dtype) != (blank.x.shape, blank.x.dtype):
            raise Problem(
                f"the plan's examples have shape {list(blank.x.shape[1:])} and type {blank.x.dtype},"
                f" those of '{self.silo}' {list(own.x.shape[1:])} and {own.x.dtype}"
            )
        return own

    def _allowed(self) -> Allowed:
        """Return the modules that a plan's model may come from: those of the owner's list."""
        modules = [name.partition(":")[0] for name in self.policy.models if ":" in name]
        return allowing(None, modules)

    def _training(self, request: Envelope) -> tuple[Prepared, Training]:
        known = self.store.training(request.training)
        if known is None or known.run is None:
            raise Problem(f"training {request.training} was never accepted here: send its plan first")
        if known.status != "begun":
            raise Problem(f"training {request.training} is {known.status}")
        return self.prepare(read_plan(known.plan.encode())), known

    def _check_due(self, prepared: Prepared, known: Training, number: int) -> None:
        """Raise `Problem` unless a round is still to be done, and asks this silo."""
        rounds = prepared.experiment.training.rounds
        if not known.round <= number < rounds:
            raise Problem(f"round {number} is not among the rounds {known.round} to {rounds - 1} still to do")
        if prepared.place not in prepared.plan.asked_at(number):
            raise Problem(f"the plan does not ask '{self.silo}' for round {number}")

    def _round(self, request: Envelope) -> bytes:
        """Do the work of a round: charge, train, remember, and only then answer."""
        prepared, known = self._training(request)
        number = request.round
        self._check_due(prepared, known, number)
        if is_masked(prepared.plan, number):
            raise Problem(f"round {number}: the plan's uploads are masked, so ask for the steps of their sum")
        sent, own = self._read(request.body, prepared), self._own(prepared, known)
        prepared.side.check(number, sent, own)
        reservation, streams = self._reserve(prepared, known, number)
        drawn = is_drawn(prepared.plan, streams, number)
        upload, own = prepared.side.work(number, sent, own, streams, drawn)
        body, facts = pack(upload), self._salt(prepared.plan)
        answer = self._send(request, "upload", facts, body, pack(own), number + 1)
        self.ledger.commit(reservation, self._digest(prepared.plan, body))
        return answer

    def _sum_step(self, request: Envelope) -> bytes:
        """Take a step of a round's secure sum."""
        prepared, known = self._training(request)
        number = request.round
        if request.kind in BEFORE_UPLOAD:
            self._check_due(prepared, known, number)
        terms = sum_terms(prepared.file, prepared.plan, number)
        kept = self.store.sum_state(request.training, number)
        silo, state = open_sum(terms, self.silo, self.key, kept, request)
        if request.kind == "upload":
            return self._masked_upload(request, prepared, known, silo, state)
        state, body = take_step(silo, state, request)
        return self._send(request, request.kind, {}, body, sum_state=state.to_bytes())

    def _masked_upload(
        self, request: Envelope, prepared: Prepared, known: Training, silo: SumSilo, state: State
    ) -> bytes:
        """Do the work of a round whose upload is masked: charge, train, remember, and only then answer."""
        number, side, (boxes, rest) = request.round, prepared.side, split_upload(request)
        check_boxes(silo, state, boxes)
        sent, own = self._read(rest, prepared), self._own(prepared, known)
        side.check(number, sent, own)
        reservation, streams = self._reserve(prepared, known, number)
        drawn = is_drawn(prepared.plan, streams, number)
        upload, own = side.train(number, sent, own, streams, drawn)
        dice = cast(KeyedDice, streams.merging(0, self.silo, number))
        vector = vector_of(upload).detach().cpu().numpy()
        state, body = masked(silo, state, boxes, vector, dice, side.own_clip)
        answer = self._send(request, "upload", {}, body, pack(own), number + 1, state.to_bytes())
        self.ledger.commit(reservation, hashlib.sha256(body).hexdigest())
        return answer

    def _own(self, prepared: Prepared, known: Training) -> Tree:
        """Return what the silo keeps between rounds."""
        return prepared.side.begin() if known.state is None else unpack(known.state)

    def _digest(self, plan: Plan, body: bytes) -> str:
        """Return a digest of an upload for the ledger; nobody else can test guesses about a raw one by it."""
        if plan.merge is None or plan.merge.where != "server":
            return hashlib.sha256(body).hexdigest()
        secret = secret_of(self.folder.path / "ledger", self.ledger.identity)
        return hashlib.blake2b(body, key=secret, digest_size=32).hexdigest()

    def _salt(self, plan: Plan) -> dict[str, object]:
        """Return a fact that makes digests of an answer tell nothing, if who was drawn is secret."""
        return {"salt": secrets.token_hex(16)} if plan.drawn_in_secret else {}

    def _reserve(self, prepared: Prepared, known: Training, number: int) -> tuple[int, Streams]:
        """Charge a round, unless a crash came after it was charged; return its row and its randomness."""
        assert known.run is not None
        state = self.ledger.state()
        rows = [
            seq
            for seq, body in state.reservations.items()
            if runs_of(body) == [known.run] and body["first"] == number and seq not in state.committed
        ]
        row = rows[-1] if rows else self.ledger.reserve(known.run, number, number + 1).seq
        entry = self.ledger.entries()[row - 1]
        if self.streams is not None:
            return row, self.streams(prepared.experiment, self.silo, entry.hash, number)
        secret = secret_of(self.folder.path / "ledger", self.ledger.identity)
        streams = EntropyStreams({self.silo: secret})
        streams.begin(self.silo, entry.hash, number, number + 1)
        return row, streams

    def _read(self, body: bytes, prepared: Prepared) -> Tree:
        """Return the tree in a request's body; raise `Problem` unless it holds tensors of a sound form."""
        silo = prepared.plan.silos[0][prepared.place]
        most = 4 * (silo.bytes_down + silo.bytes_up) + 64 * prepared.experiment.task.layout.size + 2**20
        if len(body) > most:
            raise Problem(f"a message of {len(body):,} bytes is more than this plan needs ({most:,})")
        return read_tree(body, most)

    def _finish(self, request: Envelope) -> bytes:
        """Save the silo's own model, score and statement at home; if the plan says so, tell a noised score.

        The score is a release like that of a round: charged, computed, remembered, and only then sent.
        """
        prepared, known = self._training(request)
        if request.round != prepared.experiment.training.rounds:
            raise Problem("a training finishes after its last round")
        sent, own = self._read(request.body, prepared), self._own(prepared, known)
        vector = prepared.side.checked_personal(sent, own)
        assert known.run is not None
        told: dict[str, object] = {}
        if (event := score_of(prepared)) is not None:
            reservation, streams = self._reserve(prepared, known, request.round)
            told = {"score": noised_score(prepared, vector, event, streams)}
        facts = finish_training(self.folder, prepared, vector, self.ledger, known.run)
        answer = self._send(request, "finished", {**facts, **told}, b"", status="finished")
        if told:
            self.ledger.commit(reservation, hashlib.sha256(repr(told["score"]).encode()).hexdigest())
        self.log(f"training {request.training} finished: model and statement are in {facts['folder']}")
        return answer

    def _send(
        self,
        request: Envelope,
        kind: str,
        facts: dict[str, object],
        body: bytes,
        state: bytes | None = None,
        further: int | None = None,
        sum_state: bytes | None = None,
        status: str | None = None,
    ) -> bytes:
        """Remember an answer, and return it."""
        reply, answer = self._sealed(request, kind, facts, body)
        known = (request.training, request.round, request.call, question(request), reply.digest)
        self.store.answer(*known, answer, state, further, sum_state, status)
        return answer

    def _sealed(
        self, request: Envelope, kind: str, facts: dict[str, object], body: bytes = b""
    ) -> tuple[Envelope, bytes]:
        """Return a reply with the head of the ledger, and as signed bytes."""
        head = self.ledger.signed_head
        facts = {**facts, "head": {"text": head.text, "signature": head.signature}}
        belongs = (request.training, request.round, request.call)
        reply = Envelope(*belongs, kind, self.silo, COORDINATOR, facts, body)
        return reply, seal(reply, self.key)

    def _refusal(self, request: Envelope | None, kind: str, why: str) -> bytes:
        """Return a signed refusal; it is not remembered, because nothing was released."""
        training, number, call = (
            ("", 0, 0) if request is None else (request.training, request.round, request.call)
        )
        reply = Envelope(training, number, call, kind, self.silo, COORDINATOR, {"why": why[:2000]})
        return seal(reply, self.key)

    def log(self, line: str) -> None:
        """Add a line to the guard's log, or print it if the disk is full: a guard stays up without a log."""
        text, path = f"{stamp(now())} {' '.join(line[:LINE].split())}", self.folder.path / "log.txt"
        try:
            if path.exists() and path.stat().st_size > LOG:
                path.replace(path.with_name("log.old.txt"))
            with path.open("a") as file:
                file.write(f"{text}\n")
        except OSError as error:
            with suppress(OSError):
                print(f"{text} (log.txt: {reason(error)})", file=sys.stderr, flush=True)


def _head_in(facts: object) -> SignedHead | None:
    """Return the head of a ledger in a message, if it is one."""
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), str) for name in HEAD):
        return None
    head = SignedHead(facts["text"], facts["signature"])
    try:
        head.check()
    except Problem:
        return None
    return head


def question(request: Envelope) -> str:
    """Return the digest of what a request asks, whatever the coordinator has seen of the ledger by now."""
    return request.digest_without("witnessed")


def read_tree(body: bytes, most: int) -> Tree:
    """Return the tree in a body; raise `Problem` unless its tensors are finite and of one run."""
    try:
        tree = unpack(body, most)
    except Problem:
        raise
    except Exception as error:  # whatever a parser raises for bytes that are no tensors
        raise Unreadable(f"the body of the message holds no tensors: {type(error).__name__}") from error
    for leaf in leaves(tree):
        if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise Problem("the message holds numbers that are not finite")
        if leaf.dim() < 2 or leaf.shape[0] != 1:
            raise Problem("the message holds a tensor that is not of one run")
    return tree
