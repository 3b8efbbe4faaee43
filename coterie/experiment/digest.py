"""A digest of what a training works on and no configuration describes, so that it resumes on nothing else.

The digest is keyed with a salt that stays in the training's folder until it is complete: whoever has a result
cannot test guesses about examples.
"""

from __future__ import annotations

import hashlib

import numpy as np
from torch import Tensor

from ..tasks.models import Copies, Factory
from .study import Study

SALT_BYTES = 16


def examples_digest(study: Study, salt: bytes) -> str:
    """Return a digest of all examples and, if the user gave a module, of its numbers."""
    digest = hashlib.blake2b(digest_size=32, key=salt)
    federation, task = study.experiments[0].federation, study.experiments[0].task
    for silo in federation.silos:
        digest.update(f"{silo.name}\0{federation.scale!r}\0".encode(errors="surrogatepass"))
        for values in (silo.x, silo.y, silo.test_x, silo.test_y, silo.person, silo.test_person):
            if values is not None:
                _add(digest, values)
    if isinstance(task.build, Factory) and isinstance(task.build.function, Copies):
        for values in task.module.state_dict().values():
            _add(digest, values)
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, values: Tensor) -> None:
    digest.update(f"{values.dtype} {tuple(values.shape)}\0".encode())
    digest.update(np.ascontiguousarray(values.cpu().numpy()).tobytes())
