"""Tensors as bytes: the same as the safetensors library writes, and nothing else is read."""

from __future__ import annotations

import json
import random

import pytest
import torch
from safetensors.torch import load, save

from coterie.errors import Problem
from coterie.protocol.tensor_bytes import CODES, from_bytes, to_bytes


def some(seed: int) -> dict[str, torch.Tensor]:
    """Tensors of random types and shapes, some of them empty or without a dimension."""
    dice = random.Random(seed)
    shapes = [(), (1,), (3,), (0,), (2, 0), (1, 2, 3), (1, 1, 7)]
    return {
        str(number): (torch.rand(dice.choice(shapes)) * 9).to(dice.choice(list(CODES)))
        for number in range(dice.randrange(14))
    }


@pytest.mark.parametrize("seed", range(40))
def test_bytes_are_those_of_the_library(seed):
    tensors, text = some(seed), json.dumps({"tuple": [seed, '\u00e4 "quoted"']})
    data = to_bytes(tensors, text)
    assert data == save(tensors, {"shape": text})
    again, said = from_bytes(memoryview(data))
    assert said == text
    theirs = load(data)
    assert set(again) == set(theirs) == set(tensors)
    for name, tensor in tensors.items():
        assert (again[name].dtype, again[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(again[name], theirs[name])


def test_what_was_read_has_memory_of_its_own():
    """A method may not change the message that its state came from, nor one tensor another."""
    tensors = {"0": torch.zeros(4), "1": torch.zeros(4)}
    data = to_bytes(tensors, "")
    read, _ = from_bytes(data)
    read["0"] += 1
    assert not read["1"].any()
    assert data == to_bytes(tensors, "")


@pytest.mark.parametrize("shift", [0, 1])
def test_shared_tensors_lie_in_the_bytes_if_these_can_be_written_and_are_aligned(shift):
    tensors = {"0": torch.arange(4.0), "1": torch.zeros((2, 0)), "2": torch.tensor(True)}
    data = bytearray(shift) + to_bytes(tensors, "")
    for bytes_, writable in ((data, True), (bytes(data), False)):
        read, _ = from_bytes(memoryview(bytes_)[shift:], share=True)
        assert all(torch.equal(read[name], tensors[name]) for name in tensors)
        read["0"] += 1
        assert (bytes_ == data[:shift] + to_bytes(tensors, "")) != (writable and shift == 0)
        read["0"] -= 1


def test_what_was_written_may_be_changed_afterwards():
    tensor = torch.zeros(4)
    data = to_bytes({"0": tensor}, "")
    tensor += 1
    assert not from_bytes(data)[0]["0"].any()


def spoiled(**change) -> bytes:
    """Bytes of two tensors, of which the second is described wrongly."""
    header = {
        "__metadata__": {"shape": "x"},
        "0": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "1": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12], **change},
    }
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + bytes(12)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "F128"}, "in an unknown way"),
        ({"more": 1}, "in an unknown way"),
        ({"data_offsets": [8]}, "in an unknown way"),
        ({"shape": 1}, "in an unknown way"),
        ({"shape": [-1]}, "of impossible shape"),
        ({"shape": [True]}, "of impossible shape"),
        ({"shape": [2**60]}, "of impossible shape"),
        ({"shape": [2**40]}, "does not fill its place"),
        ({"shape": [2]}, "does not fill its place"),
        ({"shape": [0], "data_offsets": [12, 12]}, "one after the other"),
        ({"data_offsets": [4, 8]}, "one after the other"),
        ({"shape": [2], "data_offsets": [8, 16]}, "have 16 bytes, and it holds 12"),
        ({"shape": [0], "data_offsets": [8, 8]}, "have 8 bytes, and it holds 12"),
    ],
    ids=str,
)
def test_other_bytes_are_refused_before_anything_is_set_aside(change, said):
    assert len(from_bytes(spoiled())[0]) == 2
    with pytest.raises(Problem, match=said):
        from_bytes(spoiled(**change))


def test_bytes_that_end_early_are_refused():
    data = to_bytes({"0": torch.zeros(4)}, "")
    with pytest.raises(Problem, match="is cut off"):
        from_bytes(data[:20])
    with pytest.raises(Problem, match="have 16 bytes, and it holds 15"):
        from_bytes(data[:-1])


def test_one_number_of_a_larger_tensor_is_written_whatever_its_stride():
    one = torch.arange(10.0).reshape(2, 5)[1:, 3:4]
    strided = one.as_strided((1, 1), (5, 5))  # torch calls it contiguous, with a last stride of 5
    assert strided.is_contiguous()
    tensors, _ = from_bytes(to_bytes({"a": strided, "b": torch.zeros(0)}, "x"))
    assert torch.equal(tensors["a"], torch.tensor([[8.0]]))
    assert tensors["b"].shape == (0,)


@pytest.mark.parametrize(
    "part", [lambda x: x[::2], lambda x: x[1:2], lambda x: x[:1].expand(4), lambda x: x.reshape(2, 5).T]
)
def test_a_part_of_a_tensor_is_written_without_its_neighbours(part):
    tensor = part(torch.arange(10.0))
    tensors, _ = from_bytes(to_bytes({"a": tensor}, "x"))
    assert torch.equal(tensors["a"], tensor)
