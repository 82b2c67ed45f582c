"""The command ``hybrid-predict``."""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentError, ArgumentTypeError
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_predict import __version__
from hybrid_predict.demo import DemoPlan, Observer, run_demo, tracking_uri
from hybrid_predict.errors import ConfigError, HybridPredictError, MissingExtraError
from hybrid_predict.report.page import table_rows
from hybrid_predict.tasks.stdlib_gpt import Arm, DemoRecipe

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser
    from rich.table import Table

PROGRAM = "hybrid-predict"
BAD_USAGE, INTERRUPTED = 2, 130

# Modules that the demo imports sooner or later, by the extra that brings them.
_DEMO_NEEDS = {"cli": ("rich", "matplotlib"), "lightning": ("lightning",)}


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Its arguments; None for those of the process.

    Returns:
        The exit status: 0 if all went well, 2 for bad usage, 130 after Ctrl-C.
    """
    try:
        arguments = _parser().parse_args(argv)
        return _demo(arguments.demo)
    except SystemExit as end:  # --help and --version
        return int(end.code or 0)
    except ArgumentError as error:
        return _complain(str(error))
    except HybridPredictError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped before there was anything to report.", file=sys.stderr)
        return INTERRUPTED


def _complain(message: str) -> int:
    """One line on stderr, whatever the message looks like."""
    print(f"{PROGRAM}: error: {' '.join(message.split())}", file=sys.stderr)
    return BAD_USAGE


def _parser() -> ArgumentParser:
    try:
        from jsonargparse import ArgumentParser, DefaultHelpFormatter
    except ImportError as error:
        raise MissingExtraError("The command line", "cli") from error

    class Help(DefaultHelpFormatter):
        """Help texts as they are written, without types and defaults behind them."""

        def _get_help_string(self, action: Any) -> str:
            return str(action.help)

    parser = ArgumentParser(
        prog=PROGRAM,
        formatter_class=Help,
        description="Train neural networks in fewer full steps by forecasting where their weights "
        "are going.",
        version=__version__,
        exit_on_error=False,
    )
    commands = parser.add_subcommands(dest="command", metavar="COMMAND")
    commands.add_subcommand(
        "demo", _demo_parser(Help), help="Train a small GPT with and without it."
    )
    return parser


def _demo_parser(formatter: Any) -> ArgumentParser:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        description="Trains a small GPT on the source text of Python's standard library: in full, "
        "with a shortened schedule, and with forecasts, from the same weights and batches. Needs "
        "no network. Writes a report, the results and an MLflow database into the output folder. "
        "Takes 6 to 8 minutes on 2 cores, about 1 minute with --quick.",
        exit_on_error=False,
        formatter_class=formatter,
    )
    _add_options(parser)
    return parser


def _add_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--quick", action="store_true", help="A third of the full steps, and one seed.")
    add("--seeds", type=_integer, metavar="N", help="Paired seeds (3; with --quick 1).")
    add(
        "--speedup",
        type=_number,
        default=1.5,
        metavar="X",
        help="Equivalent steps per full step of the hybrid arm, above 1 (1.5).",
    )
    add(
        "--steps",
        type=_integer,
        metavar="N",
        help="Full steps of the full arm (1800; with --quick 600).",
    )
    add(
        "--learning-rate",
        type=_number,
        metavar="X",
        help="Peak learning rate, all arms (0.0113; with --quick 0.008).",
    )
    add(
        "--controls",
        action="store_true",
        help="One more arm: full, with the hidden matrices at twice the learning rate.",
    )
    add(
        "--output-dir",
        default="hybrid-predict-demo",
        metavar="FOLDER",
        help="Where everything is written (hybrid-predict-demo).",
    )
    add(
        "--threads",
        type=_integer,
        metavar="N",
        help="Threads of torch (1, or one per core up to 4, whichever is faster when tried before "
        "each seed). On a busy machine, setting OMP_WAIT_POLICY=passive in the environment helps.",
    )
    add("--no-mlflow", action="store_true", help="Record nothing in MLflow.")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"expected an integer, got {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"expected a number, got {text!r}") from None


def _demo(options: Any) -> int:
    plan = _demo_plan(options)
    folder = _output_folder(options.output_dir)
    mlflow = not options.no_mlflow
    print(f"{PROGRAM} demo: {len(plan.runs())} runs, written to {folder}", flush=True)
    _need({**_DEMO_NEEDS, **({"mlflow": ("mlflow",)} if mlflow else {})})
    with DemoScreen(plan) as screen:
        results = run_demo(plan, folder, screen, mlflow=mlflow)
    screen.conclude(results, folder, mlflow=mlflow)
    return INTERRUPTED if results["partial"] else 0


def _demo_plan(options: Any) -> DemoPlan:
    recipe = DemoRecipe.quick() if options.quick else DemoRecipe()
    given = {"steps": options.steps, "learning_rate": options.learning_rate}
    recipe = replace(recipe, **{name: v for name, v in given.items() if v is not None})
    seeds = options.seeds if options.seeds is not None else 1 if options.quick else 3
    chosen = {name: getattr(options, name) for name in ("speedup", "controls", "threads")}
    return DemoPlan(recipe=recipe, seeds=seeds, **chosen)


def _output_folder(name: str) -> Path:
    """Make the folder, and make sure that it can be written to before training begins."""
    folder = Path(name).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        reason = f"The system says: {error.strerror}."
        raise ConfigError(
            "--output-dir", "a folder that can be written to", name, reason
        ) from error


def _need(extras: Mapping[str, tuple[str, ...]]) -> None:
    """Import what the demo needs, so that whatever is missing is told at once."""
    missing = []
    for extra, modules in extras.items():
        try:
            for module in modules:
                import_module(module)
        except ImportError:
            missing.append(extra)
    if missing:
        raise MissingExtraError("The demo", ",".join(missing))


class DemoScreen(Observer):
    """Shows the demo's progress and results on the terminal, or in a file line by line.

    Args:
        plan: Which runs will be made.
    """

    def __init__(self, plan: DemoPlan) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._console = Console(highlight=False)
        self._runs = len(plan.runs())
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[note]}"),
            Remaining(),
            console=self._console,
            transient=True,
            refresh_per_second=4,
            disable=not self._console.is_terminal,
        )
        total = sum(arm.planned_full_steps for _, arm in plan.runs())
        self._all = self._progress.add_task("all runs", total=total, note="full steps")
        self._one = self._progress.add_task("preparing", total=None, note="")
        self._done_runs = self._done_steps = self._planned = 0

    def __enter__(self) -> DemoScreen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def run_started(self, arm: Arm, seed: int) -> None:
        """Show the coming run on the second bar."""
        self._planned = arm.planned_full_steps
        name = f"{arm.name}, seed {seed}"
        self._progress.reset(self._one, description=name, total=self._planned, note="")

    def stepped(self, full_steps: int, loss: float) -> None:
        """Move both bars."""
        self._progress.update(self._one, completed=full_steps, note=f"loss {loss:.3f}")
        self._progress.update(self._all, completed=self._done_steps + full_steps)

    def run_finished(self, run: Mapping[str, Any]) -> None:
        """Leave one line behind."""
        self._done_runs += 1
        self._done_steps += self._planned
        self._progress.update(self._all, completed=self._done_steps)
        self._console.print(
            f"{self._done_runs}/{self._runs}  {run['arm']}, seed {run['seed']}: "
            f"{run['full_steps']:,} full steps in {run['seconds']:.1f} s, "
            f"validation loss {run['val_loss']:.4f}"
        )

    def conclude(self, results: Mapping[str, Any], folder: Path, *, mlflow: bool) -> None:
        """Print the table, the conclusion, and where to look further."""
        show, conclusion = self._console.print, results["conclusion"]
        if results["partial"]:
            show(f"\nStopped after {len(results['runs'])} of {results['planned_runs']} runs.")
        if results["summary"]:
            show()
            show(_table(results))
        show(f"\n[bold]{conclusion['headline']}[/bold]\n{conclusion['text']}\n")
        show(f"Report:   {folder / 'report.html'}", soft_wrap=True)
        show(f"Results:  {folder / 'results.json'}", soft_wrap=True)
        if mlflow:
            uri = tracking_uri(folder)
            show(f"MLflow:   mlflow ui --backend-store-uri {uri}", soft_wrap=True)


def _table(results: Mapping[str, Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("arm", no_wrap=True)
    titles = ("full\nsteps", "equivalent\nsteps", "seconds", "final validation\nloss (mean ± sd)")
    for title in (*titles, "equivalent\nplain steps"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in table_rows(results):
        table.add_row(*row.values())
    return table
