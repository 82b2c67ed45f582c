"""What learning rates that nobody tuned cost, with and without the plug-in."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import load
from benchmarks.arms import ARMS
from benchmarks.cells import Line
from benchmarks.gains import AT_LEAST, AT_MOST, BOTH, Figures, Place, Ratio, Summary, geometric
from benchmarks.optimizers import Rates
from benchmarks.plan import Row
from benchmarks.tasks import FRESH, TASKS
from benchmarks.views import COLORS, NONE, count, view
from hybrid_predict.runs.page import new_figure, tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = "rates"
STEADY = "constant"
"""Settings: shares of the best rate with the task's schedule, and constant shares."""

SHARES = (1 / 100, 1 / 30, 1 / 10, 1 / 3, 1.0, 3.0)  # of the rate best for plain training

LENGTHS = {
    "plain": (0.125, 0.25, 0.5, 1, 2, 4),
    "corrected": (0.125, 0.25, 0.5, 1),
    "auto": (0.25, 1),
}
"""Full steps of each arm over T; ``auto`` takes fewer, as it decides."""

STEADY_TASKS = ("cnn", "mlp", "pinn", "autoencoder")  # also trained at constant rates
STEADY_SHARES = (1 / 10, 1.0)

DEVELOPMENT = ("gpt-0.2m", "cnn", "inr", "mlp", "lora", "pinn", "autoencoder")
"""Tasks on which the rule was chosen; it was not run on the fresh ones before."""

SEEDS = {**dict.fromkeys(DEVELOPMENT, 3), **{task.name: 1 for task in FRESH}}


@lru_cache(maxsize=1)
def best_rates() -> dict[str, float]:
    """Return the best rate of plain training by task, from the committed results of the suites."""
    return {
        row["task"]: row["rate"]
        for suite in ("core", "wide", "fresh")
        for row in load(f"bench-{suite}.json")["runs"]
        if (row["setting"], row["arm"]) == ("tuned", "plain")
    }


def lines() -> Iterator[Line]:
    """Yield the runs of all tasks."""
    for name in SEEDS:
        places = [(RATES, share) for share in SHARES]
        if name in STEADY_TASKS:
            places += [(STEADY, share) for share in STEADY_SHARES]
        for (setting, share), (arm, lengths) in product(places, LENGTHS.items()):
            for length in lengths:
                rates = Rates(float(f"{best_rates()[name] * share:.3g}"))
                steps = _steps(name, arm, length)
                decay = setting != STEADY
                yield Line(TASKS[name], setting, arm, SEEDS[name], rates, decay, steps)


class Point(NamedTuple):
    """Runs of an arm at a ``share`` of the best rate; ``gain`` is beside plain ones at the same."""

    task: str
    share: float
    arm: str
    runs: Figures
    gain: Ratio
    beside_corrected: Ratio
    beside_tuned: Ratio


def _named(setting: str, share: float) -> str:
    return f"{setting} {share:g}"


def at_rates(rows: Iterable[Row]) -> Summary:
    """Return runs whose settings also say the share of the best rate."""
    best = best_rates()
    named = []
    for row in rows:
        if row["setting"] in (RATES, STEADY):
            share = row["rate"] / best[row["task"]]
            nearest = min(SHARES, key=lambda known: abs(math.log(known / share)))
            named.append({**row, "setting": _named(row["setting"], nearest)})
    return Summary(named)


def points(rows: Iterable[Row], setting: str = RATES, length: float = 1.0) -> list[Point]:
    """Return every arm on every task at every rate; a gain without its curve is nan."""
    summary = at_rates(rows)
    found = []
    for task, share, arm in product(sorted(summary.tasks), SHARES, LENGTHS):
        place = Place(task, _named(setting, share), arm, _steps(task, arm, length))
        if (runs := summary.found.get(place)) is not None:
            curves = (("plain", share), ("corrected", share), ("plain", 1.0))
            ratios = (_against(runs, length, a, _named(setting, x)) for a, x in curves)
            found.append(Point(task, share, arm, runs, *ratios))
    return found


def _steps(task: str, arm: str, length: float) -> int:
    return round(TASKS[task].steps * length / ARMS[arm].share)


def _against(runs: Figures, length: float, arm: str, setting: str) -> Ratio:
    """Return a gain beside a curve over that of the curve's own run of this length.

    The latter is 1, unless a shorter run of the curve ends lower, as at rates that are too large.
    """
    task = runs.place.task
    own = runs.summary.found.get(Place(task, setting, arm, _steps(task, arm, length)))
    found = runs.beside((arm,), setting, resamples=0)
    one = own.beside((arm,), setting, resamples=0) if own else None
    if found is None:
        return Ratio(math.nan)
    return Ratio(found.value / (one.value if one else 1.0), found.bound)


def mean(ratios: Iterable[Ratio]) -> str:
    """Return the geometric mean with the mark of its bound, if all of the numbers are known."""
    total = geometric(ratios)
    return str(total) if math.isfinite(total.value) else NONE


def worst(ratios: Mapping[str, Ratio]) -> str:
    """Return the smallest number and its task."""
    task = min(ratios, key=lambda name: ratios[name].value)
    known = all(math.isfinite(ratio.value) for ratio in ratios.values())
    return f"{mean([ratios[task]])} ({task})" if known else NONE


def blocks(rows: Sequence[Row]) -> dict[str, Callable[[], str]]:
    """Return what makes the blocks of the pages, by name."""
    kept = [row for row in rows if row["task"] in DEVELOPMENT]
    fresh = [row for row in rows if row["task"] not in DEVELOPMENT]
    return {
        "rates source": partial(source, kept),
        "rates overall": partial(overall, kept),
        "rates constant": partial(overall, kept, STEADY),
        "rates each": partial(each, kept),
        "rates short": partial(overall, kept, length=0.25),
        "rates fresh": partial(overall, fresh),
        "rates fresh each": partial(each, fresh),
    }


def source(rows: Sequence[Row]) -> str:
    """Return how many runs the tables come from."""
    return (
        f"{len(rows)} runs, {count(len({row['seed'] for row in rows}), 'seed')}; {AT_LEAST} and "
        f"{AT_MOST} mark losses outside of the range of the runs compared with, {BOTH} means over "
        "bounds of both kinds."
    )


def _share_text(share: float) -> str:
    return f"1/{1 / share:.0f}" if share < 1 else f"{share:.0f}"


def overall(rows: Iterable[Row], setting: str = RATES, length: float = 1.0) -> str:
    """Return geometric means over tasks, by learning rate, of runs of ``length`` times T steps."""
    everything = points(rows, setting, length)
    groups = [
        (share, arm, [p for p in everything if (p.share, p.arm) == (share, arm)])
        for share, arm in product(SHARES, LENGTHS)
    ]
    return view(
        {
            "rate / best rate": _share_text(share),
            "arm": arm,
            "tasks": f"{len(mine)}",
            "gain": mean(p.gain for p in mine),
            "worst task": NONE if arm == "plain" else worst({p.task: p.gain for p in mine}),
            "beside corrected": mean(p.beside_corrected for p in mine) if arm == "auto" else NONE,
            "beside plain at its best rate": mean(p.beside_tuned for p in mine),
            "predicted steps per full step": f"{_predicted(mine):.2f}",
        }
        for share, arm, mine in groups
        if mine
    )


def _predicted(found: Iterable[Point]) -> float:
    return statistics.fmean(p.runs.mean("predicted_steps") / p.runs.full_steps for p in found)


def each(rows: Iterable[Row]) -> str:
    """Return every task at every rate with ``auto``."""
    return view(
        {
            "task": f"`{p.task}`",
            "rate / best rate": _share_text(p.share),
            "full steps": f"{p.runs.full_steps:.0f}",
            "predicted steps": f"{p.runs.mean('predicted_steps'):.0f}",
            "loss": f"{p.runs.mean('loss'):.4f}",
            "gain": mean([p.gain]),
            "beside corrected": mean([p.beside_corrected]),
            "beside plain at its best rate": mean([p.beside_tuned]),
        }
        for p in points(rows)
        if p.arm == "auto"
    )


def figure(rows: Iterable[Row]) -> Figure:
    """Draw gains beside plain training at its best rate: a panel per arm, a thin line per task.

    The tasks are those on which the rule was chosen; a thick line is their geometric mean.
    """
    found = points(row for row in rows if row["task"] in DEVELOPMENT)
    figure = new_figure(figsize=(9.6, 3.6))
    panels = figure.subplots(1, len(LENGTHS), sharey=True)
    for axes, arm in zip(panels, LENGTHS, strict=True):
        at: dict[float, list[Ratio]] = {}
        for task in DEVELOPMENT:
            mine = [p for p in found if (p.task, p.arm) == (task, arm)]
            for point in mine:
                at.setdefault(point.share, []).append(point.beside_tuned)
            values = [p.beside_tuned.value for p in mine]
            axes.plot([p.share for p in mine], values, color=COLORS[arm], alpha=0.4, linewidth=0.8)
        means = [geometric(ratios).value for ratios in at.values()]
        axes.plot(list(at), means, color=COLORS[arm], marker="o")
        axes.axhline(1.0, color="0.7", linewidth=0.8, zorder=0)
        axes.set(xscale="log", yscale="log")
        tidy(axes, ARMS[arm].title)
    figure.supxlabel("learning rate / best rate of plain training")
    figure.supylabel("tuned plain steps per full step")
    return figure
