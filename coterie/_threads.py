"""Work on all cores, each thread going its own way.

Nothing here changes a setting of the process. `torch.set_num_threads` would: threads that start later take
over what any thread has set. OpenMP and MKL also keep a number per thread, and only that one is set here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController

WAITING = 3  # threads that wait for disks; the interpreter takes turns, so more threads are slower
Item = TypeVar("Item")
Result = TypeVar("Result")


def torch_symbol(name: str) -> Any | None:
    """Return a C function of torch's own library, or None if the library does not offer it."""
    for library in (Path(torch.__file__).parent / "lib").glob("*torch_cpu.*"):
        try:
            return getattr(ctypes.CDLL(str(library)), name)
        except (OSError, AttributeError):
            continue
    return None


@functools.cache
def _openmp() -> list[Any]:
    """Return the OpenMP libraries of the process, torch's among them."""
    return list(ThreadpoolController().select(user_api="openmp").lib_controllers)


@functools.cache
def _mkl() -> Any | None:
    """Return MKL's function that sets the calling thread's number and returns the one before (0: none)."""
    return torch_symbol("MKL_Set_Num_Threads_Local")


def _keep_to_one_core() -> list[Callable[[], object]]:
    """Have torch use one core in the calling thread; return what undoes it."""
    torch.get_num_threads()  # when a thread first asks, torch gives it the number of the process
    undo: list[Callable[[], object]] = []
    for library in _openmp():
        undo.append(functools.partial(library.set_num_threads, library.get_num_threads()))
        library.set_num_threads(1)
    if (mkl := _mkl()) is not None:
        undo.append(functools.partial(mkl, mkl(1)))
    return undo


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Have torch use one core in the calling thread; other threads are left alone."""
    undo = _keep_to_one_core()
    try:
        yield
    finally:
        for each in undo:
            each()


@contextlib.contextmanager
def at_once(cores: int) -> Iterator[Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]]:
    """Return a `map` that uses this many threads, in each of which torch keeps to one core.

    Two threads that each go their own way lose less than one whose every operation waits for two cores.
    Where torch's threads cannot be limited thread by thread, the `map` is the plain one.
    """
    if cores == 1 or not _openmp():
        yield map
        return
    with one_thread(), ThreadPoolExecutor(cores, initializer=_keep_to_one_core) as pool:
        yield pool.map


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the function of every item, a few computed at a time: for work that waits for disks."""
    with ThreadPoolExecutor(WAITING) as pool:
        return list(pool.map(function, items))
