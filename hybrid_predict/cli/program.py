"""A program with several commands: help, one-line error messages, exit statuses."""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from hybrid_predict.errors import ConfigError, HybridPredictError, did_you_mean
from hybrid_predict.report.plain_text import any_encoding, printable

BAD_USAGE, INTERRUPTED, CUT_OFF = 2, 130, 141
"""Exit statuses that every command shares; the last one is that of SIGPIPE in a shell."""


@dataclass(frozen=True)
class Command:
    """One command of a program.

    Args:
        help: One line for the help of the program.
        description: Text for the help of the command.
        add_options: Function that adds options; it gets the parser's ``add_argument``.
        run: Function that gets the parsed options and returns the exit status.
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

    Args:
        name: Name of the program.
        description: Text for its help.
        commands: Commands by name.
        argv: Name of the command and its arguments; None reads them from the process.
        version: Version that ``--version`` prints.

    Returns:
        The command's exit status. Bad usage gives 2, Ctrl-C or SIGTERM 130. If the reader of a
        pipe has left, it is 141.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with any_encoding():
        return _run(name, partial(_parse, name, description, commands, arguments, version))


def _run(name: str, parse: Callable[[], Callable[[], int]]) -> int:
    """Parse and run a command; print each error in one line."""
    try:
        try:
            run = parse()
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
    if not arguments or arguments[0].startswith("-"):
        parser = _program(name, description, commands, version)
        _, rest = parser.parse_known_args(arguments or ["--help"])
        raise _unknown(name, rest[0], parser)
    chosen = arguments[0]
    if chosen not in commands:
        remedy = did_you_mean(chosen, commands) or f"See {name} --help."
        raise ConfigError("COMMAND", f"one of {', '.join(commands)}", chosen, remedy)
    command, called = commands[chosen], f"{name} {chosen}"
    parser = _Parser(prog=called, description=command.description, allow_abbrev=False)
    command.add_options(parser.add_argument)
    options, rest = parser.parse_known_args(arguments[1:])
    if rest:
        raise _unknown(called, rest[0], parser)
    return partial(command.run, options)


def _program(
    name: str, description: str, commands: Mapping[str, Command], version: str | None
) -> _Parser:
    """Return the parser of ``--help`` and ``--version`` without a command."""
    width = max(map(len, commands))
    listed = "\n".join(f"  {key:{width}}  {command.help}" for key, command in commands.items())
    parser = _Parser(
        prog=name,
        usage=f"{name} COMMAND ...",
        description=f"{description}\n\ncommands:\n{listed}",
        epilog=f"{name} COMMAND --help prints the options of a command.",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if version is not None:
        parser.add_argument("--version", action="version", version=f"{name} {version}")
    return parser


def _unknown(called: str, word: str, parser: ArgumentParser) -> ConfigError:
    """Return the error for an unknown argument."""
    word = word.partition("=")[0]
    if not word.startswith("-"):
        return ConfigError(called, "no further argument", word, f"See {called} --help.")
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    remedy = did_you_mean(word, known) or f"See {called} --help."
    return ConfigError(called, "an option that it has", word, remedy)
