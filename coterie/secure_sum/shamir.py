"""Shamir's secret sharing, byte by byte, over the field with 256 elements.

A secret byte is the value at 0 of a random polynomial of degree `threshold` - 1; share number k is its value
at the point k. Any `threshold` shares determine the polynomial. Fewer leave every secret equally likely,
provided that the other coefficients are random.

The elements are polynomials over two elements modulo x^8 + x^4 + x^3 + x + 1, that of AES. Products are
computed bit by bit, without tables, so that time and memory accesses do not depend on secrets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

REDUCED = 0x1B  # what x^8 is


def multiply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the products of elements; arrays of bytes are broadcast against each other."""
    left, right = np.broadcast_arrays(left, right)
    product = np.zeros(left.shape, dtype=np.uint8)
    for bit in range(8):
        product ^= left * ((right >> bit) & 1)
        left = (left << 1) ^ ((left >> 7) * np.uint8(REDUCED))
    return product


def invert(value: np.ndarray) -> np.ndarray:
    """Return the inverses of elements, which are their 254th powers; that of 0 is 0."""
    result, power = np.ones_like(value), value
    for _ in range(7):  # 254 = 2 + 4 + ... + 128
        power = multiply(power, power)
        result = multiply(result, power)
    return result


def split(secret: bytes, threshold: int, count: int, randomness: bytes) -> np.ndarray:
    """Return shares number 1 to `count` of a secret, `[count, bytes]`; any `threshold` of them recover it.

    `randomness` has `threshold` - 1 secret random bytes for each byte of the secret. It is used for nothing
    else.
    """
    if not 1 <= threshold <= count <= 255:
        raise ValueError(f"expected a threshold from 1 to the count, at most 255, got {threshold} of {count}")
    if len(randomness) != (threshold - 1) * len(secret):
        raise ValueError("expected a random byte for each coefficient")
    coefficients = np.frombuffer(randomness, dtype=np.uint8).reshape(threshold - 1, len(secret))
    points = np.arange(1, count + 1, dtype=np.uint8)[:, None]
    shares = np.zeros((count, len(secret)), dtype=np.uint8)
    for row in coefficients:
        shares = multiply(shares ^ row, points)
    return shares ^ np.frombuffer(secret, dtype=np.uint8)


def weights(numbers: Sequence[int]) -> np.ndarray:
    """Return the factor of each share in the secret, for shares with these different numbers."""
    points = np.array(numbers, dtype=np.uint8)
    if len(set(numbers)) != len(numbers) or not points.all():
        raise ValueError("shares need different numbers above 0")
    found = np.ones(len(points), dtype=np.uint8)
    for k, point in enumerate(points):
        others = np.delete(points, k)
        for factor in multiply(others, invert(others ^ point)):
            found[k] = multiply(found[k], factor)
    return found


def join(shares: np.ndarray, factors: np.ndarray) -> bytes:
    """Return the secret from `threshold` shares `[threshold, bytes]` and their `weights`."""
    return bytes(np.bitwise_xor.reduce(multiply(shares, factors[:, None]), axis=0))
