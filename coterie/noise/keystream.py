"""Secret random bits: AES-256 in counter mode, keyed anew for every use.

Nobody who does not know the key can tell the stream from random bits by any means known (AES is the
standard of NIST FIPS 197, counter mode that of SP 800-38A). A key is used for one stream only, so the
counter starts at zero."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

KEY_BYTES = 32
START = bytes(16)
PIECE = 2**16  # bytes that are encrypted at a time: they stay near the processor
ZEROS = bytes(PIECE)
WORD = np.dtype("<u8")


class Keystream:
    """A stream of secret bits that only moves forward."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, got {len(key)}")
        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(START)).encryptor()

    def fill(self, out: np.ndarray) -> None:
        """Fill a contiguous array with the next bits."""
        if not out.flags.c_contiguous:
            raise ValueError("only contiguous arrays can be filled")
        view = memoryview(out.reshape(-1).view(np.uint8).data)
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            self._cipher.update_into(ZEROS[: len(piece)], piece)

    def words(self, *shape: int) -> np.ndarray:
        """Return the next words of 64 bits."""
        out = np.empty(shape, dtype=WORD)
        self.fill(out)
        return out

    def word(self) -> int:
        """Return the next word of 64 bits."""
        return int(self.words(1)[0])
