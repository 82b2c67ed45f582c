"""Fills the blocks of README.md and of the pages in docs/.

Numbers come from the files in docs/results/, the compatibility page from the rows in
tests/compatibility/. The tables of decisions 1 to 14 are from the first edition and do not change.

Run with: python -m benchmarks.render
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import house
from benchmarks import table as bench
from benchmarks.clients import early_stopping
from benchmarks.clients import table as clients
from benchmarks.gpu import table as gpu
from benchmarks.plan import as_cell
from benchmarks.scale import table as scale
from benchmarks.search import table as searched
from hybrid_predict.audit.results import SCHEMA
from hybrid_predict.report.blocks import fill, names
from hybrid_predict.report.shared import mean_and_sd
from hybrid_predict.runs.rows import Rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = tuple(
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if names(page.read_text())
)
Demo = Mapping[str, Any]
"""Results of the demo."""


def load(name: str) -> dict[str, Any]:
    """Read a committed results file."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def seeds(demo: Demo) -> str:
    """Return the number of paired seeds of a demo, in words."""
    count = demo["paired"]["hybrid - full"]["n"]
    return f"{count} paired seed{'s' * (count != 1)}"


def headline(demo: Demo) -> str:
    """Return the measured claim in one paragraph."""
    full, hybrid, short, corrected = (
        demo["summary"][arm] for arm in ("full", "hybrid", "short", "corrected")
    )
    loss = {arm: f"{row['metric']['mean']:.4f}" for arm, row in demo["summary"].items()}
    saved = 1 - hybrid["full_steps"] / full["full_steps"]
    return (
        f"**{hybrid['full_steps']:,.0f} full steps and {hybrid['predicted_steps']:,.0f} predicted "
        f"ones instead of {full['full_steps']:,.0f} full steps ({saved:.0%} fewer), validation "
        f"loss {loss['hybrid']} instead of {loss['full']}, {hybrid['seconds']:.0f} seconds instead "
        f"of {full['seconds']:.0f}**: a byte-level GPT of 0.19 M parameters on the standard "
        f"library's source text, 2 CPU cores, {seeds(demo)} (difference "
        f"{mean_and_sd(demo['paired']['hybrid - full'], 4)}). With {short['full_steps']:,.0f} full "
        "steps and a schedule of their own, plain training ends at "
        f"{loss['short']} in {short['seconds']:.0f} seconds, "
        f"and corrected updates alone at {loss['corrected']} in {corrected['seconds']:.0f}. All "
        "arms have the learning rate that is best for plain training. So few seeds give a hint, "
        "not a proof."
    )


def demo_table(demo: Demo) -> str:
    """Return the table of the demo's arms."""
    rows = []
    for arm, row in demo["summary"].items():
        rows.append([
            f"`{arm}`", f"{row['full_steps']:,.0f}", f"{row['predicted_steps']:,.0f}",
            f"{row['seconds']:.0f}", mean_and_sd(row["metric"], 4),
        ])  # fmt: skip
    reached = ", ".join(
        f"`{arm}` {found['bound']}{found['steps']:,.0f}"
        for arm, found in demo["plain_steps_to_reach"].items()
    )
    titles = ["arm", "full steps", "predicted steps", "seconds", "validation loss, mean ± sd"]
    return (
        f"{bench.markdown(titles, rows)}\n\n{seeds(demo)}, learning rate "
        f"{demo['depends_on']['recipe']['learning_rate']:g}. Plain full steps to reach an arm's "
        f"loss, interpolated between `short` and `full`: {reached}."
    )


def environment(demo: Demo) -> str:
    """Return the versions and the data of the demo's results."""
    env, text = demo["environment"], demo["depends_on"]["text"]
    return (
        f"Python {env['python']}, torch {env['torch']}, lightning {env['lightning']}, "
        f"{env['cpu_count']} CPU cores; text of {text['files']} files, sha256 "
        f"`{text['sha256'][:16]}…`."
    )


DEMO: dict[str, Callable[[Demo], str]] = {
    "demo headline": headline,
    "demo table": demo_table,
    "environment": environment,
}
"""Blocks on the demo by name."""


def step_cost() -> str:
    """Return the table of `update_cost`."""
    rows = []
    for found in load("step_cost.json")["rows"]:
        low, high = found["quartiles"]
        passes = found["passes"]
        reached = sum(passes.values()) * found["copy_ms_per_million_parameters"]
        rows.append([
            found["mechanism"], found["history"], f"{found['parameters'] / 1e6:.1f} M",
            f"{found['ms_per_million_parameters']:.1f}",
            f"{found['adamw_ms_per_million_parameters']:.1f}",
            f"{found['ratio']:.1f} ({low:.1f} to {high:.1f})",
            f"{found['bytes_per_parameter']:.0f}",
            f"{passes['products']:.0f}", f"{passes['others']:.0f}",
            f"{reached / found['ms_per_million_parameters']:.0%}",
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
"""Ways to make a full step fast, in words."""


def fast_loop() -> str:
    """Return the tables of `fast_loop`, one per device."""
    tables = []
    for device, found in load("fast_loop.json").items():
        env, waited = found["environment"], device == "cuda"
        rows = []
        for row in found["rows"]:
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
    """Return the table of each command's time to its first output and to its end.

    Args:
        data: What ``import_time`` has measured; None reads the committed file.
    """
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


def size() -> str:
    """Return the table of the package's size before and after."""
    return house.table(load("house.json"))


def compatibility(group: str) -> str:
    """Return a table of the compatibility page, or its ``summary``."""
    # The tests check each row of the page, so the rows are part of the tests.
    folders = [str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]
    sys.path += [folder for folder in folders if folder not in sys.path]
    page = importlib.import_module("compatibility.page")
    found: str = page.summary() if group == "summary" else page.table(group)
    return found


def client(block: str) -> str:
    """Return a block on the clients."""
    return clients.blocks(load("clients.json"))[f"clients {block}"]


def functional_step() -> str:
    """What a jitted step of the functional form costs beside optax's own."""
    found, rows = load("functional_step.json"), []
    for row in found["rows"]:
        cells = (row["loops"][arm] for arm in ("muon", "corrected", "corrected and predicted"))
        ratios = ["{:.2f} ({:.2f} to {:.2f})".format(c["ratio"], *c["quartiles"]) for c in cells]
        rows.append([f"{row['width']}", f"{row['adamw_ms']:.1f}", *ratios])
    titles = ["matrices of width", "`optax.adamw`, ms", "Muon", "corrected", "and predicted"]
    batch, versions = found["rows"][0]["batch"], found["environment"]
    source = f"{batch} examples a step, {found['blocks']} alternating blocks; "
    source += f"jax {versions['jax']}, optax {versions['optax']}. {found['note']}"
    return f"{bench.markdown(titles, rows)}\n\n{source}"


def stopping() -> str:
    """Return the table of `early_stopping`."""
    found = load("early_stopping.json")
    titles = ["run", f"stopped at epoch, of {found['epochs']}", "held-out negated ELBO, mean"]
    return bench.markdown(titles, early_stopping.table(found))


def _of_demo(make: Callable[[Demo], str]) -> str:
    return make(load("demo.json"))


COMPATIBILITY = ("summary", "precision", "optimizer", "loop", "model", "scheduler")

BLOCKS: dict[str, Callable[[], str]] = {
    **{f"compatibility {group}": partial(compatibility, group) for group in COMPATIBILITY},
    **{f"clients {b}": partial(client, b) for b in ("source", "quality", "cost", "subjects")},
    **{name: partial(_of_demo, make) for name, make in DEMO.items()},
    **scale.blocks(Rows(RESULTS / "scale.jsonl", as_cell).done.values(), load("scale-cost.json")),
    "early stopping": stopping,
    **searched.blocks(load("search.json")),
    "fast loop": fast_loop,
    "functional step": functional_step,
    "first output": first_output,
    "house": size,
    **gpu.blocks(),
    "import time": import_time,
    "step cost": step_cost,
    **{
        name: make
        for path in sorted(RESULTS.glob("bench-*.json"))
        for name, make in bench.blocks(load(path.name)).items()
    },
}


def outdated() -> list[str]:
    """Return the blocks whose results file is of another version; they are not filled."""
    return [] if load("demo.json")["schema"] == SCHEMA else list(DEMO)


def rendered(page: Path) -> str:
    """Return a page with its blocks filled.

    Raises:
        KeyError: If a block is unknown.
    """
    text = page.read_text()
    if unknown := set(names(text)) - BLOCKS.keys():
        raise KeyError(f"{page.name}: unknown blocks {sorted(unknown)}")
    stay = outdated()
    return fill(text, {name: make for name, make in BLOCKS.items() if name not in stay})


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page))
    if stay := outdated():
        print(f"Not filled, because demo.json has another schema: {', '.join(stay)}.")
