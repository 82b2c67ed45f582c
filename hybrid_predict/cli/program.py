"""A program of several commands: its help, bad usage told in one line, and exit statuses."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from hybrid_predict.errors import ConfigError, HybridPredictError, did_you_mean

BAD_USAGE, INTERRUPTED = 2, 130
"""Exit statuses that mean the same for every command."""


@dataclass(frozen=True)
class Command:
    """One command of a program.

    Args:
        help: One line, for the program's own help.
        description: What it does, for its own.
        add_options: Called with a parser's ``add_argument``.
        run: Called with what was parsed; returns the exit status.
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
    """Run the command that the arguments ask for.

    Args:
        name: What the program is called.
        description: What it does.
        commands: Its commands by name.
        argv: Its arguments; None for those of the process.
        version: What ``--version`` prints.

    Returns:
        The exit status: 2 for bad usage, 130 after Ctrl-C, else the command's own. Without any
        argument the help is printed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            run = _parsed(name, description, commands, arguments, version)
        except SystemExit as end:  # --help and --version
            return int(end.code or 0)
        return run()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich ends so where head has enough
            return 0
        print(f"{name}: error: the model's own code ended with {end!r}.", file=sys.stderr)
        return BAD_USAGE
    except HybridPredictError as error:
        print(f"{name}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_USAGE
    except BrokenPipeError:  # the reader of a pipe, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"{name}: stopped before there was anything to report.", file=sys.stderr)
        return INTERRUPTED


class _Parser(ArgumentParser):
    """Raises where argparse would print its usage and leave."""

    def error(self, message: str) -> NoReturn:
        raise HybridPredictError(message)


def _parsed(
    name: str,
    description: str,
    commands: Mapping[str, Command],
    arguments: list[str],
    version: str | None,
) -> Callable[[], int]:
    """What runs the command that is asked for."""
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
    """The parser of what comes before a command; it only prints."""
    width = max(map(len, commands))
    listed = "\n".join(f"  {key:{width}}  {command.help}" for key, command in commands.items())
    parser = _Parser(
        prog=name,
        usage=f"{name} COMMAND ...",
        description=f"{description}\n\ncommands:\n{listed}",
        epilog=f"{name} COMMAND --help tells more about one of them.",
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if version is not None:
        parser.add_argument("--version", action="version", version=f"{name} {version}")
    return parser


def _unknown(called: str, word: str, parser: ArgumentParser) -> ConfigError:
    """What to raise for an argument that is not known."""
    word = word.partition("=")[0]
    if not word.startswith("-"):
        return ConfigError(called, "no further argument", word, f"See {called} --help.")
    known = [name for name in parser._option_string_actions if name.startswith("--")]
    remedy = did_you_mean(word, known) or f"See {called} --help."
    return ConfigError(called, "an option that it has", word, remedy)
