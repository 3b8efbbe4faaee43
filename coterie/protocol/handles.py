"""Handles: what a method may pass on but not look into.

Under the unit 'silo' a server may not see an upload before it is clipped, added up and noised. So `merge`
gets a handle in place of each upload, in the dry run and in training alike, and only the merger it came with
knows what stands behind it. Who took part in a round is hidden in the same way.

What this is worth: the tensors are not among the attributes of a handle, a merger or an oracle, so a method
cannot use them by mistake, nor behave in the dry run and look in training. Code in the same process that
means harm can still find them, through closures, frames or the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..errors import Refused
from .merging import AS_SENT, Merger
from .roster import Roster
from .tree import Tree, map_leaves

LOOKS = (
    "merge looks into raw uploads: under the unit 'silo' they are merged as they were sent, so it may only"
    " ask for merger.mean(uploads) or merger.mix(uploads, matrix)"
)
WHO_CAME = "merge looks at who took part in the round, which stays hidden under the unit 'silo'"
OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul and rand"
    " or ror xor rxor neg pos abs invert lt le gt ge getitem setitem iter len contains bool float int index"
    " complex array copy deepcopy reduce_ex"
).split()


class Handle:
    """Stands for a tensor that a method may not see; every use but passing it on is refused."""

    __slots__ = ("__weakref__", "_why")

    def __init__(self, why: str = LOOKS) -> None:
        object.__setattr__(self, "_why", why)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Refused(self._why)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Refused(self._why)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raise `Refused`: no operation of torch takes a handle."""
        refuse_handles((args, kwargs))

    def __repr__(self) -> str:
        return "<a handle of what stays hidden>"


def _refuses(name: str) -> Callable[..., Any]:
    def operator(self: Handle, *given: Any) -> Any:
        raise Refused(self._why)

    operator.__name__ = name
    return operator


for _name in OPERATORS:
    setattr(Handle, f"__{_name}__", _refuses(f"__{_name}__"))


def refuse_handles(value: Any) -> None:
    """Raise `Refused` if there is a handle in a tree, or among the arguments of an operation."""
    if isinstance(value, Handle):
        raise Refused(value._why)
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            refuse_handles(part)


def hide_uploads(merger: Merger, uploads: Tree) -> tuple[Tree, Merger]:
    """Return handles in place of uploads, and the merger that takes them and nothing else."""
    pairs: list[tuple[Handle, Tensor]] = []

    def hide(upload: Tensor) -> Handle:
        pairs.append((Handle(), upload))
        return pairs[-1][0]

    def behind(handle: Any) -> Tensor:
        for known, upload in pairs:
            if known is handle:
                return upload
        raise Refused(AS_SENT)

    def closed(inner: Merger) -> ClosedMerger:
        requests: dict[str, Callable[..., Any]] = {
            "mean": lambda upload, *given: inner.mean(behind(upload), *given),
            "mix": lambda upload, matrix: inner.mix(behind(upload), matrix),
            "next_clip": inner.next_clip,
            "clipping": lambda clip: closed(inner.clipping(clip)),
            "within": lambda groups: closed(inner.within(groups)),
            "after": lambda rounds: closed(inner.after(rounds)),
        }
        return ClosedMerger(_hidden(inner.roster), lambda what, *given: requests[what](*given))

    return map_leaves(hide, uploads), closed(merger)


def _hidden(roster: Roster) -> Roster:
    """Return a roster that does not tell who takes part, unless everybody does."""
    return roster if roster.present is None else replace(roster, present=Handle(WHO_CAME))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False, repr=False)
class ClosedMerger(Merger):
    """A merger of uploads that nobody sees: it takes handles, and has no reference to what it merges."""

    ask: Callable[..., Any]

    def mean(self, uploads: Any, weights: Tensor | None = None, everybody: bool = False) -> Tensor:
        """Return the mean over the silos of the round."""
        return self.ask("mean", uploads, weights, everybody)  # type: ignore[no-any-return]

    def mix(self, uploads: Any, matrix: Tensor) -> Tensor:
        """Return sums of uploads by a public matrix."""
        return self.ask("mix", uploads, matrix)  # type: ignore[no-any-return]

    def clipping(self, clip: Tensor) -> ClosedMerger:
        """Return the merger that clips uploads at `[runs, 1, 1]`."""
        return self.ask("clipping", clip)  # type: ignore[no-any-return]

    def next_clip(self, clip: Tensor) -> Tensor:
        """Return the clip of the next round."""
        return self.ask("next_clip", clip)  # type: ignore[no-any-return]

    def within(self, groups: Tensor | None) -> ClosedMerger:
        """Return the merger of silos that learn within groups."""
        return self.ask("within", groups)  # type: ignore[no-any-return]

    def after(self, rounds: int) -> ClosedMerger:
        """Return the merger whose roster counts rounds from the end of the first few."""
        return self.ask("after", rounds)  # type: ignore[no-any-return]
