"""A program with several commands: help, one-line error messages, exit statuses, extras."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import TextIOWrapper
from typing import Any, NoReturn

from hybrid_predict.errors import HybridPredictError, MissingExtraError
from hybrid_predict.runs.files import printable

PROGRAM = "hybrid-predict"

BAD_USAGE = 2
INTERRUPTED = 130
CUT_OFF = 141
"""Exit statuses that every command shares; the last one is that of SIGPIPE in a shell."""

EXTRAS = {
    "cli": (
        "rich",
        "matplotlib",
        "jsonargparse",
        "docstring_parser",
        "scipy",
        "filelock",
        "jinja2",
    ),
    "lightning": ("lightning",),
    "huggingface": ("transformers", "accelerate"),
    "mlflow": ("mlflow",),
    "jax": ("jax", "optax"),
    "bench": ("schedulefree", "pytorch_optimizer", "opt_einsum", "sklearn"),
}
"""Modules that each extra installs and the commands import."""


@dataclass(frozen=True)
class Command:
    """One command of a program: ``help`` is its line there, ``description`` its own text.

    ``add_options`` gets the parser's ``add_argument``; ``run`` returns the exit status.
    """

    help: str
    description: str
    add_options: Callable[[Callable[..., Any]], None]
    run: Callable[[Namespace], int]


def run_program(
    name: str,
    description: str,
    commands: Mapping[str, Command],
    argv: Sequence[str] | None = None,
    version: str | None = None,
) -> int:
    """Run the command that the arguments name, or print the help if there are none.

    Each error of the package is printed in one line, others with their traceback. None as ``argv``
    reads the process's arguments. The exit status is the command's; 2 for bad usage or an error,
    130 after Ctrl-C or SIGTERM, 141 after a broken pipe.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # prints ? for what an encoding lacks
    parser = _parser(name, description, commands, version)
    try:
        try:
            options = parser.parse_args(list(sys.argv[1:] if argv is None else argv) or ["--help"])
        except SystemExit as end:  # --help and --version
            return int(end.code or 0)
        with _sigterm_as_ctrl_c():
            return int(options.command.run(options))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich: the reader of a pipe left
            return CUT_OFF
        print(f"{name}: error: the model's own code raised {end!r}.", file=sys.stderr)
    except HybridPredictError as error:
        print(f"{name}: error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
    except BrokenPipeError:  # the reader of a pipe, such as head, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CUT_OFF
    except KeyboardInterrupt:
        text = "stopped; what was finished is kept, and the same command continues from there."
        print(f"{name}: {text}", file=sys.stderr)
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
    return BAD_USAGE


class _Parser(ArgumentParser):
    """Raises an error where argparse would print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise HybridPredictError(f"{message}. See {self.prog} --help.")


def _parser(
    name: str, description: str, commands: Mapping[str, Command], version: str | None
) -> ArgumentParser:
    """Return the parser of a program; ``command`` in what it parses is the chosen one."""
    end = f"{name} COMMAND --help prints the options of a command."
    parser = _Parser(prog=name, description=description, epilog=end, allow_abbrev=False)
    if version is not None:
        parser.add_argument("--version", action="version", version=f"{name} {version}")
    listed = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for key, command in commands.items():
        chosen = listed.add_parser(
            key, help=command.help, description=command.description, allow_abbrev=False
        )
        command.add_options(chosen.add_argument)
        chosen.set_defaults(command=command)
    return parser


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, as on Ctrl-C, unless it is handled otherwise."""
    free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not free or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def positive(text: str) -> int:
    """Parse the value of an option as a positive integer, such as a number of threads."""
    if not text.isdecimal() or not 1 <= int(text[:5]) <= 4096:
        raise ArgumentTypeError(f"expected an integer from 1 to 4096, got {text!r}")
    return int(text)


def need(feature: str, extras: Iterable[str]) -> None:
    """Import the packages of extras, or raise an error that names all missing extras at once.

    That takes seconds, so a terminal is told first.
    """
    missing = []
    extras = list(extras)
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{PROGRAM}: loading {', '.join(extras)} …", file=sys.stderr, flush=True)
    for extra in extras:
        try:
            for module in EXTRAS[extra]:
                import_module(module)
        except ImportError:
            missing.append(extra)
    if missing:
        raise MissingExtraError(feature, ",".join(missing))
