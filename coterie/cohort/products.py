"""Products of matrices for the compiled kernels: by the library that torch brings, or else by scipy's.

Torch's own is a tenth quicker than scipy's with what two convolutions need, but not every build shows it.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

ANY = ir.IntType(8).as_pointer()


@functools.cache
def of_torch() -> int | None:
    """Give the address of torch's `sgemm`, if it can be found."""
    for library in (Path(torch.__file__).parent / "lib").glob("*torch_cpu.*"):
        try:
            return ctypes.cast(ctypes.CDLL(str(library)).sgemm_, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


@functools.cache
def of_scipy() -> int:
    """Give the address of scipy's `sgemm`, which it offers to compiled code."""
    from scipy.linalg import cython_blas

    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype, python.PyCapsule_GetPointer.restype = ctypes.c_char_p, ctypes.c_void_p
    python.PyCapsule_GetName.argtypes = [ctypes.py_object]
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = cython_blas.__pyx_capi__["sgemm"]
    return int(python.PyCapsule_GetPointer(capsule, python.PyCapsule_GetName(capsule)))


@intrinsic
def call_sgemm(typingctx, address, turned, sizes, scales, a, b, c):  # type: ignore[no-untyped-def]
    """Call the Fortran function at an address: all it takes are places in memory.

    `turned` holds two letters, `sizes` m, n, k and the lengths of the rows of a, b, c, `scales` two numbers.
    """

    def generate(context, builder, signature, given):  # type: ignore[no-untyped-def]
        def place(argument: int, number: int = 0) -> Any:
            array = context.make_array(signature.args[argument])(context, builder, given[argument])
            return builder.bitcast(builder.gep(array.data, [ir.Constant(ir.IntType(64), number)]), ANY)

        function = builder.inttoptr(given[0], ir.FunctionType(ir.VoidType(), [ANY] * 13).as_pointer())
        letters, (m, n, k, *lengths) = (place(1, 0), place(1, 1)), (place(2, number) for number in range(6))
        first, second, out = (
            (place(matrix), length) for matrix, length in zip((4, 5, 6), lengths, strict=True)
        )
        builder.call(function, [*letters, m, n, k, place(3, 0), *first, *second, place(3, 1), *out])
        return context.get_dummy_value()

    return types.void(address, turned, sizes, scales, a, b, c), generate
