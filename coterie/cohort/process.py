"""Settings of the whole process that make training faster. They belong to whoever owns the process.

The library changes none of them by itself. The command line calls `tune_process` before it trains.
"""

from __future__ import annotations

import ctypes
import sys

from ..errors import plainly

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # the names of the settings in glibc's malloc.h
KEPT = 2**30


@plainly
def tune_process() -> None:
    """Tune this process for training; call it once, before the first training.

    The C library then keeps up to a gigabyte of freed memory for the next step. A step frees large tensors
    and allocates them again. By default they go back to the system in between, and every page must be mapped
    and zeroed again: training with clips took up to a fifth longer on two cores. Without glibc nothing
    changes.

    If torch does not export its matrix products to compiled code, the BLAS libraries of numpy and scipy are
    also limited to one thread; otherwise the compiled kernels could not use them.
    """
    _keep_freed_memory()
    _limit_blas()


def _keep_freed_memory() -> None:
    """Allocate tensors of any size on the heap and keep it; mapped memory would be returned when freed."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(MMAP_MAX, 0)
        library.mallopt(TRIM_THRESHOLD, KEPT)


def _limit_blas() -> None:
    from threadpoolctl import threadpool_limits

    from .compiled.blas import of_scipy, of_torch

    if of_torch() is None and of_scipy():
        threadpool_limits(1, "blas")
