"""``python -m benchmarks``: runs benchmark suites, and writes their results as tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import table
from benchmarks.arms import ARMS
from benchmarks.blocks import fill, names
from benchmarks.plan import SETTINGS, SUITES, TUNING_SEED, Plan, Row, Suite, select
from benchmarks.plot import save_figure
from benchmarks.rates import command as rates
from benchmarks.run import (
    FIELDS,
    RESULTS,
    SCHEMA,
    check_device,
    compile_results,
    measure_steps,
    outcome,
    run_plan,
    stored,
)
from hybrid_predict.cli.program import INTERRUPTED, Command, need, run_program
from hybrid_predict.cli.screen import Screen
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.runtime import (
    environment,
    finite,
    locked,
    writable_folder,
    write_json,
)

PROGRAM = "python -m benchmarks"


def main(argv: list[str] | None = None) -> int:
    """Run a command; return 2 for bad usage, 130 after Ctrl-C, else 0."""
    return run_program(PROGRAM, "Run the benchmark suites, and show their results.", _ACTIONS, argv)


def _run_options(add: Any) -> None:
    suites = ", ".join(SUITES)
    add("--suite", default="core", metavar="NAME", help=f"One of {suites} (core).")
    for name, what in (("tasks", "Tasks"), ("settings", "Settings"), ("arms", "Arms")):
        add(f"--{name}", nargs="+", metavar="NAME", help=f"{what} in place of the suite's.")
    add("--seeds", type=int, metavar="N", help="Paired seeds in place of the suite's.")
    add("--jobs", type=int, default=1, metavar="N", help="Processes, one thread each (1).")
    add(
        "--output-dir",
        default="benchmark-runs",
        metavar="FOLDER",
        help="Folder for finished runs; the same command goes on where it was stopped "
        "(benchmark-runs).",
    )


def _run(options: Any) -> int:
    suite = _suite(options)
    plan, folder = Plan(suite), writable_folder(options.output_dir, "--output-dir")
    need("The benchmark", ("cli", "bench"))
    check_device(plan)
    with locked(folder):
        return _run_in(folder, plan, options)


def _run_in(folder: Path, plan: Plan, options: Any) -> int:
    store = stored(folder)
    print(f"{PROGRAM}: suite {options.suite}, {len(plan)} runs, kept in {folder}", flush=True)
    path, stopped = folder / RESULTS, False
    steps = _load(str(path))["steps"] if path.exists() else {}
    try:
        lengths, before = [1.0] * len(plan), len(plan.chosen(store.done))
        with Screen(lengths, outcome, name=_name, done=before) as screen:
            run_plan(plan, store, options.jobs, screen.run_finished)
        steps = measure_steps(plan)
    except KeyboardInterrupt:
        stopped = True
    done = plan.chosen(store.done)
    results = finite(compile_results(options.suite, plan, done, environment(), steps))
    write_json(results, path)
    for name, make in table.blocks(results).items():
        print(f"\n{name}\n\n{make()}")
    print(f"\nResults: {path}")
    return INTERRUPTED if stopped else 0


def _suite(options: Any) -> Suite:
    if options.suite not in SUITES:
        raise ConfigError("--suite", f"one of {', '.join(SUITES)}", options.suite)
    return select(
        SUITES[options.suite], options.tasks, options.settings, options.arms, options.seeds
    )


def _table_options(add: Any) -> None:
    add("files", nargs="+", metavar="FILE", help="Results files of the command run.")
    add("--write", nargs="+", default=[], metavar="PAGE", help="Markdown pages; fill their marked "
        "blocks in place of printing.")  # fmt: skip


def _table(options: Any) -> int:
    blocks: dict[str, Callable[[], str]] = {}
    for file in options.files:
        with _reading(file):
            texts = table.blocks(_load(file))
        # Bound here: a block is texts only when it is asked for.
        blocks.update({name: partial(_made, file, make) for name, make in texts.items()})
    for page in options.write:
        _fill(page, blocks)
    for name, make in {} if options.write else blocks.items():
        print(f"\n{name}\n\n{make()}")
    return 0


def _made(file: str, make: Callable[[], str]) -> str:
    with _reading(file):
        return make()


@contextmanager
def _reading(file: str) -> Iterator[None]:
    """Turn errors from reading a results file into one that names the file."""
    try:
        yield
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        expected = "a results file written by python -m benchmarks run"
        raise ConfigError("FILE", expected, file, f"{type(error).__name__}: {error}") from error


def _fill(name: str, blocks: Mapping[str, Callable[[], str]]) -> None:
    """Fill the blocks of a page."""
    try:
        text = Path(name).read_text("utf-8")
    except OSError as error:
        raise ConfigError("--write", "a Markdown page", name, str(error)) from error
    known = [block for block in names(text) if block in blocks]
    if not known:
        remedy = f"Blocks of these results are {', '.join(blocks)}."
        raise ConfigError("--write", "a page with a block of these results", name, remedy)
    Path(name).write_text(fill(text, blocks), encoding="utf-8")
    print(f"{name}: {', '.join(known)}")


def _plot_options(add: Any) -> None:
    add("file", metavar="FILE", help="Results file of the command run.")
    add("--output", default="bench.png", metavar="FILE", help="File to write: .png, .svg or .pdf "
        "(bench.png).")  # fmt: skip


def _plot(options: Any) -> int:
    from benchmarks.plot import plot

    with _reading(options.file):
        figure = plot(_load(options.file))
    try:
        save_figure(figure, options.output, options.file)
    except (OSError, ValueError) as error:
        expected = "a file name that a figure can be written to"
        raise ConfigError("--output", expected, options.output, str(error)) from error
    print(f"Figure: {options.output}")
    return 0


def _load(name: str) -> dict[str, Any]:
    """Read a results file of this version."""
    expected = "a results file written by python -m benchmarks run"
    try:
        results: dict[str, Any] = json.loads(Path(name).read_text("utf-8"))
        missing = FIELDS - results.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError("FILE", expected, name, f"{type(error).__name__}: {error}") from error
    if missing:
        raise ConfigError("FILE", expected, name, f"It lacks {', '.join(sorted(missing))}.")
    if results["schema"] != SCHEMA:
        raise ConfigError("FILE", f"results of schema {SCHEMA}", results["schema"])
    arms = {arm for chosen in results["arms"].values() for arm in chosen}
    if unknown := (results["arms"].keys() - SETTINGS.keys()) | (arms - ARMS.keys()):
        remedy = f"It was written by another version: it has {', '.join(sorted(unknown))}."
        raise ConfigError("FILE", expected, name, remedy)
    return results


def _name(row: Row) -> str:
    grid = " (grid)" if row["seed"] == TUNING_SEED else ""
    return (
        f"{row['task']}, {row['setting']}, {row['arm']}, rate {row['rate']:g} x "
        f"{row['hidden']:g}, seed {row['seed']}{grid}"
    )


_ACTIONS = {
    "run": Command(
        "Run a suite, or the rest of it.",
        "Runs a suite, or the rest of it. Suites: core takes about four hours on 2 cores, "
        "wide too, fresh one, smoke minutes, gpu needs a CUDA device.",
        _run_options,
        _run,
    ),
    "rates": rates.COMMAND,
    "table": Command(
        "Print results as Markdown tables, or write them into pages.",
        "Prints results as Markdown tables, or writes them into pages, between the marks "
        "<!-- results: NAME --> and <!-- end -->.",
        _table_options,
        _table,
    ),
    "plot": Command("Draw a figure of results.", "Draw a figure of results.", _plot_options, _plot),
}

if __name__ == "__main__":
    sys.exit(main())
