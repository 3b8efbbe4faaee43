"""Secure sums: the server learns the sum of the silos' noisy uploads, and no upload alone.

The protocol is that of Bonawitz et al. (CCS 2017), double masking, with what it takes against a server that
does not follow it. It has five steps per training round. In each, the server sends every silo a message and
gets an answer; all of them are bytes. A silo's functions are pure: from a `Silo`, its `State` and a message
to a new `State` and an answer. Write the new state to the disk before the answer leaves. A repeated message
gets the same answer. Any other message for a step that was answered is refused.

| step | the silo answers with | the server then |
| --- | --- | --- |
| 1 | `offer_keys`: two fresh X25519 keys, signed | `publish_keys`: sends everybody all keys |
| 2 | `share_secrets`: shares of its two secrets, encrypted for each other silo | `route_shares` |
| 3 | `mask_upload`: its upload plus masks, and a signature of whom it masks with | `add_uploads` |
| 4 | `confirm`: a signature of the set of silos that uploaded | `collect_confirmations` |
| 5 | `reveal_shares`: one share for each silo | `recover_sum`: takes the masks off |

One whole round, in which one of four silos drops out after step 2:

>>> import numpy as np
>>> from coterie.noise.dice import KeyedDice
>>> from coterie.privacy.keys import draw_key
>>> keys = {name: draw_key(name) for name in ("north", "south", "east", "west")}
>>> members = tuple(Member(name, key.public.public) for name, key in keys.items())
>>> terms = Terms("digest of a plan", 0, members, size=2, clip=9.0, deviation=0.001, dropouts=1, colluding=0)
>>> silos = {name: Silo(terms, name, key) for name, key in keys.items()}
>>> states = {name: begin(silo) for name, silo in silos.items()}
>>> def ask(step, name, *message):
...     states[name], answer = step(silos[name], states[name], *message)
...     return answer
>>> server = Server(terms)
>>> server, message = publish_keys(server, {name: ask(offer_keys, name) for name in silos})
>>> answers = {name: ask(share_secrets, name, message) for name in server.present}
>>> server, boxes = route_shares(server, answers)
>>> uploads = {name: np.array([1.0, k]) for k, name in enumerate(silos)}
>>> dice = {name: KeyedDice(name.encode().ljust(32)) for name in silos}  # of the silo's secret streams
>>> cells = {name: contribution(uploads[name], terms, dice[name]) for name in silos}
>>> answers = {name: ask(mask_upload, name, boxes[name], cells[name]) for name in ("north", "south", "west")}
>>> server, message = add_uploads(server, answers)
>>> answers = {name: ask(confirm, name, message) for name in server.present}
>>> server, message = collect_confirmations(server, answers)
>>> total = recover_sum(server, {name: ask(reveal_shares, name, message) for name in server.present})
>>> bool((total == cells["north"] + cells["south"] + cells["west"]).all())
True
>>> from_cells(total, terms).round(1).tolist()  # 1 + 1 + 1 and 0 + 1 + 3
[3.0, 4.0]
>>> server.left_out
{'east': "no answer to 'upload'"}

**What a server learns.** Let n be the members, t the `Terms.threshold`, and let at most c = `colluding`
members side with the server and at most d = `dropouts` send nothing.
- A server that follows the protocol and looks at everything it gets, together with c < t members, learns
  the sum of the other survivors' contributions, and nothing else about them.
- The same holds for a server that sends what it likes to whom it likes, because 2 t > n + c. It may stop a
  round, or spoil its sum; nothing protects against that, nor against members that upload nonsense.
In both cases the sum contains the noise of at least n - d - c honest silos, so its variance is at least
`Terms.deviation` squared (`coterie.privacy.distributed`, and "Sums of noise" in `coterie.noise.rounded`).

**Why.** Silo u uploads y_u = x_u + PRG(b_u) + sum of +-PRG(s_uv) modulo 2^64, over the set V of members whose
shares it got (its *view*). s_uv follows from the mask keys of u and v.
1. The keys are those of members: they are signed for these terms with keys that the owners approved, and the
   terms name training, round, members, clip, noise and grid. The server cannot invent, mix up or replay.
2. All that are summed have one view: with its upload a silo signs its view, keys included. An honest silo
   confirms a set S only if all of S signed the view that it has, S is within V, and S has at least n - d
   members. Without these checks a server could tell one silo to mask with silos that then "drop out".
3. Only one set can be confirmed by t silos: an honest silo confirms one set, ever (its state says which).
   Two sets would need 2 t <= (n - c) + 2 c signatures. So all honest silos that reveal anything reveal it
   for the same S: shares of b_v for v in S, shares of the mask key for v not in S.
4. So for an honest u, the server gets at most c < t shares of one of the two secrets, which say nothing about
   it. If u is in S, its mask key stays secret: between u and every other honest v in S there is a mask that
   nobody else knows, and given these masks only the sum of the honest x is determined. If u is not in S, b_u
   stays secret, and y_u is random.
5. The server fixes S before it sees anything that depends on the noise, so it cannot choose by the noise. At
   least n - d - c honest silos are in S, and their noises are independent of whatever the others add.

A round that did not end well may have been unmasked all the same. Another attempt is a release of its own:
with terms of its own (name it in `training`), its own noise and its own charge.

Assumed: X25519 with HKDF-SHA256 gives keys that look random (the oracle Diffie-Hellman assumption);
AES-256-CTR, AES-GCM and HKDF are what they are meant to be; Ed25519 signatures cannot be forged; a state is
never set back to an earlier one and `begin` is called once per training and round; owners checked the public
keys in the plan. Not hidden: who takes part and who drops out. Timing is not covered.
"""

from .agreement import Peer
from .contribution import contribution, from_cells, to_cells
from .server import (
    Missing,
    Server,
    add_uploads,
    collect_confirmations,
    publish_keys,
    recover_sum,
    route_shares,
)
from .silo import check_boxes, confirm, mask_upload, offer_keys, reveal_shares, share_secrets
from .state import STEPS, Silo, State, begin, forget
from .terms import Member, Terms
from .wire import step_bytes

__all__ = [
    "STEPS",
    "Member",
    "Missing",
    "Peer",
    "Server",
    "Silo",
    "State",
    "Terms",
    "add_uploads",
    "begin",
    "check_boxes",
    "collect_confirmations",
    "confirm",
    "contribution",
    "forget",
    "from_cells",
    "mask_upload",
    "offer_keys",
    "publish_keys",
    "recover_sum",
    "reveal_shares",
    "route_shares",
    "share_secrets",
    "step_bytes",
    "to_cells",
]
