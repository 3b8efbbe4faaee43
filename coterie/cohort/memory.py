"""Keep freed memory for the next step.

A step frees and takes the same large tensors again. By default the C library gives them
back to the system in between, and every page must then be mapped and zeroed anew: up to
a third of the time of a step of a small CNN.
"""

from __future__ import annotations

import ctypes
import functools
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # the names of the settings in glibc's malloc.h
KEPT = 2**30


@functools.cache
def keep_freed_memory() -> None:
    """Have the process keep up to a gigabyte that it freed; does nothing where there is no glibc.

    Tensors of any size come from the heap: what is mapped on its own is given back when it is freed.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(MMAP_MAX, 0)
        library.mallopt(TRIM_THRESHOLD, KEPT)
