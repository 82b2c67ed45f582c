"""What a full step takes at several widths and rows of a batch, in loops that take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.optimizers import Build, muon, normuon
from benchmarks.scale.sizes import CASES, sized
from benchmarks.scale.study import told
from benchmarks.step_cost import WAYS, Loop, take_turns

LOOPS: dict[str, tuple[dict[str, Any] | None, Build | None]] = {
    "corrected": (WAYS["corrected"], None),
    "hybrid": (WAYS["both"], None),
    "corrected-any-cost": ({**WAYS["corrected"], "max_overhead": 1e9}, None),
    "muon": (None, muon),
    "normuon": (None, normuon),
}
"""What is timed beside plain full steps: arguments of `HybridConfig`, and the optimizer."""

WIDTHS = sorted({case.width for case in CASES})
ROWS = (4, 8, 16, 32)


def measure(
    say: Callable[[Any], object],
    widths: Sequence[int] = tuple(WIDTHS),
    rows: Sequence[int] = ROWS,
    blocks: int = 4,
) -> Iterator[dict[str, Any]]:
    """One row per width and rows of a batch.

    Args:
        say: Is told each of them.
        widths: Widths of the model.
        rows: Windows of 64 bytes in a batch.
        blocks: Blocks of each loop.

    Yields:
        ``width``, ``parameters``, ``rows``, ``tokens`` of a batch, ``plain_ms`` (median
        milliseconds of a plain full step) and, by arm, ``ratio`` (median over blocks of a full
        step, its share of predicted ones included, over a plain one), its ``quartiles`` and
        ``counted`` (operations that correcting adds per operation of a full step; None without the
        plug-in).
    """
    for width in widths:
        for count in rows:
            found = _timed(width, count, blocks, max(2, 512 // width))
            say(found)
            yield found


def _timed(width: int, rows: int, blocks: int, length: int) -> dict[str, Any]:
    task = sized(width, rows)
    plain = Loop(task, None)
    loops = {name: Loop(task, options, build) for name, (options, build) in LOOPS.items()}
    for loop in (plain, *loops.values()):
        loop.run(2)
    found = {"rows": rows, **told(task), **take_turns(plain, loops, blocks, length)}
    for name, loop in loops.items():
        found[name]["counted"] = loop.counted
        loop.close()
    return found
