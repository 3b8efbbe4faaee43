"""Keep freed memory for the next step.

A step frees and takes the same large tensors again. By default the C library gives them
back to the system in between, and every page must then be mapped and zeroed anew: up to
a third of the time of a step of a small CNN.
"""

from __future__ import annotations

import ctypes
import functools
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # the names of the settings in glibc's malloc.h
LARGEST = 32 * 2**20  # glibc takes no larger threshold
KEPT = 2**30


@functools.cache
def keep_freed_memory() -> None:
    """Have the process keep up to a gigabyte that it freed; does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(MMAP_THRESHOLD, LARGEST)
        library.mallopt(TRIM_THRESHOLD, KEPT)
