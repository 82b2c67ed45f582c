"""Timing of full steps, and detection of synchronisation with the device."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter, process_time

import torch


def seconds(step: Callable[[], object], steps: int, device: torch.device) -> float:
    """Return the seconds of ``steps`` full steps: processor time on a CPU, wall time on CUDA."""
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
    """Return first quartile, median and third quartile; of a single value itself, three times."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def waits(step: Callable[[], object], steps: int) -> str | None:
    """Return torch's message on the first synchronisation in ``steps`` full steps, or None."""
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
