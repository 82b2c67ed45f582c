"""``python -m benchmarks``: runs studies, and shows their results."""

from __future__ import annotations

import json
import shutil
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.plan import Selection, make_runs
from benchmarks.registry import STUDIES, Study
from hybrid_predict.cli.program import add_command, need, run_program
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.files import named
from hybrid_predict.runs.runtime import Rows, finite, locked, writable_folder, write_json

PROGRAM = "python -m benchmarks"


def main(argv: list[str] | None = None) -> int:
    """Run a command; return 2 for bad usage, 130 after Ctrl-C, else 0."""
    parser = ArgumentParser(prog=PROGRAM, description="Run the benchmark's studies, and show them.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    told = "; ".join(f"{name} ({study.about})" for name, study in STUDIES.items())
    text = f"Run studies, or the rest of them. They are {told}."
    run = add_command(commands, "run", _run, text).add_argument
    told = f"Of {', '.join(STUDIES)}."
    run("studies", nargs="+", choices=STUDIES, metavar="STUDY", help=told)
    for name in ("tasks", "settings", "arms"):
        run(f"--{name}", nargs="+", metavar="NAME", help=f"Some {name} of the study.")
    run("--seeds", type=_positive, metavar="N", help="Paired seeds in place of the study's.")
    _run_options(run)
    text = "Run all studies whose results pages show, or the rest of them."
    everything = add_command(commands, "everything", _run, text)
    shown = [name for name, study in STUDIES.items() if (RESULTS / study.file).exists()]
    everything.set_defaults(studies=shown, tasks=None, settings=None, arms=None, seeds=None)
    _run_options(everything.add_argument)
    show = add_command(commands, "show", _show, "Print results as Markdown tables.").add_argument
    show("study", choices=STUDIES, metavar="STUDY", help=f"One of {', '.join(STUDIES)}.")
    told = "Folder of the command run (docs/results)."
    show("--output-dir", type=Path, default=RESULTS, metavar="FOLDER", help=told)
    text = (
        "Make the figures and pages of the committed results. They are the figures of docs/results "
        "and the blocks of README.md and docs/ between the marks <!-- results: NAME --> and "
        "<!-- end -->."
    )
    add_command(commands, "pages", _pages, text)
    return run_program(parser, argv)


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _run_options(add: Any) -> None:
    add("--jobs", type=_positive, default=1, metavar="N", help="Processes, one thread each (1).")
    add(
        "--text",
        type=Path,
        metavar="FILE",
        help="Text file for nanoGPT's recipes (yardsticks, gpu), such as its input.txt; without "
        "one, the source text of the standard library.",
    )
    add(
        "--output-dir",
        default="benchmark-runs",
        metavar="FOLDER",
        help="Folder of finished runs and results; the same command goes on where it was stopped "
        "(benchmark-runs).",
    )
    add("--commit", action="store_true", help="Copy the results to docs/results.")


def _run(options: Any) -> int:
    chosen = Selection(options.tasks, options.settings, options.arms, options.seeds, options.text)
    folder = writable_folder(options.output_dir, "--output-dir")
    need("The benchmark", ("cli", "bench"))
    with locked(folder):
        for name in options.studies:
            study = STUDIES[name]
            _run_study(name, study, chosen, folder, options.jobs)
            if options.commit:
                shutil.copy(folder / study.file, RESULTS / study.file)
    return 0


def _run_study(name: str, study: Study, chosen: Selection, folder: Path, jobs: int) -> None:
    """Make the runs of a study that are missing, and write its results file.

    It starts from the committed runs that hold: those without the plug-in, and those of its present
    code.
    """
    plan = study.plan(chosen)
    if not plan.ready({}):
        raise ConfigError("STUDY", "a study with runs of what is chosen", name)
    store = Rows(folder / f"{name}-runs.jsonl", plan.key)
    store.done = {key: row for key, row in store.done.items() if plan.holds(row)}
    committed = study.read(RESULTS)
    known = study.runs(committed) if committed is not None else ()
    for row in known:
        if plan.holds(row) and plan.key(row) not in store.done:
            store.add(row)
    print(f"{PROGRAM}: {name}, kept in {folder}", flush=True)
    try:
        make_runs(plan, store, jobs)
    finally:
        path = folder / study.file
        rows = list(store.done.values())
        if study.compiled is None:
            with named(path):
                path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        else:
            whole = not plan.ready(store.done)
            content = study.compiled(chosen, rows, whole, study.read(folder) or committed)
            write_json(finite(content), path)
        print(f"{len(rows):,} runs are kept. Results: {path}", flush=True)


def _show(options: Any) -> int:
    study = STUDIES[options.study]
    if not (options.output_dir / study.file).exists():
        raise ConfigError("--output-dir", f"a folder with {study.file}", str(options.output_dir))
    for name, make in study.blocks(study.read(options.output_dir)).items():
        print(f"\n{name}\n\n{make()}")
    return 0


def _pages(options: Any) -> int:
    from benchmarks import render  # reads all committed files

    return render.main()


if __name__ == "__main__":
    sys.exit(main())
