"""MR-MTL that finds its own pull, from what silos have released already.

Write h for the curvature of the loss, and count errors in units of gradients. Around the mean of all
models the gradient of silo k is off by h (its optimum - the optimum of all): of squared length G over
silos, beside V_k by chance, since the silo has n_k examples only. Noisy steps of rate lr with noise s in
each of P coordinates leave a squared error lr s^2 P / (2 (h + lam)), chance leaves V / (h + lam)^2, and
the pull adds G lam^2 / (h (h + lam))^2. The sum is least at

    lam_k = h (q_k h + V_k) / (G - q_k h),    q_k = lr s_k^2 P / 4,

which is lam* = s_loc^2 / tau^2 of mean estimation, in units of h. Where the denominator is not positive
noise outweighs all differences between silos, and the pull is as strong as it may be.

Steps allow no pull above 1 / (lr x steps). A silo that would need a stronger one predicts with its own
model moved toward the mean by what is missing: of w_k - mean the part

    trust_k = G (h + lam) / (h (G + V_k + 2 q_k (h + lam)))

has the least expected error: what silos differ by is G / (h + lam)^2 of its squared length, chance
V / (h + lam)^2 and noise 2 q / (h + lam).

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
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger, weighted_mean
from ..protocol.method import HandOver, Method, Start
from ..protocol.roster import Roster
from ..protocol.settings import PerRun, per_run, setting
from ..protocol.tree import record

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

AUTO = "auto"  # as lam of MR-MTL, it means this method
# How often a silo must have been seen before anything is concluded from it.
ENOUGH = 3
TINY = 1e-12


@record
class Observed(NamedTuple):
    """Running statistics of what silos released, all `[runs, silos, ...]`.

    Averages weight the n-th round by n. `gradient`, `position` and `apart` (from the mean) are averages of
    released vectors; `squares` is the variance of the noise in the averaged gradient, in units of that
    of a step; `behind` and `within` are its covariances with the model and with the average position;
    `slope` and `span` are the sums of the regression of gradients on positions. `seen` counts rounds.
    """

    gradient: Tensor
    position: Tensor
    apart: Tensor
    squares: Tensor
    within: Tensor
    behind: Tensor
    slope: Tensor
    span: Tensor
    seen: Tensor


@record
class Server(NamedTuple):
    """The mean, the models of all silos, their pulls and trusts, and what was observed of them."""

    mean: Tensor
    models: Tensor
    lam: Tensor
    trust: Tensor
    observed: Observed


@record
class Sent(NamedTuple):
    """The mean, and a silo's pull and trust."""

    mean: Tensor
    lam: Tensor
    trust: Tensor


def observe(shared: Server, uploads: Tensor, roster: Roster) -> Observed:
    """Return the statistics after a round; those of absent silos stay."""
    facts, size = facts_of(roster), uploads.shape[-1]
    here = facts.pace > 0 if roster.present is None else roster.present.unsqueeze(-1)
    lam, last = shared.lam, shared.observed
    length, variance = round_of(facts, lam)
    from_mean = shared.models - shared.mean
    gradient = -uploads / length - lam * from_mean
    midway = uploads * (facts.count - 1) / (2 * facts.count)
    share = 2 / (last.seen + 2)
    keep = 1 - share
    moved = shared.models - last.position
    common = facts.noise.square() * size * (last.behind - last.within)
    slope = ((gradient - last.gradient) * moved).sum(-1, keepdim=True) + common
    span = ((moved + midway) * moved).sum(-1, keepdim=True)
    usable = (last.seen >= 2).to(span.dtype)
    decay = (1 - facts.rate * (curvature(last, facts) + lam)).clamp_min(0.0) ** facts.count
    new = Observed(
        gradient=keep * last.gradient + share * gradient,
        position=keep * last.position + share * shared.models,
        apart=keep * last.apart + share * (from_mean + midway),
        squares=keep.square() * last.squares + share.square() * variance,
        within=keep.square() * last.within + keep * share * last.behind,
        behind=keep * decay * last.behind - share * length * variance,
        slope=keep * last.slope + share * usable * slope,
        span=keep * last.span + share * usable * span,
        seen=last.seen + 1,
    )
    return Observed(*(torch.where(here, value, old) for value, old in zip(new, last, strict=True)))


def round_of(facts: Facts, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far a constant gradient moves a model in a round under a pull, and what noise does to it.

    Steps w - lr (g + lam (w - mean)) move by -length (g + lam (start - mean)), where length = (1 - (1 -
    lr lam)^steps) / lam; the noise in a g that is read from that has `variance` times that of a step.
    """
    lam = torch.maximum(lam, 1e-5 / facts.pace)
    shrunk = torch.log1p(-(facts.rate * lam).clamp_max(1.0)) * facts.count
    length = -torch.expm1(shrunk) / lam
    weights = facts.rate * -torch.expm1(2 * shrunk) / (lam * (2 - facts.rate * lam))
    return length, weights / length.square()


def curvature(observed: Observed, facts: Facts) -> Tensor:
    """Return the mean curvature of all silos, at least 0: `[runs, 1, 1]`."""
    weight = facts.precision * (observed.seen >= ENOUGH)
    slope, span = ((weight * part).sum(1, keepdim=True) for part in (observed.slope, observed.span))
    return (slope / span.clamp_min(TINY)).clamp_min(0.0)


def spread(observed: Observed, roster: Roster) -> tuple[Tensor, Tensor]:
    """Return how far apart silos' gradients at the mean model lie, squared, without noise: `[runs, 1, 1]`.

    Where less is left than chance explains, it is twice the deviation that chance has. Also return the
    weight that each silo has in it.
    """
    facts, size = facts_of(roster), observed.gradient.shape[-1]
    weight = facts.precision * (observed.seen >= ENOUGH)
    there = observed.gradient - curvature(observed, facts) * observed.apart
    centred = there - weighted_mean(there, roster.at(None), weight.squeeze(-1))
    total = (weight * centred.square()).sum((1, 2)).reshape(-1, 1, 1)
    weight = weight * (1 - _own_share(roster, weight))
    weights = weight.sum(1, keepdim=True).clamp_min(TINY)
    noise = weight * facts.noise.square() * observed.squares * size
    least = 2 * (noise.square().sum(1, keepdim=True) * 2 / size).sqrt()
    left = torch.maximum(total - noise.sum(1, keepdim=True), least)
    return (left / weights).clamp_min(TINY), weight / weights


def choose(observed: Observed, roster: Roster, share: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pull of each silo, `[runs, silos, 1]`: from 0 to `limit` / (lr x steps); and its trust.

    Trust, from 0 to 1, is the part of its distance from the mean that a silo's model keeps in predictions; it
    is below 1 where the best pull is above the limit.
    """
    facts = facts_of(roster)
    trained = (facts.sizes / facts.sizes.sum() * facts.pace * observed.seen).sum(1, keepdim=True)
    slope = curvature(observed, facts)
    scale = torch.maximum(slope, 1 / trained.clamp_min(TINY))
    total, weight = spread(observed, roster)
    chance = torch.minimum(facts.clip.square() / facts.sizes, share * total)
    differences = total - (weight * chance).sum(1, keepdim=True)
    heat = facts.rate * facts.noise.square() * observed.gradient.shape[-1] / 4
    noisy = heat * slope
    best = scale * (noisy + chance) / (differences - noisy).clamp_min(TINY)
    enough = (observed.seen >= ENOUGH).sum(1, keepdim=True) > 1
    lam = torch.where(enough, best, scale.expand_as(best)) * (trained > 0)
    highest = limit / facts.pace
    lam = torch.minimum(torch.where(torch.isfinite(lam), lam, highest), highest)
    known, stiff = differences.clamp_min(0.0), scale + lam
    kept = known * stiff / (scale * (known + chance + 2 * heat * stiff)).clamp_min(TINY)
    short = enough & (best > highest) & (highest > 0)
    return lam, torch.where(short, kept.nan_to_num(0.0).clamp(0.0, 1.0), torch.ones_like(lam))


def facts_of(roster: Roster) -> Facts:
    """Return what is public about the silos' steps."""
    if roster.steps is None:
        raise Problem("'mr-mtl-auto' needs to know how silos step: the roster has no steps")
    steps = roster.steps
    count, rate, clip, noise = (
        part.unsqueeze(-1) for part in (steps.count, steps.lr, steps.clip, steps.noise)
    )
    variance = noise.square() / count
    precision = 1 / (variance + variance.mean(1, keepdim=True) / 100 + TINY)
    precision = precision / precision.sum(1, keepdim=True)
    sizes = roster.sizes.to(rate.dtype).reshape(1, -1, 1)
    return Facts(sizes, count, rate, rate * count, clip, noise, precision)


def _own_share(roster: Roster, weight: Tensor) -> Tensor:
    """Return the share of each silo in the mean that it is compared with, `[runs, silos, 1]`."""
    total = weight.sum(1, keepdim=True)
    if roster.groups is not None:
        together = roster.groups.unsqueeze(1) == roster.groups.unsqueeze(2)
        total = together.to(weight.dtype) @ weight
    return weight / total.clamp_min(TINY)


@dataclass(frozen=True, eq=False)
class Facts:
    """What is public about silos' steps, `[runs or 1, silos, 1]`; `pace` is lr x steps of a round.

    `precision` weighs what silos tell, by one over the variance of its noise.
    """

    sizes: Tensor
    count: Tensor
    rate: Tensor
    pace: Tensor
    clip: Tensor
    noise: Tensor
    precision: Tensor


@dataclass(frozen=True, kw_only=True)
class MRMTLAuto(Method):
    """MR-MTL with a pull for each silo, estimated from what was released: without trials, at no extra cost.

    Silos do what they do in MR-MTL. The server keeps four vectors per silo, chooses every silo's pull from
    them after each round, and sends it with the mean. Where noise asks for a stronger pull than steps allow,
    silos predict with a model nearer to the mean.
    """

    name: ClassVar[str] = "mr-mtl-auto"
    share: PerRun = setting(
        0.5, minimum=0, maximum=math.nextafter(1, 0), help="most of silos' differences that may be chance"
    )
    limit: PerRun = setting(1.0, minimum=0, maximum=1, help="largest lam x lr x steps of a round")

    def init(self, task: Start, silos: int) -> tuple[Server, Tensor]:
        """Start the mean and every silo from the same vector; nothing is known, and nothing pulls."""
        start = task.initial()
        own = start.expand(-1, silos, -1)
        vectors, numbers = torch.zeros_like(own), torch.zeros_like(own[..., :1])
        observed = Observed(*[vectors] * 3, *[numbers] * 6)
        return Server(start, own, numbers, torch.ones_like(numbers), observed), own

    def broadcast(self, shared: Server) -> Sent:
        """Send the mean, and to each silo its pull and its trust."""
        return Sent(shared.mean, shared.lam, shared.trust)

    def local(self, sent: Sent, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the silo's own model, upload how it moved."""
        trained = oracle.descend(own, toward=sent.mean, strength=sent.lam)
        return trained - own, trained

    def merge(self, shared: Server, uploads: Tensor, merger: Merger) -> Server:
        """Move the mean with the models, and choose the next pull."""
        mean = shared.mean + merger.mean(uploads, everybody=True)
        observed = observe(shared, uploads, merger.roster)
        lam, trust = choose(observed, merger.roster, per_run(self.share), per_run(self.limit))
        return Server(mean, shared.models + uploads, lam, trust, observed)

    def personal(self, sent: Sent, own: Tensor) -> Tensor:
        """Predict with the silo's own model, moved toward the mean where the pull could not do it."""
        return torch.where(sent.trust < 1, torch.lerp(sent.mean, own, sent.trust), own)

    def hand_over(self, shared: Server) -> HandOver:
        """Let the next method start from the mean."""
        return HandOver(shared.mean)
