"""How a guard accepts a plan: its checks, the owner's approval, and the charge to the ledger.

What can be known without the examples is checked first. A refused plan leaves nothing behind.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ..data.federation import Silo
from ..data.persons import PersonFacts
from ..errors import Problem
from ..privacy.keys import now, parse_time, stamp
from ..protocol.envelope import Envelope
from ..tasks.code import allowing
from .plan_file import PlanFile, plan_of, read_plan
from .policy import MONTH, broken_rules, unknown_members
from .prepared import Prepared
from .replies import remembered, sealed
from .scores import against, claim_of, score_of
from .store import Training
from .sum_terms import check_sums

if TYPE_CHECKING:
    from .guard import Guard


def accept_plan(guard: Guard, request: Envelope) -> bytes:
    """Accept a plan that the owner approved, and charge it to the ledger."""
    file = read_plan(bytes(request.body))
    if request.round != 0:
        raise Problem(f"a plan is sent before round 0, not before round {request.round}")
    if file.training != request.training:
        raise Problem(f"the plan is for training {file.training}, not {request.training}")
    if file.coordinator.public != guard.coordinator.public:
        raise Problem("the plan names another coordinator than this guard's")
    known = guard.store.training(file.training)
    if known is not None and known.hash != file.hash:
        raise Problem(f"training {file.training} began with another plan")
    if known is None and guard.policy.approve == "owner":
        check_approved(guard, file)
    prepared = guard.prepare(file)
    if known is None:
        check_policy(guard, prepared)
        check_approved(guard, file)
        epsilon = prepared.plan.silos[0][prepared.place].epsilon
        known = Training(file.training, file.hash, file.text, epsilon, stamp(now()), None, 0, "begun")
        guard.store.begin(known)
    if known.run is None:
        guard.store.update(file.training, run=_claim(guard, prepared))
    guard.log(f"training {file.training} accepted: {prepared.experiment.method.title}, hash {file.hash}")
    return remembered(guard, request, sealed(guard, request, "accepted", {"hash": file.hash}))


def _claim(guard: Guard, prepared: Prepared) -> int:
    """Charge a training to the ledger as planned, once; return its row."""
    label = f"{prepared.experiment.method.title} (training {prepared.file.training})"
    state = guard.ledger.state()
    for run, body in state.runs.items():
        if body.get("label") == label:
            return run  # a crash came after the charge
    return guard.ledger.claim(claim_of(prepared, label)).run


def check_approved(guard: Guard, file: PlanFile) -> None:
    """Raise `Problem` unless the owner approved a plan, or the policy approves such plans."""
    if guard.store.is_approved(file.hash):
        return
    if guard.policy.approve == "policy":
        guard.store.approve(file.hash, stamp(now()), "policy")
        return
    raise Problem(
        f"the plan with hash {file.hash} is not approved at '{guard.silo}': its owner approves it with"
        " `coterie guard approve`"
    )


def check_policy(guard: Guard, prepared: Prepared) -> None:
    """Raise one `Problem` that lists every rule a plan breaks."""
    since = now() - timedelta(days=MONTH)
    others = [each for each in guard.store.trainings() if each.training != prepared.file.training]
    spent = [each.epsilon for each in others if parse_time(each.began, "began") > since]
    rules = (guard.policy, prepared.experiment, prepared.plan, prepared.file.model, prepared.place, spent)
    broken = broken_rules(*rules, against(prepared), score_of(prepared) is not None)
    keys = {name: key.id for name, key in prepared.file.keys.items()}
    broken += unknown_members(guard.policy, prepared.plan, keys)
    if broken:
        raise Problem("the policy refuses the plan: " + "; ".join(broken))


def prepare(guard: Guard, file: PlanFile) -> Prepared:
    """Return a training of a plan, with the silo's examples; raise `Problem` if they do not fit."""
    _check_facts(guard, file)
    code = [*guard.policy.models, *guard.policy.losses]
    modules = [name.partition(":")[0] for name in code if ":" in name]
    experiment = file.experiment(_examples(guard, file), allowing(None, modules))
    plan = plan_of(experiment, file)
    check_sums(file, plan)
    return Prepared(file, experiment, plan, file.place(guard.silo))


def _check_facts(guard: Guard, file: PlanFile) -> None:
    """Raise `Problem` unless the plan names this guard's key and scale, and only code of its list."""
    if file.keys[file.names[file.place(guard.silo)]].public != guard.key.public.public:
        raise Problem(f"the plan names another key of '{guard.silo}' than this guard's")
    if ":" in file.model and file.model not in guard.policy.models:  # nobody's code is even imported
        raise Problem(f"the policy refuses the plan: model: the policy does not allow '{file.model}'")
    if ":" in file.loss and file.loss not in guard.policy.losses:
        raise Problem(f"the policy refuses the plan: loss: the policy does not allow '{file.loss}'")
    known = guard.folder.preparation()
    left_out = set() if known is None else {*known.not_covered} - {*file.content["facts"]["not_covered"]}
    if left_out:
        raise Problem(
            f"the plan does not say that no budget covers this: {'; '.join(sorted(left_out))}: propose it"
            f" from the facts that `coterie guard facts` prints for '{guard.silo}'"
        )
    if file.content["facts"]["scale"] != guard.folder.table.scale:
        raise Problem(
            f"the plan multiplies examples by {file.content['facts']['scale']:g}, but those of"
            f" '{guard.silo}' are prepared for {guard.folder.table.scale:g}"
        )


def _shown(persons: PersonFacts | None) -> str:
    """Return facts about persons in words."""
    if persons is None:
        return "no persons that are told apart"
    rows = f"{persons.largest} rows at most"
    return f"{persons.train} persons in training ({rows}) and {persons.test} in test"


def _examples(guard: Guard, file: PlanFile) -> Silo:
    """Return the silo's examples; raise `Problem` unless they have the sizes and the form of a plan."""
    place, facts = file.place(guard.silo), file.content["facts"]
    own = guard.folder.examples(facts["classes"])
    sizes, wanted = {"train": len(own.y), "test": len(own.test_y)}, facts["silos"][place]
    if {part: wanted[part] for part in sizes} != sizes:
        raise Problem(
            f"the plan says that '{guard.silo}' has {wanted['train']} training and {wanted['test']}"
            f" test examples, but it has {sizes['train']} and {sizes['test']}"
        )
    blank = file.federation().silos[place]
    if blank.persons is not None and own.persons != blank.persons:
        raise Problem(
            f"the plan says that '{guard.silo}' has {_shown(blank.persons)}, but it has {_shown(own.persons)}"
        )
    if (own.x.shape, own.x.dtype) != (blank.x.shape, blank.x.dtype):
        raise Problem(
            f"the plan's examples have shape {list(blank.x.shape[1:])} and type {blank.x.dtype},"
            f" those of '{guard.silo}' {list(own.x.shape[1:])} and {own.x.dtype}"
        )
    return own
