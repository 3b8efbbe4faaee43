"""Losses of single examples, and what a model's outputs mean under each loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def squared(output: Tensor, target: Tensor) -> Tensor:
    """Squared error of each prediction."""
    return (output.squeeze(-1) - target).square()


def huber(output: Tensor, target: Tensor, width: float = 1.0) -> Tensor:
    """Half the squared error up to `width`, and a straight line beyond it."""
    return F.huber_loss(output.squeeze(-1), target, reduction="none", delta=width)


def poisson(output: Tensor, target: Tensor) -> Tensor:
    """Poisson loss of each log rate: the negative log-likelihood of a count, up to a constant."""
    return output.squeeze(-1).exp() - target * output.squeeze(-1)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of each prediction, a score for each class."""
    return F.cross_entropy(output, target, reduction="none")


def logistic(output: Tensor, target: Tensor) -> Tensor:
    """Logistic loss of each score; the target is 0 or 1."""
    return F.softplus(-(2 * target - 1) * output.squeeze(-1))


def hinge(output: Tensor, target: Tensor) -> Tensor:
    """Hinge loss of each score; the target is 0 or 1."""
    return (1 - (2 * target - 1) * output.squeeze(-1)).clamp(min=0)


def squared_hinge(output: Tensor, target: Tensor) -> Tensor:
    """Squared hinge loss of each score; the target is 0 or 1."""
    return hinge(output, target).square()


def one_against_rest(output: Tensor, target: Tensor) -> Tensor:
    """Hinge losses of each class against the rest, added up; a score for each class."""
    classes = torch.arange(output.shape[-1], device=output.device)
    signs = 2 * (target.unsqueeze(-1) == classes).to(output.dtype) - 1
    return (1 - signs * output).clamp(min=0).sum(-1)


LOSSES: dict[str, Callable[..., Tensor]] = {
    "squared": squared,
    "huber": huber,
    "poisson": poisson,
    "cross-entropy": cross_entropy,
    "logistic": logistic,
    "hinge": hinge,
    "squared-hinge": squared_hinge,
    "one-against-rest": one_against_rest,
}


# What others call these losses.
ALSO_CALLED = {
    "mse": "squared",
    "l2": "squared",
    "smooth-l1": "huber",
    "count": "poisson",
    "ce": "cross-entropy",
    "nll": "cross-entropy",
    "softmax": "cross-entropy",
    "bce": "logistic",
    "binary-cross-entropy": "logistic",
    "log": "logistic",
    "svm": "hinge",
}


NUMBERS = ("squared", "huber", "poisson")


TWO_CLASSES = ("logistic", "hinge", "squared-hinge")


SCORE_EACH_CLASS = ("cross-entropy", "one-against-rest")


PROBABILITIES = ("cross-entropy", "logistic")


def outputs_of(loss: str, classes: int, targets: int = 0) -> int:
    """Return how many outputs a model needs: one for each of several targets, a score for each class, or one.

    A loss of one's own gets a score for each class.
    """
    if targets:
        return targets
    return classes if classes and loss not in TWO_CLASSES else 1


def predicted_number(loss: str, output: Tensor) -> Tensor:
    """Return the number that each output predicts; the outputs of "poisson" are logarithms of rates."""
    number = output.squeeze(-1)
    return number.exp() if loss == "poisson" else number


def predicted_class(loss: str, output: Tensor) -> Tensor:
    """Return the number of the class that each output predicts."""
    return (output.squeeze(-1) > 0).long() if loss in TWO_CLASSES else output.argmax(-1)


def class_scores(loss: str, output: Tensor) -> Tensor:
    """Return a probability for each class where the loss has one (`PROBABILITIES`), else a score."""
    if loss == "cross-entropy":
        return output.softmax(-1)
    if loss == "logistic":
        return torch.cat([(-output).sigmoid(), output.sigmoid()], -1)
    return torch.cat([-output, output], -1) if loss in TWO_CLASSES else output
