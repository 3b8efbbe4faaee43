"""Convolutions of a cohort against torch's own, one row of examples at a time."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.cohort.gradients.layers import Convolution, taps

PAIR = st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kernel=PAIR,
    stride=PAIR,
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    size=st.tuples(st.integers(7, 11), st.integers(7, 11)),
    bias=st.booleans(),
)
def test_outputs_and_slopes_equal_those_of_torch(kernel, stride, dilation, padding, size, bias):
    generator = torch.Generator().manual_seed(0)
    module = nn.Conv2d(2, 3, kernel, stride=stride, dilation=dilation, padding=padding, bias=bias)
    rows, width = 2, 2
    x = torch.randn(rows * width, 2, *size, generator=generator).requires_grad_()
    weight = torch.randn(rows, *module.weight.shape, generator=generator).requires_grad_()
    shift = torch.randn(rows, 3, generator=generator).requires_grad_() if bias else None
    found, _ = Convolution.apply(x, weight, shift, module)
    parts = [
        F.conv2d(
            one,
            weight[row],
            None if shift is None else shift[row],
            module.stride,
            module.padding,
            module.dilation,
        )
        for row, one in enumerate(x.unflatten(0, (rows, width)))
    ]
    expected = torch.cat(parts)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    error = torch.randn(expected.shape, generator=generator)
    wanted = [x, weight, *([] if shift is None else [shift])]
    ours, theirs = (torch.autograd.grad(out, wanted, error) for out in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("padding", [0, 1, 2, 6])
def test_taps_meet_each_input_as_often_as_outputs_use_it(kernel, step, padding):
    for size, dilation in itertools.product((5, 8), (1, 2)):
        count = (size + 2 * padding - dilation * (kernel - 1) - 1) // step + 1
        expected, found = ([0] * size for _ in range(2))
        for output, place in itertools.product(range(max(0, count)), range(kernel)):
            if 0 <= (at := output * step + place * dilation - padding) < size:
                expected[at] += 1
        for tap in taps(size, count, kernel, step, dilation, padding):
            met = range(size)[tap.inputs]
            assert len(met) == len(range(count)[tap.outputs])
            assert tap.whole == (list(met) == list(range(tap.residue, size, step)))
            for at in met:
                found[at] += 1
        assert found == expected
