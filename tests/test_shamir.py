"""Secret sharing: the field in full, every subset of shares, and what fewer shares say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.secure_sum.shamir import invert, join, multiply, split, weights

ALL = np.arange(256, dtype=np.uint8)


def slow_product(left: int, right: int) -> int:
    """The product of two polynomials over two elements, then its remainder: school arithmetic."""
    whole = 0
    for bit in range(8):
        if right >> bit & 1:
            whole ^= left << bit
    for bit in range(14, 7, -1):
        if whole >> bit & 1:
            whole ^= 0b1_0001_1011 << (bit - 8)
    return whole


def test_all_products():
    found = multiply(ALL[:, None], ALL[None, :])
    expected = [[slow_product(left, right) for right in range(256)] for left in range(256)]
    assert found.tolist() == expected


def test_all_inverses():
    assert multiply(ALL[1:], invert(ALL[1:])).tolist() == [1] * 255
    assert invert(ALL[:1]).tolist() == [0]


def test_products_distribute_over_sums():
    left, right, other = np.meshgrid(ALL[::7], ALL[::5], ALL[::11])
    assert (multiply(left, right ^ other) == multiply(left, right) ^ multiply(left, other)).all()


@pytest.mark.parametrize("threshold", [1, 2, 3, 5, 6])
def test_every_large_enough_set_of_shares_recovers_the_secret(threshold):
    secret = bytes(range(7, 39))
    randomness = np.random.default_rng(threshold).bytes((threshold - 1) * 32)
    shares = split(secret, threshold, 6, randomness)
    for numbers in itertools.permutations(range(6), threshold):
        assert join(shares[list(numbers)], weights([k + 1 for k in numbers])) == secret
    if threshold > 1:
        for numbers in itertools.combinations(range(6), threshold - 1):
            assert join(shares[list(numbers)], weights([k + 1 for k in numbers])) != secret


@pytest.mark.parametrize("numbers", [(1, 2), (1, 3), (2, 3)])
def test_fewer_shares_leave_every_secret_equally_likely(numbers):
    """Of all 2^16 polynomials of degree 2 with a given secret, two shares take every value once."""
    coefficients = np.array(list(itertools.product(range(256), repeat=2)), dtype=np.uint8)
    for secret in (0, 1, 77, 255):
        shares = split(bytes([secret] * 2**16), 3, 3, coefficients.T.tobytes())
        seen = shares[numbers[0] - 1].astype(int) * 256 + shares[numbers[1] - 1]
        assert len(np.unique(seen)) == 2**16


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_many_silos(data):
    count = data.draw(st.integers(1, 255))
    threshold = data.draw(st.integers(1, count))
    secret = data.draw(st.binary(min_size=1, max_size=64))
    generator = np.random.default_rng(count)
    shares = split(secret, threshold, count, generator.bytes((threshold - 1) * len(secret)))
    chosen = generator.permutation(count)[:threshold]
    assert join(shares[chosen], weights((chosen + 1).tolist())) == secret


def test_what_cannot_be_shared():
    with pytest.raises(ValueError, match="threshold"):
        split(b"secret", 4, 3, bytes(18))
    with pytest.raises(ValueError, match="threshold"):
        split(b"secret", 2, 256, bytes(6))
    with pytest.raises(ValueError, match="random byte"):
        split(b"secret", 3, 4, bytes(6))
    for numbers in ([1, 1], [0, 1]):
        with pytest.raises(ValueError, match="different numbers"):
            weights(numbers)
