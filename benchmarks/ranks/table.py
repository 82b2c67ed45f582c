"""Measurements on several ranks as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import load
from benchmarks.ranks.foretold import by_formula, received
from benchmarks.ranks.loops import HSDP
from benchmarks.ranks.measure import TIMED, UPDATES
from benchmarks.table import markdown

Found = Mapping[str, Any]


def formula(row: Found) -> float:
    """Return what all ranks of a row receive, in matrices, without padding."""
    return received(row["setup"], row["ranks"], 2 if row["setup"] == HSDP else 1)


def counted(results: Found) -> str:
    """Traffic and operations."""
    alone, rows = results["alone"], []
    for row in _of_several(results):
        each, ranks = row["each"], row["ranks"]
        whole = 4 * each[0]["elements"]
        names = ("all_to_all_single", "all_gather_single")
        large = sum(rank["received_bytes"].get(n, 0) for rank in each for n in names)
        small = max(rank["received_bytes"].get("all_reduce", 0) for rank in each)
        rows.append([
            row["setup"], f"{ranks}", ", ".join(f"{rank['owned']}" for rank in each),
            f"{large / whole:.3f}", f"{formula(row):.3f}", f"{small:,}",
            f"{max(rank['operations'] for rank in each) / alone['operations'] * ranks:.3f}",
        ])  # fmt: skip
    titles = ["set-up", "ranks W", "matrices of each rank", "received by all ranks, in matrices",
              "by formula", "reduced besides, bytes",
              "operations of the busiest rank x W / those of one rank alone"]  # fmt: skip
    source = f"{alone['matrices']} matrices of {4 * alone['elements']:,} bytes together."
    return f"{source}\n\n{markdown(titles, rows)}"


def timed(results: Found) -> str:
    """Time that a full step takes, and what the plug-in adds to it, on each rank."""
    bases: dict[str, float] = {}
    rows = []
    for row in results["rows"]:
        ms = [rank["ms"] for rank in row["each"]]
        plain = sum(x["plain_ms"] for x in ms) / len(ms)
        added = [sum(x[way]["ratio"] for x in ms) / len(ms) for way in TIMED]
        bases.setdefault(row["setup"], added[0])
        base = bases.get("FSDP2" if row["setup"] == HSDP else row["setup"], added[0])
        low, high = (min(x["corrected"]["quartiles"][0] for x in ms),
                     max(x["corrected"]["quartiles"][1] for x in ms))  # fmt: skip
        rows.append([
            row["setup"], f"{row['ranks']}", f"{plain:.0f}",
            f"{added[0]:.0f} ({low:.0f} to {high:.0f})", f"{added[0] / base:.2f}",
            f"{added[0] / plain:.2f}", f"{added[1] / plain:.2f}",
        ])  # fmt: skip
    titles = ["set-up", "ranks W", "plain full step, ms of a rank",
              "corrections add, ms of a rank (quartiles)", "of what they add on one rank",
              "corrections add / plain", "corrections and predicted steps add / plain"]  # fmt: skip
    return markdown(titles, rows)


def held(results: Found) -> str:
    """Memory of a rank between full steps, and whole matrices within one."""
    rows = []
    for row in results["rows"]:
        each = row["each"]
        cells = [row["setup"], f"{row['ranks']}"]
        for name in UPDATES:
            scale = 4 * each[0]["elements"]
            told, tensors = (max(rank["memory"][name][k] for rank in each) / scale
                             for k in ("told", "tensors"))  # fmt: skip
            cells += [f"{told:.2f}", f"{tensors:.2f}"]
        wholes = max(rank["together"]["wholes"] / rank["together"]["bound"] for rank in each)
        sharded = row["setup"] != "DDP" and row["ranks"] > 1
        rows.append([*cells, *(f"{x:.2f}" if sharded else "" for x in (wholes, work_space(row)))])
    titles = ["set-up", "ranks W",
              *(f"{name}: {what}" for name in UPDATES for what in ("told", "counted")),
              "whole matrices / bound", "work space / bound"]  # fmt: skip
    return markdown(titles, rows)


def work_space(row: Found) -> float:
    """Return the busiest rank's work space in bounds, without its part of directions."""
    part = 4 * row["each"][0]["elements"] * (2 if row["setup"] == HSDP else 1) / row["ranks"]
    return max((x["together"]["all"] - part) / x["together"]["bound"] for x in row["each"])


def _of_several(results: Found) -> Sequence[Found]:
    return [row for row in results["rows"] if row["ranks"] > 1]


def measured(results: Found) -> str:
    """All that was measured."""
    return "\n\n".join(make(results) for make in (counted, timed, held))


def _of_file(make: Callable[[Found], str]) -> Callable[[], str]:
    return lambda: make(load("ranks.json"))


BLOCKS: dict[str, Callable[[], str]] = {
    "ranks counted": _of_file(counted),
    "ranks timed": _of_file(timed),
    "ranks held": _of_file(held),
    "ranks foretold": by_formula,
}
