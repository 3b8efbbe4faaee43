"""Work on all cores, each going its own way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

WAITING = 3  # threads that wait for disks; the interpreter takes turns, so more threads are slower
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Have torch use one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def at_once(cores: int) -> Iterator[Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]]:
    """Give a `map` that uses so many threads, in each of which torch keeps to one core.

    Two threads that each go their own way lose less than one whose every operation waits for two cores.
    """
    if cores == 1:
        yield map
        return
    with one_thread(), ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool.map


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the function of every item, a few computed at a time: for work that waits for disks."""
    with ThreadPoolExecutor(WAITING) as pool:
        return list(pool.map(function, items))
