"""Tensors as bytes in the safetensors format, without a copy beside the bytes or the tensors themselves.

The safetensors library holds two to three copies of every tensor while it reads or writes. The bytes here are
the same as the library's, which tests compare.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import Problem

CODES = {  # in the order in which the format puts tensors: the widest first
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TYPES = {code: dtype for dtype, code in CODES.items()}
PLACES = {dtype: place for place, dtype in enumerate(CODES)}
LENGTH_BYTES = 8
ENTRY = {"dtype", "shape", "data_offsets"}


def to_bytes(tensors: Mapping[str, Tensor], text: str) -> bytes:
    """Return tensors in the main memory, and a text about them, as bytes."""
    names = sorted(tensors, key=lambda name: (PLACES[tensors[name].dtype], name))
    header: dict[str, object] = {"__metadata__": {"shape": text}}
    views, end = [], 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        # A contiguous tensor of one number may keep any stride, and torch then refuses to see it as bytes.
        flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
        views.append(flat.view(torch.uint8).numpy().data)
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *views])


def from_bytes(data: bytes | memoryview, share: bool = False) -> tuple[dict[str, Tensor], str]:
    """Return tensors, each in memory of its own, and the text; raise `Problem` for bytes of another form.

    With `share`, tensors are parts of the bytes' own memory where it can be written and they lie well in it.
    """
    view = memoryview(data)
    length = int.from_bytes(view[:LENGTH_BYTES], "little")
    rows = view[LENGTH_BYTES + length :]
    if LENGTH_BYTES + length > len(view):
        raise Problem("a message holds no tensors: it is cut off")
    header = json.loads(bytes(view[LENGTH_BYTES : LENGTH_BYTES + length]))
    text = header.pop("__metadata__")["shape"]
    places = {name: _place(entry) for name, entry in header.items()}
    end = 0
    for begin, following, *_ in sorted(places.values(), key=lambda place: place[:2]):
        if begin != end:
            raise Problem("the tensors of a message do not lie one after the other")
        end = following
    if end != len(rows):
        raise Problem(f"the tensors of a message have {end:,} bytes, and it holds {len(rows):,}")
    shared = share and not view.readonly
    return {name: _tensor(rows, shared, *place) for name, place in places.items()}, text


def _place(entry: dict[str, object]) -> tuple[int, int, torch.dtype, tuple[int, ...]]:
    """Return where a tensor lies, its type and its shape, before anything is set aside for it."""
    if set(entry) != ENTRY or entry["dtype"] not in TYPES:
        raise Problem("a message describes a tensor in an unknown way")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not (isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2):
        raise Problem("a message describes a tensor in an unknown way")
    if not all(type(number) is int and 0 <= number < 2**53 for number in (*shape, *offsets)):
        raise Problem("a message holds a tensor of impossible shape")
    dtype = TYPES[str(entry["dtype"])]
    begin, end = offsets
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise Problem("a message holds a tensor that does not fill its place")
    return begin, end, dtype, tuple(shape)


def _tensor(
    rows: memoryview, shared: bool, begin: int, end: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> Tensor:
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    if shared:
        flat = torch.frombuffer(rows[begin:end], dtype=torch.uint8)
        if flat.data_ptr() % dtype.itemsize == 0:
            return flat.view(dtype).reshape(shape)
    return torch.frombuffer(bytearray(rows[begin:end]), dtype=dtype).reshape(shape)
