"""Approving a plan: what it will do and cost, on one screen, and the owner's word for it."""

from __future__ import annotations

from ..errors import Problem
from ..planning.silo_plan import secure_remarks
from ..privacy.adversaries import ADVERSARIES
from ..privacy.keys import now, stamp
from ..privacy.meaning import meaning_lines, meaning_of
from ..report.terminal import size
from .guard import Guard
from .plan_file import PlanFile
from .prepared import Prepared
from .scores import against, claim_of, score_of
from .traffic import traffic

SCORED = (
    "  at the end, tells the coordinator how its own model scores on its {tests} test examples: {what}, with"
    " noise of deviation {noise:.4g}; every example pays for training and score"
)
TOLD = {"score": "one sum", "histogram": "how many there are by class and prediction"}


def approval_lines(guard: Guard, prepared: Prepared) -> list[str]:
    """Return what a plan will do with a silo's data and what it will cost, as lines of text."""
    experiment, plan, k = prepared.experiment, prepared.plan, prepared.place
    silo, training, file = plan.silos[0][k], experiment.training, prepared.file
    claim, score = claim_of(prepared, ""), score_of(prepared)
    events = claim.events(0, claim.rounds)
    state = guard.ledger.state()
    spent, budget = state.total(plan.unit.name, "shared"), state.budgets.get(plan.unit.name)
    seen = against(prepared)
    up, down = traffic(plan, k)
    protected = [f"{who}: {_epsilon(seen[name])}" for name, who in ADVERSARIES.items()]
    scored = []
    if score is not None and file.scores is not None:
        what = TOLD[file.scores.release]
        scored = [SCORED.format(tests=file.tests[k], what=what, noise=score.noise)]
    return [
        f"Plan {file.hash}",
        f"  training {file.training}, made {file.content['made']} by key {file.coordinator.id}",
        f"  {experiment.labels[0]}, model {file.content['config']['model'].get('name', 'linear')}"
        f" ({experiment.task.layout.size:,} numbers), {len(file.names)} silos, {training.rounds} rounds",
        f"  your silo: '{guard.silo}', {silo.work.size} training examples; batches of about"
        f" {silo.work.expected:g}, {silo.work.steps} step(s) per round",
        f"  sends about {size(up)} and receives {size(down)} in all",
        *scored,
        *_members(file, guard.silo),
        *[f"  not covered: {line}" for line in file.content["facts"]["not_covered"]],
        f"Cost: epsilon at most {silo.epsilon:.4g} at delta {silo.delta:g}, for one {plan.unit.name}",
        *[
            f"  {line}"
            for line in meaning_lines(meaning_of(silo.epsilon, silo.delta, events), plan.unit.name)
        ],
        "  epsilon against " + "; ".join(protected),
        *[f"  {note}" for note in secure_remarks(plan, "secure sums")],
        f"Ledger: epsilon {spent[0]:.4g} and delta {spent[1]:g} spent before"
        + ("" if budget is None else f", of {budget[0]:g} and {budget[1]:g}"),
    ]


def _members(file: PlanFile, own: str) -> list[str]:
    """Return who else takes part: whoever holds these keys answers as that silo."""
    others = [f"{name} (key {key.id})" for name, key in file.keys.items() if name != own]
    return [
        f"  the other silos: {', '.join(others) or 'none'}",
        f"  goes on if {file.fewest} of {len(file.names)} silos answer a round",
    ]


def _epsilon(value: float | None) -> str:
    return "no protection" if value is None else "sees nothing" if value == 0 else f"{value:.4g}"


def check_paid(guard: Guard, prepared: Prepared) -> None:
    """Raise `Problem` if the ledger cannot pay for a plan; one that has begun is paid."""
    state, claim = guard.ledger.state(), claim_of(prepared, "")
    begun = guard.store.training(prepared.file.training) is not None
    if begun or state.filter.affordable(state, claim, partial=False) == claim.rounds:
        return
    at = guard.folder.path
    raise Problem(
        f"the ledger refuses the plan: {state.refusal(claim)}: ask for a plan that spends less, or raise the"
        f" budget: `coterie ledger budget {at / 'ledger'} --raise --reason ... --keys {at / 'keys'} --witness"
        f" {at / guard.folder.table.witness}`, with --epsilon and --delta"
    )


def approve(guard: Guard, prepared: Prepared) -> None:
    """Remember that the owner approved a plan; raise `Problem` if the policy or the ledger forbids it."""
    guard.check_policy(prepared)
    check_paid(guard, prepared)
    guard.store.approve(prepared.file.hash, stamp(now()), "owner")
    guard.log(f"the owner approved plan {prepared.file.hash}")
