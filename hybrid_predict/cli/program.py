"""What all commands share: exit statuses, errors in one line, options, extras."""

from __future__ import annotations

import signal
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Any

from hybrid_predict.errors import HybridPredictError, MissingExtraError
from hybrid_predict.runs.files import printable

PROGRAM = "hybrid-predict"

BAD_USAGE = 2
INTERRUPTED = 130
"""Exit statuses that every command shares."""

EXTRAS = {
    "cli": ("rich", "matplotlib", "jsonargparse", "scipy", "filelock", "jinja2"),
    "lightning": ("lightning",),
    "huggingface": ("transformers", "accelerate"),
    "mlflow": ("mlflow",),
    "jax": ("jax", "optax"),
    "bench": ("schedulefree", "pytorch_optimizer", "opt_einsum", "sklearn"),
}
"""Modules that each extra installs and the commands import."""


def add_command(
    commands: Any, name: str, run: Callable[[Namespace], int], description: str
) -> ArgumentParser:
    """Add a command to those of a parser; its ``run`` takes the options and returns the status.

    The first sentence of the description is its line in the list of commands.
    """
    description = " ".join(description.split())
    line = description.partition(". ")[0]
    parser: ArgumentParser = commands.add_parser(name, help=line, description=description)
    parser.set_defaults(run=run)
    return parser


def run_program(parser: ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name, or print the help if there are none.

    Errors of the package are printed in one line, others with their traceback. None as ``argv``
    reads the process's arguments. The exit status is the command's; 2 for bad usage or an error,
    130 after Ctrl-C or SIGTERM.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # prints ? for what an encoding lacks
    try:
        options = parser.parse_args(list(sys.argv[1:] if argv is None else argv) or ["--help"])
    except SystemExit as end:  # --help, --version, bad usage
        return int(end.code or 0)
    places = list(sys.path)
    sys.path.insert(0, "")  # where the user's own modules are: the current folder
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.stderr.isatty():
        print(f"{parser.prog}: loading, which takes seconds …", file=sys.stderr, flush=True)
    try:
        return int(options.run(options))
    except SystemExit as end:
        print(f"{parser.prog}: error: the model's own code raised {end!r}.", file=sys.stderr)
    except HybridPredictError as error:
        print(f"{parser.prog}: error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
    except KeyboardInterrupt:
        kept = "; what was finished is kept, and the same command continues from there"
        text = f"stopped{kept if hasattr(options, 'output_dir') else ''}."
        print(f"{parser.prog}: {text}", file=sys.stderr)
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
    finally:
        sys.path[:] = places
        signal.signal(signal.SIGTERM, before)
    return BAD_USAGE


def missing(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if find_spec(module) is None]


def need(feature: str, extras: Iterable[str]) -> None:
    """Raise an error that names all missing extras."""
    if lacking := [extra for extra in extras if missing(extra)]:
        raise MissingExtraError(feature, ",".join(lacking))
