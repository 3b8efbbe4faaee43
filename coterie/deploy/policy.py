"""Policies: what a silo's owner lets others ask of the data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..experiment.experiment import Experiment
from ..planning.plan import Plan
from ..privacy.adversaries import ADVERSARIES
from ..privacy.keys import now
from ..privacy.units import UnitName

ANY = "any"
MONTH = 30  # days

POLICY_TEXT = """\
# What may be asked of this silo's data. Nothing is trained that breaks one of these rules.
methods = "any"            # or a list, as ["local", "fedavg", "mr-mtl"]
models = ["linear", "mlp", "cnn"]   # built-in names, or module:function of installed modules
losses = []                # losses of your own that a plan may use: module:function of installed modules
units = ["example", "person", "silo"]
accounting = ["certified"]          # noise as certified; "paper" would allow a paper's own sensitivity
epsilon_per_training = {training}
epsilon_per_month = {month}
delta_per_training = 0.01
trainings_per_month = 100
scores = {scores}             # whether a plan may ask for noised scores on test examples, which cost epsilon
adversaries = ["shared"]   # a plan must protect against each of these: {adversaries}
fewest_silos = {fewest}           # smallest number of silos in a plan
approve = "owner"          # "owner": each plan by `coterie guard approve`; "policy": plans within these rules
seconds = 3600.0           # longest time for one answer
bytes = 1073741824         # largest message
memory = 4294967296        # most bytes that a plan may let a step take (train.memory)
# expires = 2027-01-01
# [members]                # the silos that you know, with the ids of their keys; a plan may name no others
# north = "0123456789abcdef0123456789abcdef"
"""


class PolicyTable(BaseModel):
    """The rules in `policy.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    methods: Literal["any"] | list[str] = "any"
    models: list[str] = ["linear", "mlp", "cnn"]
    losses: list[str] = []
    units: list[UnitName] = ["example", "person", "silo"]
    accounting: list[Literal["certified", "paper"]] = ["certified"]
    epsilon_per_training: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    epsilon_per_month: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta_per_training: Annotated[float, Field(gt=0, le=1)] = 0.01
    trainings_per_month: Annotated[int, Field(ge=1)] = 100
    adversaries: list[Literal["server", "silos", "shared", "personal"]] = ["shared"]
    scores: bool = False
    fewest_silos: Annotated[int, Field(ge=1)] = 3
    approve: Literal["owner", "policy"] = "owner"
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3600.0
    bytes: Annotated[int, Field(ge=1024)] = 2**30
    memory: Annotated[int, Field(ge=1024)] = 2**32
    expires: date | None = None
    members: dict[str, str] = {}

    def expired(self, today: date | None = None) -> str | None:
        """Return a sentence if the policy has expired."""
        today = today or now().date()
        if self.expires is not None and today >= self.expires:
            return f"the policy expired on {self.expires}: the owner must renew it"
        return None


def policy_text(
    training: float, month: float, fewest: int = 3, approve: str = "owner", scores: bool = False
) -> str:
    """Return a commented policy with these limits."""
    text = POLICY_TEXT.format(
        training=float(training),
        month=float(month),
        fewest=fewest,
        scores=str(scores).lower(),
        adversaries=", ".join(ADVERSARIES),
    )
    return text.replace('approve = "owner" ', f'approve = "{approve}"', 1) if approve != "owner" else text


def broken_rules(
    policy: PolicyTable,
    experiment: Experiment,
    plan: Plan,
    model: str,
    k: int,
    spent: Sequence[float],
    against: Mapping[str, float | None],
    scored: bool,
) -> list[str]:
    """Return a sentence for each rule that a plan breaks; `spent` are the epsilons of the last month.

    `against` has epsilon against each adversary. If `scored`, the plan asks for a noised score.
    """
    silo, broken = plan.silos[0][k], [policy.expired()]
    method = experiment.method.name
    if policy.methods != ANY and method not in policy.methods:
        broken.append(f"method: the policy does not allow '{method}'")
    if model not in policy.models:
        broken.append(f"model: the policy does not allow '{model}'")
    if plan.unit.name not in policy.units:
        broken.append(f"unit: the policy does not allow '{plan.unit.name}'")
    if experiment.privacy.sensitivity == "paper" and "paper" not in policy.accounting:
        broken.append("accounting: the policy does not allow a paper's sensitivity")
    if not math.isfinite(silo.epsilon):
        broken.append("epsilon: the plan gives this silo no privacy")
    elif silo.epsilon > policy.epsilon_per_training:
        broken.append(
            f"epsilon: the plan spends {silo.epsilon:.4g}, the policy allows"
            f" {policy.epsilon_per_training:g} per training"
        )
    if sum(spent) + silo.epsilon > policy.epsilon_per_month:
        broken.append(
            f"epsilon: {sum(spent):.4g} was spent in the last {MONTH} days and the plan adds"
            f" {silo.epsilon:.4g}, but the policy allows {policy.epsilon_per_month:g}"
        )
    if silo.delta > policy.delta_per_training:
        broken.append(
            f"delta: the plan spends {silo.delta:g}, the policy allows"
            f" {policy.delta_per_training:g} per training"
        )
    if len(spent) >= policy.trainings_per_month:
        broken.append(
            f"trainings: {len(spent)} began in the last {MONTH} days, and the policy allows"
            f" {policy.trainings_per_month}"
        )
    if scored and not policy.scores:
        broken.append("scores: the policy does not allow a plan to ask for noised scores")
    for name in policy.adversaries:
        if against.get(name, None) is None:
            broken.append(f"adversaries: the plan does not protect this silo against '{name}'")
    if experiment.training.memory > policy.memory:
        broken.append(
            f"memory: the plan's train.memory is {experiment.training.memory:,} bytes, and the policy allows"
            f" {policy.memory:,}"
        )
    if len(plan.silos[0]) < policy.fewest_silos:
        broken.append(
            f"silos: the plan has {len(plan.silos[0])}, the policy wants at least {policy.fewest_silos}"
        )
    return [rule for rule in broken if rule]


def unknown_members(policy: PolicyTable, plan: Plan, keys: Mapping[str, str]) -> list[str]:
    """Return a sentence for each silo of a plan that the owner does not know; `keys` are their keys' ids.

    Masks hide uploads only if the other silos are not the coordinator itself. So somebody must know them: the
    owner who approves each plan and sees the keys, or the policy.
    """
    if not policy.members:
        secure = plan.merge is not None and plan.merge.where == "secure"
        if secure and policy.approve == "policy":
            return ["members: secure sums need a list of the silos' keys, or the owner's approval"]
        return []
    return [
        f"members: the policy does not know '{name}' with key {key}"
        for name, key in keys.items()
        if policy.members.get(name) != key
    ]


def members_text(keys: Mapping[str, str]) -> str:
    """Return the end of a policy: the silos that the owner knows."""
    return "\n[members]\n" + "".join(
        f"{json.dumps(name)} = {json.dumps(key)}\n" for name, key in keys.items()
    )
