"""``python -m benchmarks``: runs studies, and shows their results."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.blocks import fill, names
from benchmarks.plan import Row, Selection
from benchmarks.plot import save_figure
from benchmarks.run import make_runs, stored
from benchmarks.studies import STUDIES, Blocks, Study
from hybrid_predict.cli.program import add_command, need, run_program
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.files import writing
from hybrid_predict.runs.runtime import finite, locked, writable_folder, write_json

PROGRAM = "python -m benchmarks"

DRAWN = tuple(name for name, study in STUDIES.items() if study.figures)
"""Studies that have a figure."""


def main(argv: list[str] | None = None) -> int:
    """Run a command; return 2 for bad usage, 130 after Ctrl-C, else 0."""
    parser = ArgumentParser(prog=PROGRAM, description="Run the benchmark's studies, and show them.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    told = "; ".join(f"{name} ({study.about})" for name, study in STUDIES.items())
    text = f"Run studies, or the rest of them. They are {told}."
    _run_options(add_command(commands, "run", _run, text).add_argument)
    text = (
        "Print results as Markdown tables, or write them into pages. There they stand between the "
        "marks <!-- results: NAME --> and <!-- end -->."
    )
    _table_options(add_command(commands, "table", _table, text).add_argument)
    text = "Draw a figure of results."
    _plot_options(add_command(commands, "plot", _plot, text).add_argument)
    text = (
        "Make the figures and pages of the committed results. They are the figures of docs/results "
        "and the blocks of README.md and docs/."
    )
    add_command(commands, "pages", _pages, text)
    return run_program(parser, argv)


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _run_options(add: Any) -> None:
    add("studies", nargs="+", metavar="STUDY", help=f"Of {', '.join(STUDIES)}.")
    for name, what in (("tasks", "Tasks"), ("settings", "Settings"), ("arms", "Arms")):
        add(f"--{name}", nargs="+", metavar="NAME", help=f"{what} in place of the study's.")
    add("--seeds", type=_positive, metavar="N", help="Paired seeds in place of the study's.")
    add("--jobs", type=_positive, default=1, metavar="N", help="Processes, one thread each (1).")
    add("--text", type=Path, metavar="FILE", help="Text file of the yardstick nanogpt, such as its "
        "input.txt; without one, the source text of the standard library.")  # fmt: skip
    add(
        "--output-dir",
        default="benchmark-runs",
        metavar="FOLDER",
        help="Folder of finished runs and results; the same command goes on where it was stopped "
        "(benchmark-runs).",
    )
    add("--commit", action="store_true", help="Copy the results to docs/results.")


def _run(options: Any) -> int:
    tasks, settings, arms = (
        names and tuple(names) for names in (options.tasks, options.settings, options.arms)
    )
    chosen = Selection(tasks, settings, arms, options.seeds, options.text)
    studies = {name: _study(name) for name in options.studies}
    folder = writable_folder(options.output_dir, "--output-dir")
    need("The benchmark", ("cli", "bench"))
    with locked(folder):
        for name, study in studies.items():
            _run_study(name, study, chosen, folder, options.jobs)
            if options.commit:
                shutil.copy(folder / study.file, RESULTS / study.file)
    return 0


def _run_study(name: str, study: Study, chosen: Selection, folder: Path, jobs: int) -> None:
    """Make the runs of a study that are missing, and write its results file.

    It starts from the committed runs that hold: those without the plug-in, and those of its present
    code.
    """
    plan = study.plan(chosen, folder)
    if not plan.ready({}):
        raise ConfigError("STUDY", "a study with runs of what is chosen", name)
    store = stored(folder, f"{name}-runs", plan)
    committed = study.read(RESULTS)
    known = study.runs(committed) if committed is not None else ()
    for row in known:
        if plan.holds(row) and plan.key(row) not in store.done:
            store.add(row)
    print(f"{PROGRAM}: {name}, kept in {folder}", flush=True)
    try:
        make_runs(plan, store, jobs, lambda row: print(plan.tell(row), flush=True))
    finally:
        path = folder / study.file
        if study.compiled is None:
            _write_rows(store.done.values(), path)
        else:
            write_json(finite(study.compiled(plan, store.done, study.read(folder))), path)
        finished = len(plan.chosen(store.done))
        print(f"{finished:,} runs are finished. Results: {path}", flush=True)


def _write_rows(rows: Iterable[Row], path: Path) -> None:
    with writing(path):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _table_options(add: Any) -> None:
    add("study", metavar="STUDY", help=f"One of {', '.join(STUDIES)}.")
    _from_options(add)
    add("--write", nargs="+", default=[], metavar="PAGE", help="Markdown pages; fill their marked "
        "blocks in place of printing.")  # fmt: skip


def _from_options(add: Any) -> None:
    add("--output-dir", type=Path, default=RESULTS, metavar="FOLDER", help="Folder of the command "
        "run (docs/results).")  # fmt: skip


def _table(options: Any) -> int:
    with _reading(options):
        blocks = STUDIES[options.study].blocks(_results(options))
        texts = blocks if options.write else {name: make() for name, make in blocks.items()}
    for page in options.write:
        _fill(page, blocks)
    for name, text in {} if options.write else texts.items():
        print(f"\n{name}\n\n{text}")
    return 0


def _fill(name: str, blocks: Blocks) -> None:
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
    add(
        "study",
        metavar="STUDY",
        help=f"One of {', '.join(DRAWN)}.",
    )
    _from_options(add)
    add("--output", default="bench.png", metavar="FILE", help="File to write: .png, .svg or .pdf "
        "(bench.png).")  # fmt: skip


def _plot(options: Any) -> int:
    if options.study not in DRAWN:
        raise ConfigError("STUDY", f"one of {', '.join(DRAWN)}", options.study)
    draw = next(iter(STUDIES[options.study].figures.values()))
    with _reading(options):
        figure = draw(_results(options))
    try:
        save_figure(figure, options.output, options.output_dir / STUDIES[options.study].file)
    except (OSError, ValueError) as error:
        expected = "a file name that a figure can be written to"
        raise ConfigError("--output", expected, options.output, str(error)) from error
    print(f"Figure: {options.output}")
    return 0


def _pages(options: Any) -> int:
    from benchmarks import render  # reads all committed files

    return render.main()


def _study(name: str) -> Study:
    if name not in STUDIES:
        raise ConfigError("STUDY", f"one of {', '.join(STUDIES)}", name)
    return STUDIES[name]


def _results(options: Any) -> Any:
    study = _study(options.study)
    if (found := study.read(options.output_dir)) is None:
        raise ConfigError("--output-dir", f"a folder with {study.file}", str(options.output_dir))
    return found


@contextmanager
def _reading(options: Any) -> Iterator[None]:
    """Turn errors from reading a results file into one that names the file."""
    try:
        yield
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        file = options.output_dir / STUDIES[options.study].file
        expected = f"a results file written by {PROGRAM} run"
        told = f"{type(error).__name__}: {error}"
        raise ConfigError("--output-dir", expected, str(file), told) from error


if __name__ == "__main__":
    sys.exit(main())
