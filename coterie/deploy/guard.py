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

from collections.abc import Callable

from ..errors import Problem
from ..experiment.experiment import Experiment
from ..privacy.keys import Key, PublicKey
from ..privacy.ledger.ledger import Ledger
from ..protocol.envelope import Envelope, unseal
from ..protocol.streams import Streams
from . import guard_plans
from .calls import CALLS, COORDINATOR, head_in, question
from .guard_folder import POLICY, GuardFolder, read_table
from .guard_log import add_line
from .guard_rounds import do_round, do_sum_step, finish
from .plan_file import PlanFile
from .policy import PolicyTable
from .prepared import Prepared
from .replies import refusal, sealed
from .store import Store

StreamsFor = Callable[[Experiment, str, str, int], Streams]
WORK = {"plan": guard_plans.accept_plan, "round": do_round, "finish": finish}


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
        self._refused = ""

    def close(self) -> None:
        """Close ledger and memory."""
        self.ledger.close()
        self.store.close()

    def answer(self, message: bytes | bytearray) -> bytes:
        """Return the answer to a request; a request that is not granted gets a signed refusal."""
        request = None
        try:
            request = unseal(message, self.coordinator, self.policy.bytes, self.silo)
            return self._answer(request)
        except Problem as problem:
            if str(problem) != self._refused:  # whoever waits for an approval asks every few seconds
                self.log(f"refused: {problem}")
            self._refused = str(problem)
            words = str(problem).replace(str(self.folder.path), "the guard's folder")
            return refusal(self, request, "refused", words)
        except Exception as error:  # a guard stays up; what went wrong is for its owner's eyes only
            self.log(f"failed: {type(error).__name__}: {error}")
            return refusal(self, request, "failed", "the guard failed; its owner finds the reason in its log")

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
        self.coordinator.check(COORDINATOR)  # a guard lives long, and a key may expire
        return WORK.get(request.kind, do_sum_step)(self, request)

    def _check_witnessed(self, request: Envelope) -> None:
        """Raise `Problem` if the coordinator has seen rows of the ledger that it does not have."""
        facts = request.facts.get("witnessed")
        if facts is not None:
            seen = head_in(facts)
            if seen is None or seen.public != self.key.public.public:
                raise Problem("the head that the coordinator has seen was not signed by this guard's key")
            if (why := self.ledger.why_refused(seen)) is not None:
                self.stale = f"the ledger is not the newest: the coordinator {why}, so nothing is answered"
        if self.stale is not None:
            raise Problem(self.stale)

    def _hello(self, request: Envelope) -> bytes:
        """Say where the ledger stands, and how far the training is."""
        known = self.store.training(request.training)
        return sealed(self, request, "hello", {"round": 0 if known is None else known.round}).message

    def prepare(self, file: PlanFile) -> Prepared:
        """Return a training of a plan, with this silo's examples; raise `Problem` if they do not fit.

        It is kept by the hash of the plan: no other plan can take its place.
        """
        if file.hash not in self._prepared:
            prepared = guard_plans.prepare(self, file)
            self._prepared.clear()  # examples of one training at a time stay in memory
            self._prepared[file.hash] = prepared
        return self._prepared[file.hash]

    def check_policy(self, prepared: Prepared) -> None:
        """Raise one `Problem` that lists every rule a plan breaks."""
        guard_plans.check_policy(self, prepared)

    def log(self, line: str) -> None:
        """Add a line to the guard's log."""
        add_line(self.folder.path, line)
