"""Fills the blocks of README.md and of the pages in docs/.

Numbers come from the files in docs/results/.

Run with: python -m benchmarks.render
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks import RESULTS, load, seconds
from benchmarks import table as bench
from benchmarks.blocks import fill, names
from benchmarks.clients import table as clients
from benchmarks.figures import Summary
from benchmarks.gpu import table as gpu
from benchmarks.plan import Row, as_cell
from benchmarks.ranks import table as ranks
from benchmarks.rates import table as rates
from benchmarks.scale import sizes_table
from benchmarks.scale import table as scale
from benchmarks.search import table as searched
from benchmarks.yardsticks import small, small_table
from benchmarks.yardsticks import table as yardsticks
from benchmarks.yardsticks.study import FILE as YARDSTICKS
from hybrid_predict.runs.rows import Rows

ROOT = Path(__file__).parents[1]
PAGES = tuple(
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if names(page.read_text())
)


def step_cost() -> str:
    """Return the table of `update_cost`."""
    rows = []
    for cost in load("step_cost.json")["rows"]:
        low, high = cost["quartiles"]
        passes = cost["passes"]
        reached = sum(passes.values()) * cost["copy_ms_per_million_parameters"]
        rows.append([
            cost["mechanism"], cost["history"], f"{cost['parameters'] / 1e6:.1f} M",
            f"{cost['ms_per_million_parameters']:.1f}",
            f"{cost['adamw_ms_per_million_parameters']:.1f}",
            f"{cost['ratio']:.1f} ({low:.1f} to {high:.1f})",
            f"{cost['bytes_per_parameter']:.0f}",
            f"{passes['products']:.0f}", f"{passes['others']:.0f}",
            f"{reached / cost['ms_per_million_parameters']:.0%}",
        ])  # fmt: skip
    titles = ["mechanism", "history", "parameters", "added, ms per million parameters",
              "fused AdamW update", "added / update (quartiles)", "bytes held per parameter",
              "passes, products", "passes, others",
              "share of a plain copy's bytes per second"]  # fmt: skip
    return bench.markdown(titles, rows)


FAST = {
    "none": "nothing", "bf16": "bf16 autocast", "compiled": "`torch.compile`",
    "fused": "`AdamW(fused=True)`", "channels_last": "channels-last",
    "pinned": "pinned memory, copied without waiting", "unread": "no `loss.item()`",
    "together": "all together",
}  # fmt: skip


def fast_loop() -> str:
    """Return the tables of `fast_loop`, one per device."""
    tables = []
    for device, results in load("fast_loop.json").items():
        env, waited = results["environment"], device == "cuda"
        rows = []
        for row in results["rows"]:
            low, high = row["quartiles"]
            rows.append([
                FAST[row["way"]], f"{row['plain_ms']:.1f}", f"{row['speed']:.2f}",
                f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})",
                *([row.get("waits", "reads its losses") or "none"] if waited else []),
            ])  # fmt: skip
        titles = [
            f"on {env['gpu'] if waited else 'one thread of a CPU'}", "full step, ms",
            "share of the first row", "with the plug-in / without (quartiles)",
            *(["waits of the host"] if waited else []),
        ]  # fmt: skip
        tables.append(bench.markdown(titles, rows))
    return "\n\n".join(tables)


def import_time() -> str:
    """Return a sentence on the time of the import."""
    data = load("import_time.json")
    low, high = data["ratio_range"]
    return (
        f"Importing the engine takes {data['ratio']:.2f} times as long as `import torch` "
        f"(median of {data['rounds']} interleaved rounds, {low:.2f} to {high:.2f})."
    )


def first_output(data: Mapping[str, Any] | None = None) -> str:
    """Return the table of each command's time to its first output and to its end."""
    data = data or load("import_time.json")
    rows = [
        [f"`{r['command']}`", f"{r['first_output_seconds']:.2f}", f"{r['seconds']:.2f}"]
        for r in data["commands"]
    ]
    rounds = data["command_rounds"]
    starts = "One start" if rounds == 1 else f"Medians over {rounds} starts"
    processes = f"{data['load']:.0f} process{'es' * (round(data['load']) != 1)}"
    cores = f"{data['cores']} core{'s' * (data['cores'] != 1)}"
    said = f"{starts} of each command. Meanwhile {processes} competed for {cores}."
    table = bench.markdown(["command", "to the first output, s", "to the end, s"], rows)
    return f"{said}\n\n{table}"


def functional_step() -> str:
    """What a jitted step of the functional form costs beside optax's own."""
    results, rows = load("functional_step.json"), []
    for row in results["rows"]:
        cells = (row["loops"][arm] for arm in ("muon", "corrected", "corrected and predicted"))
        ratios = ["{:.2f} ({:.2f} to {:.2f})".format(c["ratio"], *c["quartiles"]) for c in cells]
        rows.append([f"{row['width']}", f"{row['adamw_ms']:.1f}", *ratios])
    titles = ["matrices of width", "`optax.adamw`, ms", "Muon", "corrected", "and predicted"]
    batch, versions = results["rows"][0]["batch"], results["environment"]
    source = f"{batch} examples a step, {results['blocks']} alternating blocks; "
    source += f"jax {versions['jax']}, optax {versions['optax']}. {results['note']}"
    return f"{bench.markdown(titles, rows)}\n\n{source}"


def below_corrected() -> str:
    """Name the tasks on which predicted steps cost more than they earn."""
    below, tasks = [], 0
    for suite in ("core", "wide", "fresh"):
        summary = Summary(load(f"bench-{suite}.json"))
        for task in summary.tasks:
            arms = [summary.figures(task, "tuned", arm) for arm in ("hybrid", "corrected")]
            hybrid, alone = (arm and arm.speedup and arm.speedup.value for arm in arms)
            tasks += 1
            if hybrid and alone and hybrid < alone:
                below.append(f"`{task}` ({hybrid:.2f} for {alone:.2f})")
    named = ", ".join(below) or "none"
    return (
        f"Tasks of the benchmark, of {tasks}, on which the default's speedup is below that of "
        f"corrected updates alone (`speedup=1`): {named}."
    )


def peers() -> str:
    """Compare the default with the best peer."""
    found: dict[str, list[float]] = {"soap-muon": [], "hybrid": []}
    for suite in ("core", "wide"):
        summary = Summary(load(f"bench-{suite}.json"))
        for task, (arm, speedups) in product(summary.tasks, found.items()):
            figures = summary.figures(task, "tuned", arm)
            if figures is None or figures.speedup is None:
                raise LookupError(f"{suite}: {task} has no speedup of {arm}")
            speedups.append(figures.speedup.value)
    peer, default = (f"{geometric_mean(each):.2f}" for each in found.values())
    higher = sum(a > b for a, b in zip(found["soap-muon"], found["hybrid"], strict=True))
    return (
        f"SOAP-Muon with a rate tuned for each task gains more than the default on {higher} of the "
        f"{len(found['hybrid'])} tasks of the suites `core` and `wide`: its speedup is {peer} in "
        f"the geometric mean, that of the default {default}."
    )


def rows(name: str, key: Callable[[Row], Any]) -> list[Row]:
    """Read the rows of a committed file."""
    return list(Rows(RESULTS / name, key).done.values())


BLOCKS: dict[str, Callable[[], str]] = {
    **clients.blocks(load("clients.json")),
    **scale.blocks(rows("scale.jsonl", as_cell), load("scale-cost.json")),
    "scale sizes": lambda: sizes_table.table(rows("sizes.jsonl", as_cell)),
    **rates.blocks(rows("rates.jsonl", as_cell)),
    "yardsticks small": lambda: small_table.table(rows(small.FILE, small.key_of)),
    **yardsticks.blocks(rows(YARDSTICKS, as_cell)),
    "below corrected": below_corrected,
    "peers": peers,
    "seconds": seconds.table,
    **searched.blocks(load("search.json")),
    "fast loop": fast_loop,
    "functional step": functional_step,
    "first output": first_output,
    **gpu.blocks(),
    **ranks.BLOCKS,
    "import time": import_time,
    "step cost": step_cost,
    **{
        name: make
        for path in sorted(RESULTS.glob("bench-*.json"))
        for name, make in bench.blocks(load(path.name)).items()
    },
}


def rendered(page: Path) -> str:
    """Return a page with its blocks filled."""
    text = page.read_text()
    if unknown := set(names(text)) - BLOCKS.keys():
        raise KeyError(f"{page.name}: unknown blocks {sorted(unknown)}")
    return fill(text, BLOCKS)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page))
