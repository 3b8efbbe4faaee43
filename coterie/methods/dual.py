"""Task relationships by dual coordinates (Hu, Guo, Li, Pei, Gong 2020; after CoCoA and Mocha).

The objective is the sum of all losses + lam tr(W Omega^-1 W'), Omega positive with trace 1. Its dual has a
number a_i for each example; models follow from them, W = Omega X a / (2 lam). In a round silos move their
duals with Omega fixed, and send what that adds to X a; every `inner` rounds the server relates the models
anew, Omega = (W'W)^(1/2) / trace, and computes W with it (the paper leaves W as it is, so that it no longer
belongs to its duals).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ..errors import Problem
from ..protocol.merging import Merger
from ..protocol.method import LearnedRelations, Method, Start
from ..protocol.roster import Roster
from ..protocol.settings import PerRun, per_run, setting

if TYPE_CHECKING:
    from ..protocol.oracle import Oracle

FLOOR = 1e-3  # of the largest eigenvalue of Omega: relations that were lost may come back
LEAST = 1e-9  # of lam and beta: smaller ones are nothing in float32
FORMS = ("examples", "upload", "paper")
State = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Dual(Method):
    """Every silo learns a linear model by dual coordinates; the server learns how silos are related.

    Duals stay at home, and only the door reads them: what a silo sends, relations and models are released.
    Silos predict with the model that the server gives back, never with their duals. Without privacy
    `form` "upload" is the plain algorithm.
    """

    name: ClassVar[str] = "dual"
    paper: ClassVar[str] = "Hu et al. 2020"
    linear: ClassVar[bool] = True
    lam: PerRun = setting(
        0.1, minimum=LEAST, maximum=1e9, help="strength of the relations; losses are added up, not averaged"
    )
    xi: PerRun = setting(1.0, above=0, maximum=1, help="share of each silo's move that is made")
    beta: PerRun = setting(
        0.0, minimum=0, maximum=1e9, help="correction for moving at once; 0: xi times the silos, safe"
    )
    inner: int = setting(
        10, minimum=0, whole=True, fixed=True, help="rounds between two updates of relations; 0: none"
    )
    form: str = setting(
        "examples", choices=FORMS, fixed=True,
        help="what is noised: each example's move, or a whole upload; paper: its noise, certifies nothing",
    )  # fmt: skip
    sigma: PerRun = setting(0.0, minimum=0, help="of form paper: sigma1, the noise on duals over s1")
    ratio: PerRun = setting(1.0, above=0, help="of form paper: r, sigma1 over sigma2, the noise on uploads")

    def __post_init__(self) -> None:
        super().__post_init__()
        betas = self.beta if isinstance(self.beta, tuple) else (self.beta,)
        if any(0 < beta < LEAST for beta in betas):
            raise Problem(f"beta must be 0 (safe) or at least {LEAST:g}")
        sigmas = self.sigma if isinstance(self.sigma, tuple) else (self.sigma,)
        if self.form != "paper" and any(sigmas):
            raise Problem(
                f"sigma is the noise of form 'paper'; with '{self.form}' it follows from the budgets"
            )

    def remarks(self, roster: Roster, present: Tensor | None) -> list[str]:
        """Say that the paper's noise is no guarantee."""
        said = "dual, form = paper: the noise is the paper's, which certifies nothing: for comparison only"
        return [said] if self.form == "paper" else []

    def init(self, task: Start, silos: int) -> tuple[State, Tensor]:
        """Start at zero, all duals too, with silos that are not related."""
        zeros = torch.zeros_like(task.initial()).expand(-1, silos, -1)
        omega = (torch.eye(silos, device=zeros.device) / silos).expand(len(zeros), -1, -1)
        shared = {"models": zeros, "sums": zeros, "omega": omega, "stiffness": self._stiffness(omega)}
        return shared | {"round": torch.zeros_like(zeros[:, :1, :1])}, task.duals(silos)

    def broadcast(self, shared: State) -> State:
        """Send every silo its model, and how far a unit of its upload moves it."""
        sent = {"model": shared["models"], "stiffness": shared["stiffness"]}
        return sent | {"spread": self._spread(shared["omega"])} if self.form == "paper" else sent

    def local(self, sent: State, own: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        """Move the silo's duals; upload what that adds up to."""
        start, stiffness = sent["model"], sent["stiffness"]
        if self.form != "paper":
            whole = self.form == "upload"
            return oracle.solve_dual(start, own, stiffness=stiffness, xi=self.xi, whole=whole)
        sigma, ratio = (per_run(value).to(start.device) for value in (self.sigma, self.ratio))
        noise = (sigma * sent["spread"], sigma / ratio)
        return oracle.solve_dual(start, own, stiffness=stiffness, xi=self.xi, unproven=noise)

    def merge(self, shared: State, uploads: Tensor, merger: Merger) -> State:
        """Add up what was sent, relate the models anew if it is time, and compute them."""
        if merger.roster.groups is not None:
            raise Problem("'dual' relates all silos, and cannot learn within clusters: not after ifca")
        sums, clock = shared["sums"] + uploads, shared["round"] + 1
        omega, stiffness = shared["omega"], shared["stiffness"]
        models = self._models(sums, omega)
        if self.inner and int(clock[0, 0, 0]) % self.inner == 0:
            omega = related(models)
            models, stiffness = self._models(sums, omega), self._stiffness(omega)
        return {"models": models, "sums": sums, "omega": omega, "stiffness": stiffness, "round": clock}

    def personal(self, sent: State, own: Tensor) -> Tensor:
        """Predict with what the server gives back."""
        return sent["model"]

    def learned_relations(self, shared: State) -> LearnedRelations:
        """Give Omega and its strength."""
        return LearnedRelations(shared["omega"], per_run(self.lam))

    def _models(self, sums: Tensor, omega: Tensor) -> Tensor:
        scale = 1 / (2 * per_run(self.lam).to(sums.device))
        return scale * (omega.double() @ sums.double()).float()

    def _stiffness(self, omega: Tensor) -> Tensor:
        """Give correction x Omega_tt / (2 lam), `[runs, silos, 1]`."""
        own = omega.diagonal(dim1=1, dim2=2).unsqueeze(-1)
        return self._correction(omega) * own / (2 * per_run(self.lam).to(omega.device))

    def _correction(self, omega: Tensor) -> Tensor:
        share, beta = (per_run(value).to(omega.device) for value in (self.xi, self.beta))
        return torch.where(beta > 0, beta, share * omega.shape[1])

    def _spread(self, omega: Tensor) -> Tensor:
        """Give (8 lam + beta) / beta, the paper's s1 times the number of examples, `[runs, 1, 1]`."""
        correction = self._correction(omega)
        return (8 * per_run(self.lam).to(omega.device) + correction) / correction


def related(models: Tensor) -> Tensor:
    """Give Omega = (W'W)^(1/2) / trace of models `[runs, silos, P]`.

    Silos whose models are all zero are not related; numbers that are not finite count as zero.
    """
    wide, silos = torch.where(torch.isfinite(models), models, 0.0).double(), models.shape[1]
    values, vectors = torch.linalg.eigh(wide @ wide.transpose(1, 2))
    roots = values.clamp(min=0).sqrt()
    most = roots.amax(-1, keepdim=True)
    floored = torch.where(most > 0, torch.maximum(roots, FLOOR * most), torch.ones_like(roots))
    shares = floored / floored.sum(-1, keepdim=True)
    omega: Tensor = (vectors * shares.unsqueeze(-2)) @ vectors.transpose(1, 2)
    plain = torch.eye(silos, dtype=omega.dtype, device=omega.device) / silos
    return torch.where(most.unsqueeze(-1) > 0, omega, plain).float()
