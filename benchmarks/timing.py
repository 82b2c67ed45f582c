"""How a benchmark times full steps: blocks that take turns, and what makes the host wait."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, process_time

import torch


def seconds(step: Callable[[], object], steps: int, device: torch.device) -> float:
    """Seconds of so many full steps: processor time on a CPU, wall time with a CUDA device."""
    clock = perf_counter if device.type == "cuda" else process_time
    _wait(device)
    started = clock()
    for _ in range(steps):
        step()
    _wait(device)
    return clock() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile; three times the value of a single one."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def waits(step: Callable[[], object], steps: int) -> str | None:
    """The complaint about the first wait of the host in so many full steps, None without one."""
    try:
        with _no_waiting():
            for _ in range(steps):
                step()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


@contextmanager
def _no_waiting() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
