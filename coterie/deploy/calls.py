"""What a coordinator may ask of a guard: the calls, their numbers, and how requests and bodies are read."""

from __future__ import annotations

from ..errors import Problem
from ..privacy.ledger.heads import SignedHead
from ..protocol.envelope import Envelope, Unreadable
from ..protocol.messages import unpack
from ..protocol.tree import Tree, leaves
from .masking import SUM_CALLS

CALLS = {"hello": 0, "plan": 1, "round": 2, "finish": 3, **SUM_CALLS}
COORDINATOR = "coordinator"
HEAD = ("text", "signature")


def question(request: Envelope) -> str:
    """Return the digest of what a request asks, whatever the coordinator has seen of the ledger by now."""
    return request.digest_without("witnessed")


def head_in(facts: object) -> SignedHead | None:
    """Return the head of a ledger in a message, if it is one."""
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), str) for name in HEAD):
        return None
    head = SignedHead(facts["text"], facts["signature"])
    try:
        head.check()
    except Problem:
        return None
    return head


def read_tree(body: bytes | memoryview, most: int, share: bool = False) -> Tree:
    """Return the tree in a body; raise `Problem` unless its tensors are finite and of one run.

    With `share`, they may be parts of the body's own memory.
    """
    try:
        tree = unpack(body, most, share)
    except Problem:
        raise
    except Exception as error:  # whatever a parser raises for bytes that are no tensors
        raise Unreadable(f"the body of the message holds no tensors: {type(error).__name__}") from error
    for leaf in leaves(tree):
        if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise Problem("the message holds numbers that are not finite")
        if leaf.dim() < 2 or leaf.shape[0] != 1:
            raise Problem("the message holds a tensor that is not of one run")
    return tree
