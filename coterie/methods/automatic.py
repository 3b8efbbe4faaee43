"""MR-MTL that finds its own pull, from what silos have released already.

Write h for the curvature of the loss, and count errors in units of gradients. Around the mean of all
models the gradient of silo k is off by h (its optimum - the optimum of all): of squared length G over
silos, beside V_k by chance, since the silo has n_k examples only. Noisy steps of rate lr with noise s in
each of P coordinates leave a squared error lr s^2 P / (2 (h + lam)), chance leaves V / (h + lam)^2, and
the pull adds G lam^2 / (h (h + lam))^2. The sum is least at

    lam_k = h (q_k h + V_k) / (G - q_k h),    q_k = lr s_k^2 P / 4,

which is lam* = s_loc^2 / tau^2 of mean estimation, in units of h. Where the denominator is not positive
noise outweighs all differences between silos, and the pull is as strong as it may be.

All of it is estimated from uploads, which are private already, and from public facts: it costs nothing.
- Released gradients are uploads without the pull. Their averages over rounds, moved to the mean model by
  h, spread over silos by G + V + a noise that is known exactly, and is taken off.
- h is the slope of released gradients over released positions, both less their averages so far. Noise is
  in both, by an amount that is known exactly, and is taken off.
- Training of length t = lr x steps shapes no curvature below 1 / t: where lam is measured in h, h is at
  least that.
- V cannot be told from G. Assumed: it is at most `share` of the two, and at most clip^2 / n_k, the most
  that clipped gradients can differ by chance.

`docs/lam.md` has the derivation, what was measured, and where it fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..errors import Problem
from ..method import HandOver, Method, PerRun, Start, per_run, setting
from ..roster import Roster

if TYPE_CHECKING:
    from ..oracle import Oracle

State = dict[str, Tensor]
# How often a silo must have been seen before anything is concluded from it.
ENOUGH = 3
TINY = 1e-12


def observe(state: State, uploads: Tensor, roster: Roster) -> State:
    """Give the running statistics after a round, all `[runs, silos, ...]`.

    Averages weight the n-th round by n. `gradient`, `position` and `apart` (from the mean) are averages of
    released vectors, `squares` is the sum of the squared weights; `behind` and `within` are how much of
    the averaged noise is in the model and in its average position; `slope` and `span` are the sums of the
    regression of gradients on positions.
    """
    pace, noise = _pace(roster)
    here = torch.ones_like(pace, dtype=torch.bool) if roster.present is None else roster.present.unsqueeze(-1)
    seen, lam = state["seen"], state["lam"]
    apart = state["models"] - state["mean"] + uploads / 2
    gradient = -uploads / pace - lam * apart
    share = 2 / (seen + 2)
    keep = 1 - share
    moved = state["models"] - state["position"]
    common = _per_step(roster, noise) * uploads.shape[-1] * (state["behind"] - state["within"])
    slope = ((gradient - state["gradient"]) * moved).sum(-1, keepdim=True) - common
    span = moved.square().sum(-1, keepdim=True)
    usable = (seen >= 2).to(span.dtype)
    decay = torch.exp(-pace * (curvature(state) + lam))
    new = {
        "gradient": keep * state["gradient"] + share * gradient,
        "position": keep * state["position"] + share * state["models"],
        "apart": keep * state["apart"] + share * apart,
        "squares": keep.square() * state["squares"] + share.square(),
        "within": keep.square() * state["within"] + keep * share * state["behind"],
        "behind": keep * decay * state["behind"] + share,
        "slope": keep * state["slope"] + share * usable * slope,
        "span": keep * state["span"] + share * usable * span,
        "seen": seen + 1,
    }
    return {name: torch.where(here, value, state[name]) for name, value in new.items()}


def curvature(state: State) -> Tensor:
    """Give the mean curvature of all silos, at least 0: `[runs, 1, 1]`."""
    weight = state["models"].new_ones(()) * (state["seen"] > ENOUGH - 1)
    slope, span = ((weight * state[name]).sum(1, keepdim=True) for name in ("slope", "span"))
    return (slope / span.clamp_min(TINY)).clamp_min(0.0)


def spread(state: State, roster: Roster) -> Tensor:
    """Give how far silos' gradients at the mean model lie apart, squared, without the noise: `[runs, 1, 1]`.

    Where less is left than chance explains, it is twice the deviation that chance has.
    """
    _, noise = _pace(roster)
    count = roster.steps.count.unsqueeze(-1) if roster.steps is not None else torch.ones_like(noise)
    known = (state["seen"] >= ENOUGH).to(noise.dtype)
    size = state["gradient"].shape[-1]
    there = state["gradient"] - curvature(state) * state["apart"]
    everybody = roster.at(None)
    centred = there - everybody.mean(there, known.squeeze(-1))
    freedom = (known.sum(1, keepdim=True) - _circles(roster, known)).clamp_min(1.0)
    total = (known * centred.square()).sum((1, 2), keepdim=True) / freedom
    variance = noise.square() / count * state["squares"] * size
    mean_noise = (known * variance).sum(1, keepdim=True) / known.sum(1, keepdim=True).clamp_min(1.0)
    least = 2 * mean_noise * torch.sqrt(2 / (freedom * size))
    return torch.maximum(total - mean_noise, least).clamp_min(TINY)


def choose(state: State, roster: Roster, share: Tensor, limit: Tensor) -> Tensor:
    """Give the pull of each silo, `[runs, silos, 1]`: from 0 to `limit` / (lr x steps)."""
    pace, noise = _pace(roster)
    sizes = roster.sizes.to(pace.dtype).reshape(1, -1, 1)
    clip = roster.steps.clip.unsqueeze(-1) if roster.steps is not None else torch.ones_like(pace)
    trained = (sizes / sizes.sum() * pace * state["seen"]).sum(1, keepdim=True)
    slope = curvature(state)
    scale = torch.maximum(slope, 1 / trained)
    total = spread(state, roster)
    chance = torch.minimum(clip.square() / sizes, share * total)
    differences = total - chance.mean(1, keepdim=True)
    noisy = _per_step(roster, noise) * state["models"].shape[-1] / 4 * slope
    best = scale * (noisy + chance) / (differences - noisy).clamp_min(TINY)
    enough = (state["seen"] >= ENOUGH).sum(1, keepdim=True) > 1
    lam = torch.where(enough, best, scale.expand_as(best))
    highest = limit / pace
    return torch.minimum(torch.where(torch.isfinite(lam), lam, highest), highest)


def _pace(roster: Roster) -> tuple[Tensor, Tensor]:
    """Give the length of a silo's training in a round, lr x steps, and its noise: `[runs, silos, 1]`."""
    if roster.steps is None:
        raise Problem("'mr-mtl-auto' needs to know how silos step: the roster has no steps")
    steps = roster.steps
    return (steps.lr * steps.count).unsqueeze(-1), steps.noise.unsqueeze(-1)


def _per_step(roster: Roster, noise: Tensor) -> Tensor:
    """Give lr s^2, `[runs, silos, 1]`."""
    rate = roster.steps.lr.unsqueeze(-1) if roster.steps is not None else torch.ones_like(noise)
    return rate * noise.square()


def _circles(roster: Roster, known: Tensor) -> Tensor:
    """Count the groups that learn together, of silos that are known: `[runs, 1, 1]`."""
    if roster.groups is None:
        return torch.ones_like(known[:, :1])
    together = (roster.groups.unsqueeze(1) == roster.groups.unsqueeze(2)) * known.transpose(1, 2)
    return (known.squeeze(-1) / together.sum(2).clamp_min(1.0)).sum(1).reshape(-1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class MRMTLAuto(Method):
    """MR-MTL with a pull for each silo that is estimated from what was released: no trials, no privacy.

    Silos do what they do in MR-MTL. The server keeps four vectors a silo, chooses every silo's pull from
    them after each round, and sends it with the mean.
    """

    name: ClassVar[str] = "mr-mtl-auto"
    share: PerRun = setting(
        0.5, minimum=0, maximum=math.nextafter(1, 0), help="most of silos' differences that may be chance"
    )
    limit: PerRun = setting(1.0, minimum=0, help="largest lam x lr x steps of a round")

    def init(self, task: Start, silos: int) -> tuple[State, Tensor]:
        """Start the mean and every silo from the same vector; nothing is known, and nothing pulls."""
        start = task.initial()
        own = start.expand(-1, silos, -1)
        vectors, numbers = torch.zeros_like(own), torch.zeros_like(own[..., :1])
        names = ("squares", "behind", "within", "slope", "span", "seen", "lam")
        state = dict.fromkeys(("gradient", "position", "apart"), vectors) | dict.fromkeys(names, numbers)
        return {"mean": start, "models": own, **state}, own

    def broadcast(self, shared: State) -> State:
        """Send the mean, and to each silo its pull."""
        return {"mean": shared["mean"], "lam": shared["lam"]}

    def local(self, sent: State, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the silo's own model, upload how it moved."""
        trained = oracle.descend(own, toward=sent["mean"], strength=sent["lam"])
        return trained - own, trained

    def merge(self, shared: State, uploads: Tensor, roster: Roster) -> State:
        """Move the mean with the models, and choose the next pull."""
        mean = shared["mean"] + roster.mean(uploads)
        state = {"mean": mean, "models": shared["models"] + uploads, **observe(shared, uploads, roster)}
        lam = choose(state, roster, per_run(self.share), per_run(self.limit))
        return {**state, "lam": lam}

    def personal(self, sent: State, own: Tensor) -> Tensor:
        """Predict with the silo's own model."""
        return own

    def hand_over(self, shared: State) -> HandOver:
        """Let the next method begin from the shared model."""
        return HandOver(shared["mean"])
