"""Fills the blocks of README.md and the pages in docs/.

Numbers come from the files in docs/results/, the compatibility page from the rows in
tests/compatibility/.

Run with: python docs/render.py
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from hybrid_predict.bench import table as bench
from hybrid_predict.report.blocks import fill, names

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = tuple(
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "<!-- results:" in page.read_text()
)
ARMS = ("full", "short", "hybrid", "full, hidden x2")


def load(name: str) -> dict[str, Any]:
    """One committed results file."""
    return json.loads((RESULTS / name).read_text())


def spread(values: dict[str, Any]) -> str:
    """A mean with its standard deviation over seeds."""
    deviation = "" if values["sd"] is None else f" ± {values['sd']:.4f}"
    return f"{values['mean']:.4f}{deviation}"


def headline() -> str:
    """The measured claim in one paragraph."""
    demo = load("demo.json")
    summary, seeds = demo["summary"], demo["seeds"]
    full, hybrid, short = (summary[a] for a in ("full", "hybrid", "short"))
    saved = 1 - hybrid["full_steps"] / full["full_steps"]
    return (
        f"**{hybrid['full_steps']:,.0f} full steps instead of {full['full_steps']:,.0f} "
        f"({saved:.0%} fewer), validation loss {hybrid['val_loss']['mean']:.4f} instead of "
        f"{full['val_loss']['mean']:.4f}**: a byte-level GPT of 0.19 M parameters on the standard "
        f"library's source text, 2 CPU cores, {seeds} paired seeds (difference "
        f"{spread(demo['paired']['hybrid - full'])}). Plain training with as few full steps and "
        f"its own shortened schedule ends at {short['val_loss']['mean']:.4f}. All at the learning "
        "rate that is best for plain training. With so few seeds this is a hint, not a proof."
    )


def demo_table() -> str:
    """The demo's arms."""
    demo = load("demo.json")
    lines = [
        "| arm | full steps | equivalent steps | seconds | validation loss, mean ± sd |",
        "|---|---|---|---|---|",
    ]
    for arm in ARMS:
        row = demo["summary"][arm]
        cells = [f"`{arm}`", f"{row['full_steps']:,.0f}", f"{row['equivalent_steps']:,.0f}",
                 f"{row['seconds']:.0f}", spread(row["val_loss"])]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    reached = demo["equivalent_plain_steps"]
    worth = reached if isinstance(reached, str) else f"{reached:,.0f}"
    lines += [
        "",
        f"{demo['seeds']} paired seeds, learning rate {demo['recipe']['learning_rate']:g}. Plain "
        f"full steps to reach the loss of `hybrid`, interpolated between `short` and `full`: "
        f"{worth}.",
    ]
    return "\n".join(lines)


def decision(module: str) -> Any:
    """A module that stands beside the decision pages."""
    decisions = str(ROOT / "docs" / "decisions")
    if decisions not in sys.path:
        sys.path.append(decisions)
    return importlib.import_module(module)


def sweep(page: str, only: str = "") -> str:
    """The variants of a decision page, or one of them."""
    return str(decision("sweep").table(page, only))


def foresight(page: str) -> str:
    """What the candidates of a decision page foresee."""
    return str(decision(f"foresight_{page}").table())


def runs(module: str, file: str) -> str:
    """The table of a decision page's own script from its results."""
    return str(decision(module).table(load(file)["rows"]))


def environment() -> str:
    """What the demo's results were measured on."""
    demo = load("demo.json")
    env, text = demo["environment"], demo["text"]
    return (
        f"Python {env['python']}, torch {env['torch']}, lightning {env['lightning']}, "
        f"{env['cpu_count']} CPU cores; text of {text['files']} files, sha256 "
        f"`{text['sha256'][:16]}…`."
    )


def step_cost() -> str:
    """What a forecast costs beside the optimizer's own update."""
    data = load("step_cost.json")
    lines = [
        "| predictor | history | parameters | forecast, ms per million parameters "
        "| fused AdamW update | forecast / update (quartiles) | bytes held per forecast parameter "
        "| passes, products | passes, others | share of a plain copy's bytes per second |",
        "|" + "---|" * 10,
    ]
    for found in data["rows"]:
        low, high = found["quartiles"]
        passes = found["passes"]
        reached = sum(passes.values()) * found["copy_ms_per_million_parameters"]
        cells = [
            f"`{found['predictor']}`", found["history"], f"{found['parameters'] / 1e6:.1f} M",
            f"{found['ms_per_million_parameters']:.1f}",
            f"{found['adamw_ms_per_million_parameters']:.1f}",
            f"{found['ratio']:.1f} ({low:.1f} to {high:.1f})",
            f"{found['bytes_per_parameter']:.0f}",
            f"{passes['products']:.0f}", f"{passes['others']:.0f}",
            f"{reached / found['ms_per_million_parameters']:.0%}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def added_cost() -> str:
    """What forecasts added to a full step before decision 9 and after it."""
    data = load("cost-0009.json")
    lines = [
        "| task | threads | plain full step, ms | before | after | after, bfloat16 "
        "| added after / before |",
        "|" + "---|" * 7,
    ]
    for row in data["rows"]:
        columns = [row[name] for name in ("before", "after", "bfloat16", "added")]
        measured = [f"{middle:.2f} [{low:.2f}, {high:.2f}]" for low, middle, high in columns]
        cells = [f"`{row['task']}`", str(row["threads"]), f"{row['plain_ms']:.1f}", *measured]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def import_time() -> str:
    """What the import costs."""
    data = load("import_time.json")
    low, high = data["ratio_range"]
    return (
        f"`import hybrid_predict` takes {data['ratio']:.2f} times as long as `import torch` "
        f"(median of {data['rounds']} interleaved rounds, {low:.2f} to {high:.2f})."
    )


def compatibility(group: str) -> str:
    """One table of the compatibility page, or its ``summary``."""
    # What is tested is what the page says, so the rows live with the tests.
    tests = str(ROOT / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    from compatibility import page

    return page.summary() if group == "summary" else page.table(group)


COMPATIBILITY = ("summary", "precision", "optimizer", "loop", "model", "scheduler")

BLOCKS = {
    **{f"compatibility {group}": partial(compatibility, group) for group in COMPATIBILITY},
    "demo headline": headline,
    "demo table": demo_table,
    "environment": environment,
    "import time": import_time,
    "step cost": step_cost,
    "added cost": added_cost,
    **{
        f"{name} {page}": partial(runs, f"{name}_{page}", f"{name}-{page}.json")
        for name, page in (
            ("batches", "0009"),
            ("forks", "0010"),
            ("tuning", "0010"),
            ("tails", "0011"),
            ("bases", "0012"),
        )
    },
    "worth of momentum": partial(sweep, "0008", "momentum"),
    "worth of linear": partial(sweep, "0008", "linear"),
    **{
        f"sweep {page}": partial(sweep, page)
        for page in (path.stem.removeprefix("sweep-") for path in RESULTS.glob("sweep-*.jsonl"))
    },
    **{
        f"foresight {page}": partial(foresight, page)
        for page in (path.stem.removeprefix("foresight-") for path in RESULTS.glob("foresight-*"))
    },
    **{
        name: make
        for path in sorted(RESULTS.glob("bench-*.json"))
        for name, make in bench.blocks(load(path.name)).items()
    },
}


def rendered(page: Path) -> str:
    """A page with its blocks filled in; every block must be known."""
    text = page.read_text()
    if unknown := set(names(text)) - BLOCKS.keys():
        raise KeyError(f"{page.name}: nothing makes the blocks {sorted(unknown)}")
    return fill(text, BLOCKS)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page))
