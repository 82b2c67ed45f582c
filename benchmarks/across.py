"""What the suites say together: gains in seconds, peers, and the first picture of the README."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import load
from benchmarks.figures import Summary
from benchmarks.plot import CORRECTED_COLOR, HYBRID_COLOR, OTHER_COLOR, PLAIN_COLOR, tidy
from benchmarks.suites import SETTINGS
from benchmarks.views import markdown
from hybrid_predict.runs.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUITES, SETTING = ("core", "wide", "fresh"), "tuned"

TASK = "gpt-0.2m"
"""The task of the first picture."""

_LINE = ("plain-half", "short", "plain", "plain-double")
_POINTS = {
    "corrected": ("corrected", CORRECTED_COLOR, "s"),
    "hybrid": ("default", HYBRID_COLOR, "D"),
    "muon": ("Muon, tuned", OTHER_COLOR, "^"),
}
"""Arms of plain training, and label, color and marker of the others."""


@lru_cache(maxsize=1)
def summaries() -> dict[str, Summary]:
    """Return the statistics of the committed suites by name."""
    return {suite: Summary(load(f"bench-{suite}.json")) for suite in SUITES}


def speedup(summary: Summary, task: str, arm: str) -> float:
    """Return the speedup of an arm on a task.

    Raises:
        LookupError: If it is not known.
    """
    figures = summary.figures(task, SETTING, arm)
    if figures is None or figures.speedup is None:
        raise LookupError(f"{task} has no speedup of {arm}")
    return figures.speedup.value


class Gain(NamedTuple):
    """The gain of the default on one task, at equal quality.

    ``ms`` are those of a plain full step. ``seconds`` is the gain in full steps, divided by what a
    full step of the default takes, with its predicted steps, in plain ones. A run that fell back
    to plain training is as fast as it.
    """

    task: str
    ms: float
    steps: float
    seconds: float
    fell_back: bool


def gains() -> Iterator[Gain]:
    """Yield the gains on all tasks whose full steps were measured."""
    for suite, summary in summaries().items():
        costs = load(f"bench-{suite}.json")["steps"]
        for task in summary.tasks:
            if task not in costs:
                continue
            plain, hybrid = (summary.runs(task, SETTING, arm) for arm in ("plain", "hybrid"))
            fell_back = all(hybrid[seed]["loss"] == row["loss"] for seed, row in plain.items())
            gain = speedup(summary, task, "hybrid")
            ratio = 1.0 if fell_back else costs[task]["both"]["ratio"]
            yield Gain(task, costs[task]["plain_ms"], gain, gain / ratio, fell_back)


def seconds() -> str:
    """Return the gains as a Markdown table, from the slowest full steps to the fastest."""
    found = sorted(gains(), key=lambda gain: -gain.ms)
    rows = [
        [
            f"`{g.task}`",
            f"{g.ms:.1f}",
            f"{g.steps:.2f}" + ", fell back" * g.fell_back,
            f"{g.seconds:.2f}",
        ]
        for g in found
    ]
    steps = geometric_mean([gain.steps for gain in found])
    whole = geometric_mean([gain.seconds for gain in found])
    rows.append(["geometric mean", "", f"{steps:.2f}", f"{whole:.2f}"])
    table = markdown(["task", "plain full step, ms", "gain in full steps", "in seconds"], rows)
    slower = [f"`{g.task}`" for g in found if g.seconds < 1.0 and not g.fell_back]
    if not slower:
        return table
    named = f"{', '.join(slower[:-1])} and {slower[-1]}" if len(slower) > 1 else slower[0]
    said = f"On {len(slower)} of {len(found)} tasks it takes longer than plain training: {named}."
    return f"{table}\n\n{said}"


def below_corrected() -> str:
    """Name the tasks on which predicted steps cost more than they earn."""
    below = []
    tasks = 0
    for summary in summaries().values():
        for task in summary.tasks:
            hybrid, alone = (speedup(summary, task, arm) for arm in ("hybrid", "corrected"))
            tasks += 1
            if hybrid < alone:
                below.append(f"`{task}` ({hybrid:.2f} for {alone:.2f})")
    return (
        f"Tasks of the benchmark, of {tasks}, on which the default's speedup is below that of "
        f"corrected updates alone (`speedup=1`): {', '.join(below) or 'none'}."
    )


def peers() -> str:
    """Compare the default with the best peer."""
    kept = [summary for suite, summary in summaries().items() if suite != "fresh"]
    peer, default = (
        [speedup(summary, task, arm) for summary in kept for task in summary.tasks]
        for arm in ("soap-muon", "hybrid")
    )
    higher = sum(a > b for a, b in zip(peer, default, strict=True))
    return (
        f"SOAP-Muon with a rate tuned for each task gains more than the default on {higher} of the "
        f"{len(default)} tasks of the suites `core` and `wide`: its speedup is "
        f"{geometric_mean(peer):.2f} in the geometric mean, that of the default "
        f"{geometric_mean(default):.2f}."
    )


def plot(results: Any) -> Figure:
    """Draw final losses against full steps, and against seconds; a point is a run's end."""
    summary = Summary(results)
    figure = new_figure(figsize=(6.0, 3.2))  # letters that a phone can show
    left, right = figure.subplots(1, 2, sharey=True)
    costs = results["steps"][TASK]
    for axes, second in ((left, None), (right, costs["plain_ms"] / 1e3)):
        for arms, (label, color, marker) in (
            (_LINE, ("plain training", PLAIN_COLOR, "o")),
            *(((arm,), style) for arm, style in _POINTS.items()),
        ):
            way = {"hybrid": "both", "corrected": "corrected"}.get(arms[0])
            if second and arms[0] == "muon":  # its steps were not timed side by side
                continue
            scale = (second or 1.0) * (costs[way]["ratio"] if way and second else 1.0)
            known = [f for arm in arms if (f := summary.figures(TASK, SETTING, arm)) is not None]
            axes.errorbar(
                [f.full_steps * scale for f in known],
                [f.loss["mean"] for f in known],
                [f.loss["sd"] or 0.0 for f in known],
                color=color,
                marker=marker,
                capsize=3,
                label=label,
            )
        axes.set_xlabel("seconds on one thread" if second else "full steps")
        axes.set_xlim(left=0)
        tidy(axes)
    left.set_ylabel("final validation loss")
    left.legend(frameon=False, fontsize=9, handlelength=1.2)
    title = f"{TASK}, {SETTINGS[SETTING].title}, {results['seeds']} seeds"
    figure.suptitle(title, fontsize=10)
    return figure
