"""The suites: tasks and arms at rates that runs over a grid decide, and the cost of full steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import load
from benchmarks.arms import ARMS, MECHANISMS, PLAIN
from benchmarks.cells import CellPlan, Line
from benchmarks.gains import Figures, Summary, geometric
from benchmarks.optimizers import Rates
from benchmarks.plan import Row, Selection, workers
from benchmarks.step_cost import ADDED, WAYS, measure
from benchmarks.tasks import FRESH, TASKS, Task
from benchmarks.views import COLORS, NONE, count, loss_text, states_text, steps_text, view
from hybrid_predict.runs.evidence import FEW_SEEDS
from hybrid_predict.runs.page import new_figure, tidy
from hybrid_predict.runs.runtime import environment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Suite:
    """Tasks, each with the plain arms and others, in one setting.

    The setting `tuned` takes the best rate of a grid, others the task's own.
    """

    name: str
    tasks: tuple[str, ...]
    arms: tuple[str, ...]
    seeds: int
    setting: str = "tuned"
    tiny: bool = False

    def task(self, name: str) -> Task:
        return TASKS[name].tiny() if self.tiny else TASKS[name]

    def plan(self, chosen: Selection) -> CellPlan:
        return CellPlan(self._lines(), chosen)

    def _lines(self) -> Iterator[Line]:
        for task in map(self.task, self.tasks):
            rates = None if self.setting == "tuned" else Rates(task.recipe.learning_rate)
            for arm in (*PLAIN, *self.arms):
                yield Line(task, self.setting, arm, self.seeds, rates)

    def compiled(
        self, chosen: Selection, rows: Sequence[Row], whole: bool, before: Any
    ) -> dict[str, Any]:
        """Return the content of a results file.

        The cost of full steps is measured once all chosen runs are finished, see
        `step_cost.measure`; till then, and of other tasks, it is that of the content before.
        """
        steps = dict(before["steps"]) if before else {}
        if whole:
            short = {"blocks": 2, "length": 2} if self.tiny else {}
            with workers(1) as pool:
                for name in chosen.tasks or self.tasks:
                    steps[name] = pool.submit(measure, self.task(name), **short).result()
        tasks = dict.fromkeys(row["task"] for row in rows)
        return {
            "suite": self.name,
            "complete": whole,
            "environment": environment(),
            "tasks": {task: self.task(task).to_dict() for task in tasks},
            "steps": steps,
            "runs": list(rows),
        }


_CONTROLLED = ("corrected", "predict-0", "hybrid", "predicted-only", "corrected-any-cost")
_HERE = tuple(name for name in ARMS if name not in PLAIN)
_ALL = tuple(name for name in _HERE if name != "auto")
_WIDE = ("predict-.5", "muon", "normuon", "soap", "soap-muon")

_SUITES = (
    Suite("core", ("gpt-0.2m", "cnn", "inr"), _ALL, 5),
    Suite("wide", ("mlp", "lora", "pinn", "autoencoder"), (*_CONTROLLED, *_WIDE), 5),
    Suite("fresh", tuple(task.name for task in FRESH), (*_CONTROLLED, "muon"), 5),
    Suite("smoke", tuple(TASKS), _HERE, 1, "default-decay", tiny=True),
)

SUITES = {suite.name: suite for suite in _SUITES}


def blocks(results: Mapping[str, Any]) -> dict[str, Callable[[], str]]:
    """Return a function for the text of each block of a suite, by name."""
    suite = f"bench {results['suite']}"
    summary = Summary(results["runs"])
    return {
        f"{suite} source": partial(source, results, summary),
        f"{suite} headline": partial(headline, summary),
        f"{suite} mechanisms": partial(mechanisms_table, summary, results["steps"]),
        f"{suite} arms": partial(arms_table, summary),
        f"{suite} steps": partial(steps_table, results["steps"]),
    }


def source(results: Mapping[str, Any], summary: Summary) -> str:
    """Describe the source of the numbers: suite, seeds, runs and machine."""
    env = results["environment"]
    seeds = summary.seeds
    hint = "" if seeds >= FEW_SEEDS else " So few seeds make every difference a hint."
    done = "" if results.get("complete", True) else " so far"
    return (
        f"Suite `{results['suite']}`, {count(seeds, 'paired seed')}, {len(results['runs']):,} runs"
        f"{done}; torch {env['torch']}, Python {env['python']}, {env['cpu_count']} CPU cores, one "
        f"thread per run. In brackets: 95 % bootstrap intervals over seeds.{hint}"
        f"{states_text(results['runs'])}"
    )


def headline(summary: Summary) -> str:
    """Tell in one paragraph what the arms reach on the first task of a suite."""
    task = summary.tasks[0]
    arms = ("plain", "hybrid", "corrected")
    plain, hybrid, corrected = (summary.figures(task, arm) for arm in arms)
    if hybrid is None or plain is None or corrected is None:
        return NONE
    saved = 1 - hybrid.full_steps / plain.full_steps
    known = (hybrid.speedup, corrected.speedup)
    factors = [f"{speedup.value:.1f}" if speedup else NONE for speedup in known]
    return (
        f"**{hybrid.full_steps:,.0f} full steps instead of {plain.full_steps:,.0f} ({saved:.0%} "
        f"fewer), final loss {hybrid.loss['mean']:.3f} instead of {plain.loss['mean']:.3f}** "
        f"(`{task}`, {hybrid.loss['n']} seeds). Plain training needs {factors[0]} times as "
        f"many full steps for that loss; for the loss of corrected updates alone, "
        f"{factors[1]} times."
    )


def mechanisms_table(summary: Summary, steps: Mapping[str, Any]) -> str:
    """Compare the mechanisms; seconds are full steps times what `step_cost.measure` finds."""
    rows = []
    for task, (arm, way) in product(summary.tasks, MECHANISMS.items()):
        if (figures := summary.figures(task, arm)) is None:
            continue
        seconds = NONE
        if task in steps:
            plain = way == "plain" or _fell_back(summary, figures)
            ratio = 1.0 if plain else steps[task][way]["ratio"]
            seconds = f"{figures.full_steps * ratio * steps[task]['plain_ms'] / 1e3:.1f}"
        length = "" if figures.length is None else f" ({figures.length:.2f})"
        row = {
            "task": f"`{task}`",
            "arm": ARMS[arm].title,
            "full steps": steps_text(figures),
            "predicted steps (length)": steps_text(figures, "predicted_steps") + length,
            "seconds": seconds,
            "final loss, mean ± sd": loss_text(figures),
            "speedup at equal quality": _speedup(summary, figures),
        }
        rows.append(row)
    return view(rows)


def _fell_back(summary: Summary, figures: Figures) -> bool:
    """Return whether runs fell back: they end exactly where as many plain full steps end."""
    alike = (summary.figures(figures.place.task, arm) for arm in PLAIN)
    return any(
        plain is not None and (plain.full_steps, plain.loss) == (figures.full_steps, figures.loss)
        for plain in alike
    )


def arms_table(summary: Summary) -> str:
    """List the speedup of every arm, a row per arm, a column per task."""
    rows = []
    present = {place.arm for place in summary.found}
    for arm in ARMS:
        if arm in PLAIN or arm not in present:
            continue
        known = summary.speedups(arm)
        total = geometric(known.values()) if len(known) == len(summary.tasks) else None
        worst = min(known, key=lambda task: known[task].value, default="")
        row = {"arm": ARMS[arm].title}
        for task in summary.tasks:
            row[f"`{task}`"] = _speedup(summary, summary.figures(task, arm))
        row["geometric mean"] = f"**{total}**" if total else NONE
        row["worst task"] = f"`{worst}` {known[worst].value:.2f}" if total else NONE
        rows.append(row)
    return view(rows)


def steps_table(steps: Mapping[str, Any]) -> str:
    """List the cost of the plug-in in a full step, a row per task."""
    return view(
        {
            "task": f"`{task}`",
            "parameters": f"{cost['parameters']:,}",
            "plain full step, ms": f"{cost['plain_ms']:.1f}",
            **{f"{way} / plain": _ratio(cost[way]) for way in ADDED},
            **{f"MiB, {way}": f"{cost[way]['memory'] / 2**20:,.1f}" for way in WAYS},
        }
        for task, cost in steps.items()
    )


def _ratio(cost: Mapping[str, Any]) -> str:
    low, high = cost["quartiles"]
    return f"{cost['ratio']:.3f} [{low:.3f}, {high:.3f}]"


def _speedup(summary: Summary, figures: Figures | None) -> str:
    if figures is None or figures.speedup is None:
        return NONE
    seeds = figures.speedup.seeds
    fewer = f" ({count(seeds, 'seed')})" if seeds < summary.seeds else ""
    return f"{figures.speedup}{fewer}"


class Gain(NamedTuple):
    """The gain of the default on one task, at equal quality; ``ms`` of a plain full step.

    ``seconds`` is the gain in full steps, divided by what a full step of the default takes in plain
    ones, with its predicted steps. A run that fell back to plain training is as fast as it.
    """

    task: str
    ms: float
    steps: float
    seconds: float
    fell_back: bool
    corrected: float

    @property
    def slower(self) -> bool:
        """Whether the run takes longer than plain training to the same loss."""
        return self.seconds < 1.0 and not self.fell_back


KINDS = {  # tasks of the suites by the kind of model that a user has
    "transformer": ("gpt-0.2m", "encoder", "lora"),
    "recurrent net": ("gru",),
    "convolutional classifier": ("cnn", "resnet"),
    "function of coordinates, differential equation": ("inr", "coordinates", "pinn"),
    "convolutional autoencoder": ("autoencoder",),
    "dense net on images or tables": ("mlp", "tabular"),
    "reinforcement learning": ("ppo",),
}


def across() -> dict[str, Callable[[], str]]:
    """Return what makes the blocks on the committed suites together, by name."""
    return {
        "headline": overall,
        "kinds": kinds,
        "seconds": seconds,
        "below corrected": below_corrected,
        "peers": peers,
    }


@lru_cache
def _committed(suite: str) -> Summary:
    return Summary(load(f"bench-{suite}.json")["runs"])


def gains() -> Iterator[Gain]:
    """Yield the gains on all tasks of the committed suites whose full steps were measured."""
    for suite in ("core", "wide", "fresh"):
        summary = _committed(suite)
        hybrid = summary.speedups("hybrid")
        corrected = summary.speedups("corrected")
        for task, costs in load(f"bench-{suite}.json")["steps"].items():
            default = summary.figures(task, "hybrid")
            fell_back = default is not None and _fell_back(summary, default)
            gain = hybrid[task].value
            time = gain if fell_back else gain / costs["both"]["ratio"]
            yield Gain(task, costs["plain_ms"], gain, time, fell_back, corrected[task].value)


def seconds() -> str:
    """Return the gains as a Markdown table, from the slowest full steps to the fastest."""
    found = sorted(gains(), key=lambda gain: -gain.ms)
    titles = ("task", "plain full step, ms", "gain in full steps", "in seconds")
    lines = []
    for g in found:
        steps = f"{g.steps:.2f}" + ", fell back" * g.fell_back
        lines.append((f"`{g.task}`", f"{g.ms:.1f}", steps, f"{g.seconds:.2f}"))
    steps = f"{geometric_mean(g.steps for g in found):.2f}"
    lines.append(("geometric mean", "", steps, f"{geometric_mean(g.seconds for g in found):.2f}"))
    table = view(dict(zip(titles, line, strict=True)) for line in lines)
    slower = [f"`{g.task}`" for g in found if g.slower]
    if not slower:
        return table
    named = f"{', '.join(slower[:-1])} and {slower[-1]}" if len(slower) > 1 else slower[0]
    said = f"On {len(slower)} of {len(found)} tasks it takes longer than plain training: {named}."
    return f"{table}\n\n{said}"


def overall() -> str:
    """Tell in one sentence what the default gains in full steps and in seconds."""
    found = list(gains())
    steps = geometric_mean(g.steps for g in found)
    time = geometric_mean(g.seconds for g in found)
    longer = sum(g.slower for g in found)
    return (
        f"**{steps:.1f} times fewer full steps and {time:.1f} times less time for the same loss**: "
        f"the means of {len(found)} small tasks on a CPU. On {longer} of them it takes more time."
    )


def kinds() -> str:
    """Return the gains by kind of model, as geometric means over its tasks."""
    by_task = {gain.task: gain for gain in gains()}
    return view(
        {
            "your model": kind,
            "fewer full steps by a factor of": f"{geometric_mean(g.steps for g in found):.1f}",
            "less time by a factor of": f"{geometric_mean(g.seconds for g in found):.1f}",
        }
        for kind, names in KINDS.items()
        if (found := [by_task[name] for name in names if name in by_task])
    )


def below_corrected() -> str:
    """Name the tasks on which predicted steps cost more than they earn."""
    found = list(gains())
    below = [
        f"`{g.task}` ({g.steps:.2f} for {g.corrected:.2f})" for g in found if g.steps < g.corrected
    ]
    return (
        f"Tasks of the benchmark, of {len(found)}, on which the default's speedup is below that of "
        f"corrected updates alone (`speedup=1`): {', '.join(below) or 'none'}."
    )


def peers() -> str:
    """Compare the default with the best peer."""
    summaries = [_committed(suite) for suite in ("core", "wide")]
    peer, default = (
        [speedup.value for summary in summaries for speedup in summary.speedups(arm).values()]
        for arm in ("soap-muon", "hybrid")
    )
    higher = sum(a > b for a, b in zip(peer, default, strict=True))
    return (
        f"SOAP-Muon with a rate tuned for each task gains more than the default on {higher} of the "
        f"{len(default)} tasks of the suites `core` and `wide`: its speedup is "
        f"{geometric_mean(peer):.2f} in the geometric mean, that of the default "
        f"{geometric_mean(default):.2f}."
    )


_LABELS = {
    "plain": "plain training",
    "corrected": "corrected updates alone",
    "hybrid": "the default",
    "muon": "Muon",
}
"""Arms of the first figure, in words of the README."""


def first(results: Mapping[str, Any], task: str = "gpt-0.2m") -> Figure:
    """Draw final losses against full steps, and against seconds; a point is a run's end."""
    summary = Summary(results["runs"])
    figure = new_figure(figsize=(6.0, 3.2))  # letters that a phone can show
    left, right = figure.subplots(1, 2, sharey=True)
    costs = results["steps"][task]
    second = costs["plain_ms"] / 1e3
    ratios = {"plain": 1.0, "corrected": costs["corrected"]["ratio"],
              "hybrid": costs["both"]["ratio"], "muon": None}  # fmt: skip
    for name, ratio in ratios.items():
        found = [summary.figures(task, arm) for arm in (PLAIN if name == "plain" else (name,))]
        known = [f for f in found if f is not None and f.loss["mean"] is not None]
        style = {"color": COLORS[name], "marker": "o", "capsize": 3,
                 "linestyle": "-" if name == "plain" else "none"}  # fmt: skip
        losses = [f.loss["mean"] for f in known]
        spreads = [f.loss["sd"] or 0.0 for f in known]
        full = [f.full_steps for f in known]
        left.errorbar(full, losses, spreads, label=_LABELS[name], **style)
        if ratio is not None:  # the peer's steps were not timed side by side
            seconds = [n * second * ratio for n in full]
            right.errorbar(seconds, losses, spreads, **style)
    left.set(xlabel="full steps", ylabel="final validation loss")
    right.set(xlabel="seconds on one thread")
    left.legend(frameon=False, fontsize=9, handlelength=1.2)
    rate = "learning rate best for plain training"
    title = f"GPT of 0.2 M parameters, {rate}, {count(summary.seeds, 'seed')}"
    figure.suptitle(title, fontsize=10)
    tidy(left)
    tidy(right)
    return figure
