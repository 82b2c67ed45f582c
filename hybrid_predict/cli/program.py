"""A program with several commands: help, one-line error messages, exit statuses, extras."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from hybrid_predict.errors import ConfigError, HybridPredictError, MissingExtraError, did_you_mean
from hybrid_predict.report.plain_text import any_encoding, printable

PROGRAM = "hybrid-predict"

BAD_USAGE, INTERRUPTED, CUT_OFF = 2, 130, 141
"""Exit statuses that every command shares; the last one is that of SIGPIPE in a shell."""

EXTRAS = {
    "cli": (
        "rich", "matplotlib", "jsonargparse", "docstring_parser", "scipy", "filelock", "jinja2",
    ),
    "lightning": ("lightning",),
    "huggingface": ("transformers", "accelerate"),
    "mlflow": ("mlflow",),
    "jax": ("jax", "optax"),
    "bench": ("schedulefree", "pytorch_optimizer", "opt_einsum", "sklearn"),
}  # fmt: skip
"""Modules that each extra installs and the commands import."""

_HEAVY = ("lightning", "mlflow")
"""Extras that take seconds to import."""


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

    Each error is printed in one line. None as ``argv`` reads the process's arguments. The exit
    status is the command's; 2 for bad usage, 130 after Ctrl-C or SIGTERM, 141 after a broken pipe.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with any_encoding():
        try:
            try:
                run = _parse(name, description, commands, arguments, version)
            except SystemExit as end:  # --help and --version
                return int(end.code or 0)
            with _sigterm_as_ctrl_c():
                return run()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # rich: the reader of a pipe left
                return CUT_OFF
            print(f"{name}: error: the model's own code raised {end!r}.", file=sys.stderr)
            return BAD_USAGE
        except HybridPredictError as error:
            print(f"{name}: error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
            return BAD_USAGE
        except BrokenPipeError:  # the reader of a pipe, such as head, has left
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return CUT_OFF
        except KeyboardInterrupt:
            text = "stopped; what was finished is kept, and the same command continues from there."
            print(f"{name}: {text}", file=sys.stderr)
            return INTERRUPTED


class _Parser(ArgumentParser):
    """Raises an error where argparse would print the usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise HybridPredictError(message)


def _parse(
    name: str,
    description: str,
    commands: Mapping[str, Command],
    arguments: list[str],
    version: str | None,
) -> Callable[[], int]:
    """Return a function that runs the chosen command."""
    end = f"{name} COMMAND --help prints the options of a command."
    parser = _Parser(prog=name, description=description, epilog=end, allow_abbrev=False)
    if version is not None:
        parser.add_argument("--version", action="version", version=f"{name} {version}")
    listed = parser.add_subparsers(title="commands", metavar="COMMAND")
    for key, command in commands.items():
        chosen = listed.add_parser(
            key, help=command.help, description=command.description, allow_abbrev=False
        )
        command.add_options(chosen.add_argument)
        chosen.set_defaults(chosen=(command.run, chosen))
    first = next(iter(arguments), "--help")
    if not first.startswith("-") and first not in commands:
        remedy = did_you_mean(first, commands) or f"See {name} --help."
        raise ConfigError("COMMAND", f"one of {', '.join(commands)}", first, remedy)
    options, rest = parser.parse_known_args(arguments or ["--help"])
    run, chosen = getattr(options, "chosen", (None, parser))
    if rest or run is None:
        raise _unknown((rest or arguments)[0], chosen)
    options.typed = arguments
    return partial(run, options)


def _unknown(word: str, parser: ArgumentParser) -> ConfigError:
    """Return the error for an unknown argument."""
    word, expected = word.partition("=")[0], "no further argument"
    remedy = f"See {parser.prog} --help."
    if word.startswith("-"):
        known = [name for name in parser._option_string_actions if name.startswith("--")]
        expected, remedy = "an option that it has", did_you_mean(word, known) or remedy
    return ConfigError(parser.prog, expected, word, remedy)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, as on Ctrl-C."""
    free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not free or threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def stop(number: int, _: object) -> None:
        if os.getpid() == process:
            raise KeyboardInterrupt
        signal.signal(number, signal.SIG_DFL)  # a forked worker of the user's data
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def positive(text: str) -> int:
    """Parse the value of an option as a positive integer, such as a number of threads."""
    if not text.isdecimal() or not 1 <= int(text[:5]) <= 4096:
        raise ArgumentTypeError(f"expected an integer from 1 to 4096, got {text!r}")
    return int(text)


def with_seeds(typed: Iterable[str], seeds: int) -> str:
    """Return the command that was typed with another number of seeds, which keeps finished runs."""
    words, kept = iter(typed), [PROGRAM]
    for word in words:
        if word == "--seeds":
            next(words)
        elif word != "--overwrite" and not word.startswith("--seeds="):
            kept.append(word)
    return shlex.join([*kept, "--seeds", str(seeds)])


def under_way(text: str) -> None:
    """Print to standard error what takes a while, if standard error is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"{PROGRAM}: {text} …", file=sys.stderr, flush=True)


def need(feature: str, extras: Iterable[str]) -> None:
    """Import the packages of extras, or raise an error that names all missing extras at once."""
    missing, extras = [], list(extras)
    if heavy := [name for name in _HEAVY if name in extras]:
        under_way(f"loading {', '.join(heavy)}")
    for extra in extras:
        try:
            for module in EXTRAS[extra]:
                import_module(module)
        except ImportError:
            missing.append(extra)
    if missing:
        raise MissingExtraError(feature, ",".join(missing))
