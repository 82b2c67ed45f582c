"""Which widths, lengths and arms are compared, in the order in which they are run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.arms import ARMS
from benchmarks.tasks.gpt import GPT_SMALL, ByteGPTTask

PLAIN = "plain"
"""The arm whose runs of several lengths make the curve that others are read off."""

COMPARED = ("corrected", "hybrid", "muon", "normuon")
"""The arms beside plain training."""

UNBOUNDED = "corrected-any-cost"
"""Corrected updates without the limit on their cost, which binds on small batches."""

WHITENED = "whitened-any-cost"
"""The same for whitened updates."""

TUNED_AS = {"hybrid": "corrected", UNBOUNDED: "corrected", WHITENED: "corrected"}
"""Arms that get the rate of another one."""


@dataclass(frozen=True)
class Case:
    """One model and one length.

    Args:
        width: Width of the residual stream.
        steps: T; arms beside plain training have T / 1.5 full steps, if all predicted steps stand.
        seeds: Number of paired seeds, from 0.
        arms: Names of the arms beside plain training.
        tuned: Full steps of the runs that decide the rates, ascending.
    """

    width: int
    steps: int
    seeds: int
    arms: tuple[str, ...] = COMPARED
    tuned: tuple[int, ...] = (400, 1200, 4800)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Full steps of the plain runs: T / 1.5, T and 2 T."""
        return (ARMS["short"].full_steps(self.steps), self.steps, 2 * self.steps)


CASES = (
    Case(64, 600, 2, (*COMPARED, UNBOUNDED, WHITENED)),
    Case(32, 600, 2, (*COMPARED, UNBOUNDED, WHITENED)),
    Case(64, 2400, 1, (*COMPARED, UNBOUNDED, WHITENED)),
    Case(128, 600, 1, (*COMPARED, UNBOUNDED)),
    Case(64, 2400, 2),
    Case(64, 9600, 1, (*COMPARED, UNBOUNDED, WHITENED)),
    Case(256, 600, 1, ("corrected", UNBOUNDED), (400,)),
    Case(128, 600, 2, (*COMPARED, UNBOUNDED)),
    Case(32, 1200, 2),
    Case(128, 1200, 2),
)
"""The most telling ones first; a case that stands twice gets its second seed later.

One seed at width 256, whose rates are tuned at one length: a single trial takes a minute there.
"""

MIDDLE = 0.256
"""Over the width: the middle one of the first rates that plain training tries."""

HIDDEN = 4.0
"""The middle one of the first multiples of the hidden matrices' rate that peers try."""


def sized(width: int, rows: int = 8) -> ByteGPTTask:
    """A byte GPT of three layers whose heads are 32 wide.

    Args:
        width: Width of the residual stream, a multiple of 32.
        rows: Windows of 64 bytes in a batch.
    """
    return replace(
        GPT_SMALL, name=f"gpt-width-{width}", title=f"byte GPT, width {width}", width=width,
        heads=max(1, width // 32), batch_size=rows,
    )  # fmt: skip
