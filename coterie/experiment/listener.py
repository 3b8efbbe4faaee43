"""What a caller hears while a study is planned and trained."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..errors import Problem, shown

if TYPE_CHECKING:
    from .experiment import Experiment

OnRound = Callable[[str, int, float | None], None]
TOLD = {
    "on_note": ("note",),
    "on_planning": ("method", "done", "total"),
    "on_planned": ("method",),
    "on_round": ("experiment", "round", "score"),
    "on_stopping": (),
}


def _ignore(*_: Any) -> None:
    pass


def check_callback(name: str, function: Any, arguments: tuple[str, ...]) -> None:
    """Raise `Problem` unless a function can be called with so many arguments."""
    words = f"({', '.join(arguments)})"
    if not callable(function):
        raise Problem(f"{name}: expected a function of {words}, got {shown(function)}")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise Problem(f"{name}: the function must take {words}, but {error}") from None
    except ValueError:  # some built-in functions do not say what they take
        return


@dataclass(frozen=True)
class Listener:
    """What a caller hears while a study is planned and trained; each function may be left out.

    `on_note(text)`: something to know before training. `on_planning(method, done, total)`: noise was found
    for `done` of `total` silos (0 of 0 where it begins), then `on_planned(method)`. `on_round(experiment,
    number, score)`: a round is done; the score is None in most rounds. `on_stopping()`: Ctrl-C was pressed,
    and the round is finished first.
    """

    on_note: Callable[[str], None] = _ignore
    on_planning: Callable[[str, int, int], None] = _ignore
    on_planned: Callable[[str], None] = _ignore
    on_round: Callable[[Experiment, int, float | None], None] = _ignore
    on_stopping: Callable[[], None] = _ignore

    def __post_init__(self) -> None:
        for field in fields(self):
            check_callback(field.name, getattr(self, field.name), TOLD[field.name])


def listener_of(listener: Any, on_round: Any) -> Listener | None:
    """Return what hears a call that gives a listener, or a function of (method, round, score), or neither."""
    if listener is not None and not isinstance(listener, Listener):
        raise Problem(f"listener: expected a Listener, got {shown(listener)}; on_round takes a function")
    if on_round is None:
        return listener
    if listener is not None:
        raise Problem("on_round: the listener hears of rounds already; give one of the two")
    check_callback("on_round", on_round, ("method", "round", "score"))
    return Listener(on_round=lambda experiment, *told: on_round(experiment.method.name, *told))
