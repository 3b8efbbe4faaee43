"""Find a matrix product for the kernels, in the library that torch ships or else in scipy's.

Torch's is about a tenth faster for a model with two convolutions, but not every build of torch exports it.
"""

from __future__ import annotations

import ctypes
import functools

from threadpoolctl import ThreadpoolController

from ..._threads import torch_symbol


def one_core_sgemm() -> int | None:
    """Return the address of an `sgemm` that stays on one core, or None if there is none.

    Torch's stays on one core under `one_thread`. Scipy's has only a setting for the whole process, which the
    library must not change; it is used if that setting is already 1 (see `tune_process`).
    """
    address = of_torch()
    if address is None and of_scipy():
        libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        address = of_scipy() if all(library.get_num_threads() == 1 for library in libraries) else None
    return address


@functools.cache
def of_torch() -> int | None:
    """Return the address of torch's `sgemm`, if it can be found."""
    function = torch_symbol("sgemm_")
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def of_scipy() -> int:
    """Return the address of scipy's `sgemm`, which scipy exports for compiled code."""
    from scipy.linalg import cython_blas

    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
    address_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    capsule = cython_blas.__pyx_capi__["sgemm"]
    return int(address_of(capsule, name_of(capsule)))
