"""What runs at untuned learning rates gain, as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable
from functools import partial

from benchmarks.arms import ARMS
from benchmarks.plan import Row
from benchmarks.rates.gains import BOTH, COMPARED, mean, mean_value, points, untuned_ratios, worst
from benchmarks.rates.hints import hints
from benchmarks.rates.study import DEVELOPMENT, RATES, SHARES, SHORT, STEADY, share_text
from benchmarks.table import NONE, markdown
from hybrid_predict.runs.evidence import AT_LEAST, AT_MOST

TOLD = 1 / 10
"""Share of the best rate that the headline is about."""


def headline(rows: Iterable[Row]) -> str:
    """Tell what a run at a tenth of the best rate is worth, and the best peer without a rate."""
    kept = list(rows)
    arms = {arm: [p for p in points(kept) if (p.share, p.arm) == (TOLD, arm)] for arm in COMPARED}
    worth = {arm: mean(p.beside_tuned for p in mine) for arm, mine in arms.items()}
    peers = {
        ARMS[arm].title: tasks.values()
        for (arm, _), tasks in untuned_ratios(kept).items() if arm not in COMPARED
    }  # fmt: skip
    peer = max(peers, key=lambda name: mean_value(peers[name]))
    return (
        f'**At a tenth of the best learning rate, a full step with `speedup="auto"` is worth '
        f"{worth['auto']} full steps of plain training at its best rate**, and "
        f"{mean(p.gain for p in arms['auto'])} of plain training at the same rate (geometric means "
        f"over {len(arms['auto'])} tasks). Corrected updates alone are worth {worth['corrected']}, "
        f"plain training at a tenth of its rate {worth['plain']}, and the best of "
        f"{len(peers)} optimizers that need no learning rate, {peer}, {mean(peers[peer])}."
    )


def overall(rows: Iterable[Row], setting: str = RATES) -> str:
    """Return geometric means over tasks, by learning rate."""
    lines = []
    everything = points(rows, setting=setting)
    for share in SHARES:
        for arm in COMPARED:
            mine = [p for p in everything if (p.share, p.arm) == (share, arm)]
            if mine:
                lines.append([
                    share_text(share), arm, f"{len(mine)}", mean(p.gain for p in mine),
                    worst({p.task: p.gain for p in mine}) if arm != "plain" else NONE,
                    mean(p.beside_corrected for p in mine) if arm == "auto" else NONE,
                    mean(p.beside_tuned for p in mine),
                    f"{statistics.fmean(p.predicted_steps / p.full_steps for p in mine):.2f}",
                ])  # fmt: skip
    titles = ["rate / best rate", "arm", "tasks", "gain", "worst task", "beside corrected",
              "beside plain at its best rate", "predicted steps per full step"]  # fmt: skip
    return markdown(titles, lines)


def untuned(rows: Iterable[Row]) -> str:
    """Return geometric means over tasks of arms whose rates know nothing of the task."""
    found = untuned_ratios(rows)
    lines = [
        [ARMS[arm].title, f"{rate:g}", f"{len(tasks)}", mean(tasks.values()), worst(tasks)]
        for (arm, rate), tasks in sorted(found.items(), key=lambda g: -mean_value(g[1].values()))
    ]
    titles = ["arm", "learning rate", "tasks", "beside plain at its best rate", "worst task"]
    return markdown(titles, lines)


def each(rows: Iterable[Row]) -> str:
    """Return every task at every rate with ``auto``."""
    lines = [
        [
            f"`{p.task}`", share_text(p.share), f"{p.full_steps:.0f}", f"{p.predicted_steps:.0f}",
            f"{p.loss:.4f}", mean([p.gain]), mean([p.beside_corrected]), mean([p.beside_tuned]),
        ]
        for p in points(rows) if p.arm == "auto"
    ]  # fmt: skip
    titles = ["task", "rate / best rate", "full steps", "predicted steps", "loss", "gain",
              "beside corrected", "beside plain at its best rate"]  # fmt: skip
    return markdown(titles, lines)


def short(rows: Iterable[Row]) -> str:
    """Return geometric means over tasks of runs of T / 4 steps, by learning rate."""
    lines, everything = [], points(rows, SHORT)
    for share in SHARES:
        mine = [p for p in everything if (p.share, p.arm) == (share, "auto")]
        if mine:
            lines.append([
                share_text(share), f"{len(mine)}",
                f"{statistics.fmean(p.full_steps for p in mine):.0f}",
                f"{statistics.fmean(p.predicted_steps for p in mine):.0f}",
                mean(p.beside_corrected for p in mine),
                worst({p.task: p.beside_corrected for p in mine}),
            ])  # fmt: skip
    titles = ["rate / best rate", "tasks", "full steps", "predicted steps", "beside corrected",
              "worst task"]  # fmt: skip
    return markdown(titles, lines)


def source(rows: Iterable[Row]) -> str:
    """Return how many runs the tables come from."""
    kept = list(rows)
    seeds = sorted({row["seed"] for row in kept})
    return (
        f"{len(kept)} runs, {len(seeds)} seed{'s' * (len(seeds) != 1)}; {AT_LEAST} and {AT_MOST} "
        "mark losses outside of the range of the runs "
        f"compared with, {BOTH} means over bounds of both kinds."
    )


def blocks(rows: Collection[Row]) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the pages, by name."""
    kept, fresh = ([row for row in rows if (row["task"] in DEVELOPMENT) == known]
                   for known in (True, False))  # fmt: skip
    return {
        "rates source": partial(source, kept),
        "rates headline": partial(headline, kept),
        "rates overall": partial(overall, kept),
        "rates constant": partial(overall, kept, STEADY),
        "rates untuned": partial(untuned, kept),
        "rates each": partial(each, kept),
        "rates short": partial(short, kept),
        "rates hints": partial(hints, kept),
        "rates fresh": partial(overall, fresh),
        "rates fresh each": partial(each, fresh),
    }
