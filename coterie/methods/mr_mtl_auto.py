"""MR-MTL that finds its own pull from what silos have already released.

Let h be the curvature of the loss, and measure errors in units of gradients. Around the mean of all models,
the gradient of silo k is off by h (its optimum - the common optimum). The squared length of this difference,
over silos, is G. Chance adds V_k, since the silo has only n_k examples. Noisy steps of rate lr with noise s
in each of P coordinates leave a squared error lr s^2 P / (2 (h + lam)). Chance leaves V / (h + lam)^2, and
the pull adds G lam^2 / (h (h + lam))^2. The sum is smallest at

    lam_k = h (q_k h + V_k) / (G - q_k h),    q_k = lr s_k^2 P / 4,

which is lam* = s_loc^2 / tau^2 of mean estimation, in units of h. If the denominator is not positive, noise
outweighs all differences between silos, and the pull is as strong as allowed.

The steps limit the pull to 1 / (lr x steps). A silo that needs a stronger pull predicts with its own model
moved toward the mean to make up for it. Keeping the part

    trust_k = G (h + lam) / (h (G + V_k + 2 q_k (h + lam)))

of w_k - mean has the least expected error: the squared length of w_k - mean consists of G / (h + lam)^2 from
differences between silos, V / (h + lam)^2 from chance and 2 q / (h + lam) from noise.

Everything is estimated from uploads, which are already private, and from public facts, so it costs no
privacy.
- Released gradients are uploads without the pull. Their averages over rounds, moved to the mean model by h,
  spread over silos by G + V + noise. The amount of noise is known exactly and is subtracted.
- h is the slope of released gradients over released positions, both minus their averages so far. Both contain
  noise, whose amount is known exactly and is subtracted.
- Training of length t = lr x steps is insensitive to curvature below 1 / t. Where lam is measured in units of
  h, h is therefore at least 1 / t.
- V cannot be told apart from G. We assume that V is at most `share` of the two, and at most clip^2 / n_k, the
  most that clipped gradients can differ by chance.

`docs/lam.md` has the derivation, the measurements, and where the estimate fails.
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

AUTO = "auto"  # the value of MR-MTL's lam that selects this method
# How many rounds a silo must have been seen in before it counts in an estimate.
ENOUGH = 3
TINY = 1e-12


@record
class Observed(NamedTuple):
    """Running statistics of what silos released, all `[runs, silos, ...]`.

    Averages weight the n-th round by n. `gradient`, `position` and `apart` (the distance from the mean) are
    averages of released vectors. `squares` is the noise variance of the averaged gradient, relative to that
    of one step; `behind` and `within` are its covariances with the model and with the average position.
    `slope` and `span` are the sums in the regression of gradients on positions. `seen` counts rounds.
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
    """The mean, the models of all silos, their pulls and trusts, and the statistics observed so far."""

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
    """Return the statistics after a round; those of absent silos stay the same."""
    facts, size = facts_of(roster), uploads.shape[-1]
    is_present = facts.pace > 0 if roster.present is None else roster.present.unsqueeze(-1)
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
    return Observed(*(torch.where(is_present, value, old) for value, old in zip(new, last, strict=True)))


def round_of(facts: Facts, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Return `length`, how far a constant gradient moves a pulled model per round, and `variance`.

    Steps w - lr (g + lam (w - mean)) move the model by -length (g + lam (start - mean)), where
    length = (1 - (1 - lr lam)^steps) / lam. The noise in a g computed from this move has `variance` times the
    variance of one step.
    """
    lam = torch.maximum(lam, 1e-5 / facts.pace)
    shrunk = torch.log1p(-(facts.rate * lam).clamp_max(1.0)) * facts.count
    length = -torch.expm1(shrunk) / lam
    weights = facts.rate * -torch.expm1(2 * shrunk) / (lam * (2 - facts.rate * lam))
    return length, weights / length.square()


def curvature(observed: Observed, facts: Facts) -> Tensor:
    """Return the mean curvature over all silos, at least 0, `[runs, 1, 1]`."""
    weight = facts.precision * (observed.seen >= ENOUGH)
    slope, span = ((weight * part).sum(1, keepdim=True) for part in (observed.slope, observed.span))
    return (slope / span.clamp_min(TINY)).clamp_min(0.0)


def spread(observed: Observed, roster: Roster) -> tuple[Tensor, Tensor]:
    """Return the squared spread of silos' gradients at the mean model, `[runs, 1, 1]`, and silos' weights.

    The noise is subtracted. If what remains could be chance, the spread is twice the standard deviation of
    chance.
    """
    facts, size = facts_of(roster), observed.gradient.shape[-1]
    weight = facts.precision * (observed.seen >= ENOUGH)
    at_mean = observed.gradient - curvature(observed, facts) * observed.apart
    centred = at_mean - weighted_mean(at_mean, roster.at(None), weight.squeeze(-1))
    total = (weight * centred.square()).sum((1, 2)).reshape(-1, 1, 1)
    weight = weight * (1 - _own_share(roster, weight))
    weights = weight.sum(1, keepdim=True).clamp_min(TINY)
    noise = weight * facts.noise.square() * observed.squares * size
    least = 2 * (noise.square().sum(1, keepdim=True) * 2 / size).sqrt()
    left = torch.maximum(total - noise.sum(1, keepdim=True), least)
    return (left / weights).clamp_min(TINY), weight / weights


def choose(observed: Observed, roster: Roster, share: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pull of each silo, from 0 to `limit` / (lr x steps), and its trust, both `[runs, silos, 1]`.

    Trust, from 0 to 1, is the part of its distance from the mean that a silo's model keeps in predictions. It
    is below 1 where the best pull exceeds the limit.
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
        raise Problem("'mr-mtl-auto' needs to know the silos' steps, but the roster has none")
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
    """Return each silo's share in the mean it is compared with, `[runs, silos, 1]`."""
    total = weight.sum(1, keepdim=True)
    if roster.groups is not None:
        together = roster.groups.unsqueeze(1) == roster.groups.unsqueeze(2)
        total = together.to(weight.dtype) @ weight
    return weight / total.clamp_min(TINY)


@dataclass(frozen=True, eq=False)
class Facts:
    """What is public about silos' steps, `[runs or 1, silos, 1]`; `pace` is lr x steps per round.

    `precision` weights each silo's statistics by one over the variance of their noise.
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
    """MR-MTL that estimates each silo's pull from released vectors, without trials or extra cost.

    Silos work as in MR-MTL. The server keeps four vectors per silo, chooses every silo's pull from them after
    each round, and sends it with the mean. Where noise calls for a stronger pull than the steps allow, silos
    predict with a model closer to the mean.
    """

    name: ClassVar[str] = "mr-mtl-auto"
    plain_steps: ClassVar[bool] = True
    share: PerRun = setting(
        0.5,
        minimum=0,
        maximum=math.nextafter(1, 0),
        help="largest share of silos' differences that may be chance",
    )
    limit: PerRun = setting(1.0, minimum=0, maximum=1, help="largest lam x lr x steps per round")

    def init(self, task: Start, silos: int) -> tuple[Server, Tensor]:
        """Start the mean and every silo from the same vector, without statistics and without a pull."""
        start = task.initial()
        own = start.expand(-1, silos, -1)
        vectors, numbers = torch.zeros_like(own), torch.zeros_like(own[..., :1])
        observed = Observed(*[vectors] * 3, *[numbers] * 6)
        return Server(start, own, numbers, torch.ones_like(numbers), observed), own

    def broadcast(self, shared: Server) -> Sent:
        """Send every silo the mean, its pull and its trust."""
        return Sent(shared.mean, shared.lam, shared.trust)

    def local(self, sent: Sent, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Train the silo's own model and upload its change."""
        trained = oracle.descend(own, toward=sent.mean, strength=sent.lam)
        return trained - own, trained

    def merge(self, shared: Server, uploads: Tensor, merger: Merger) -> Server:
        """Update the mean to follow the models, and choose the next pulls."""
        mean = shared.mean + merger.mean(uploads, everybody=True)
        observed = observe(shared, uploads, merger.roster)
        lam, trust = choose(observed, merger.roster, per_run(self.share), per_run(self.limit))
        return Server(mean, shared.models + uploads, lam, trust, observed)

    def personal(self, sent: Sent, own: Tensor) -> Tensor:
        """Predict with the silo's own model, moved toward the mean where the pull was limited."""
        return torch.where(sent.trust < 1, torch.lerp(sent.mean, own, sent.trust), own)

    def learned_silos(self, shared: Server) -> dict[str, Tensor]:
        """Return each silo's pull, and how much of its distance from the mean it keeps in predictions."""
        return {"lam": shared.lam.squeeze(-1), "trust": shared.trust.squeeze(-1)}

    def hand_over(self, shared: Server) -> HandOver:
        """Let the next method start from the mean."""
        return HandOver(shared.mean)
