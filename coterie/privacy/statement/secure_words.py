"""What a statement says about a secure sum: what is assumed, and whom that leaves out."""

from __future__ import annotations

from ..distributed import least_threshold
from ..merges import MergeEvents

OTHERS_TOGETHER = (
    "all other silos together, which know their own parts of the noise: only this silo's part protects it"
    " from them"
)


def secure_words(merges: MergeEvents) -> tuple[str, ...]:
    """Return what a secure sum assumes, as sentences about what is not covered; none for other merges."""
    if merges.noise_by != "secure" or not merges.came:
        return ()
    due, colluding = merges.members, merges.colluding
    assumed = (
        f"a server with which more than {colluding} of a round's {due} silos side, or whose silos forget what"
        f" they revealed: of a round's uploads the server sees only the sum, of at least"
        f" {due - merges.dropouts}, after {least_threshold(due, colluding)} silos confirmed whose they are"
    )
    bare = merges.releases()["silos"] is None
    return assumed, *[OTHERS_TOGETHER] * bare
