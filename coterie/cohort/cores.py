"""Work on all cores, each going its own way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


@contextlib.contextmanager
def at_once(cores: int) -> Iterator[Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]]:
    """Give a `map` that uses so many threads, in each of which torch keeps to one core.

    Two threads that each go their own way lose less than one whose every operation waits for two cores.
    """
    before = torch.get_num_threads()
    if cores == 1:
        yield map
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(before)
