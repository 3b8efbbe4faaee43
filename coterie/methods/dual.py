"""Task relationships by dual coordinates (Hu, Guo, Li, Pei, Gong 2020; after CoCoA and Mocha).

The objective is the sum of all losses + lam tr(W Omega^-1 W'), where Omega is positive with trace 1. Its dual
has one number a_i per example, and the models follow from these: W = Omega X a / (2 lam). In each round,
silos move their duals with Omega fixed and send the resulting change of X a. Every `inner` rounds the server
relearns the relations, Omega = (W'W)^(1/2) / trace, and recomputes W from them. (The paper leaves W
unchanged, so that W no longer matches its duals.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.method import FederationFacts, LearnedRelations, Method, Start, TaskFacts
from ..protocol.roster import Roster
from ..protocol.settings import PerRun, per_run, setting
from ..protocol.tree import record
from .omega import omega_of

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

LEAST = 1e-9  # the least lam and beta; smaller ones vanish in float32
FORMS = ("examples", "upload", "paper")


@record
class Server(NamedTuple):
    """Models W and sums X a, both `[runs, silos, P]`, Omega, and how far one unit of a sum moves a model."""

    models: Tensor
    sums: Tensor
    omega: Tensor
    stiffness: Tensor


@record
class Sent(NamedTuple):
    """A silo's model, how far one unit of its upload moves it and, for form "paper", the noise width."""

    model: Tensor
    stiffness: Tensor
    spread: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Dual(Method):
    """Every silo learns a linear model by dual coordinates; the server learns how silos are related.

    Duals stay in their silo, and only the door reads them. Uploads, relations and models are released. Silos
    predict with the model that the server sends back, never with their duals. Without privacy, `form`
    "upload" is the plain algorithm.
    """

    name: ClassVar[str] = "dual"
    paper: ClassVar[str] = "Hu et al. 2020"
    linear: ClassVar[bool] = True
    lam: PerRun = setting(
        0.1, minimum=LEAST, maximum=1e9, help="strength of the relations; losses are summed, not averaged"
    )
    xi: PerRun = setting(1.0, above=0, maximum=1, help="share of each silo's move that is applied")
    beta: PerRun = setting(
        0.0,
        minimum=0,
        maximum=1e9,
        help="correction for simultaneous moves; 0 means xi x silos, which is safe",
    )
    inner: int = setting(
        10,
        minimum=0,
        whole=True,
        fixed=True,
        help="rounds between updates of the relations; 0 for no updates",
    )
    form: str = setting(
        "examples", choices=FORMS, fixed=True,
        help="what gets noise: each example's move, or a whole upload; 'paper' adds the paper's noise and"
        " certifies nothing",
    )  # fmt: skip
    sigma: PerRun = setting(
        0.0, minimum=0, help="form 'paper' only: sigma1, the noise on duals divided by s1"
    )
    ratio: PerRun = setting(
        1.0, above=0, help="form 'paper' only: r = sigma1 / sigma2, where sigma2 is the noise on uploads"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        betas = self.beta if isinstance(self.beta, tuple) else (self.beta,)
        if any(0 < beta < LEAST for beta in betas):
            raise Problem(f"beta must be 0 (safe) or at least {LEAST:g}")
        sigmas = self.sigma if isinstance(self.sigma, tuple) else (self.sigma,)
        if self.form != "paper" and any(sigmas):
            raise Problem(
                f"sigma applies only to form 'paper'; with form '{self.form}' the noise follows from the"
                " budgets"
            )

    def check(self, task: TaskFacts, federation: FederationFacts) -> None:
        """Raise a Problem unless the model is linear and, under privacy, every example has norm at most 1."""
        task.check_linear()
        federation.check_norms()

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Return a warning if the noise is the paper's, which guarantees nothing."""
        warning = "dual, form = paper: the paper's noise certifies nothing; use this form for comparison only"
        return [warning] if self.form == "paper" else []

    def init(self, task: Start, silos: int) -> tuple[Server, Tensor]:
        """Start with zero models, zero duals and unrelated silos."""
        zeros = torch.zeros_like(task.initial()).expand(-1, silos, -1)
        omega = (torch.eye(silos, device=zeros.device) / silos).expand(len(zeros), -1, -1)
        return Server(zeros, zeros, omega, self._stiffness(omega)), task.duals(silos)

    def broadcast(self, shared: Server) -> Sent:
        """Send every silo its model, and how far one unit of its upload moves it."""
        spread = self._spread(shared.omega) if self.form == "paper" else None
        return Sent(shared.models, shared.stiffness, spread)

    def local(self, sent: Sent, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Move the silo's duals, and upload the sum of these moves."""
        start, stiffness = sent.model, sent.stiffness
        if self.form == "paper" and sent.spread is not None:
            sigma, ratio = (per_run(value).to(start.device) for value in (self.sigma, self.ratio))
            noise = (sigma * sent.spread, sigma / ratio)
            return oracle.solve_dual(start, own, stiffness=stiffness, xi=self.xi, unproven=noise)
        whole = self.form == "upload"
        return oracle.solve_dual(start, own, stiffness=stiffness, xi=self.xi, whole=whole)

    def merge(self, shared: Server, uploads: Tensor, merger: Merger) -> Server:
        """Add the uploads, relearn the relations every `inner` rounds, and recompute the models."""
        if merger.roster.groups is not None:
            raise Problem(
                "'dual' relates all silos, so it cannot learn within clusters; do not use it after 'ifca'"
            )
        sums, omega, stiffness = shared.sums + uploads, shared.omega, shared.stiffness
        models = self._models(sums, omega)
        if self.inner and (merger.roster.round + 1) % self.inner == 0:
            omega = omega_of(models)
            models, stiffness = self._models(sums, omega), self._stiffness(omega)
        return Server(models, sums, omega, stiffness)

    def personal(self, sent: Sent, own: Tensor) -> Tensor:
        """Predict with the model that the server sends back."""
        return sent.model

    def learned_relations(self, shared: Server) -> LearnedRelations:
        """Return Omega, and the strength `lam` of the relations."""
        return LearnedRelations(shared.omega, per_run(self.lam))

    def _models(self, sums: Tensor, omega: Tensor) -> Tensor:
        scale = 1 / (2 * per_run(self.lam).to(sums.device))
        return scale * (omega.double() @ sums.double()).float()

    def _stiffness(self, omega: Tensor) -> Tensor:
        """Return correction x Omega_tt / (2 lam), `[runs, silos, 1]`."""
        diagonal = omega.diagonal(dim1=1, dim2=2).unsqueeze(-1)
        return self._correction(omega) * diagonal / (2 * per_run(self.lam).to(omega.device))

    def _correction(self, omega: Tensor) -> Tensor:
        share, beta = (per_run(value).to(omega.device) for value in (self.xi, self.beta))
        return torch.where(beta > 0, beta, share * omega.shape[1])

    def _spread(self, omega: Tensor) -> Tensor:
        """Return (8 lam + beta) / beta, the paper's s1 times the number of examples, `[runs, 1, 1]`."""
        correction = self._correction(omega)
        return (8 * per_run(self.lam).to(omega.device) + correction) / correction
