"""The command ``hybrid-predict``."""

from __future__ import annotations

import sys
from argparse import ArgumentError
from typing import TYPE_CHECKING, Any

from hybrid_predict import __version__
from hybrid_predict.cli import audit, demo
from hybrid_predict.cli.options import BAD_USAGE, INTERRUPTED, PROGRAM
from hybrid_predict.errors import HybridPredictError, MissingExtraError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

COMMANDS = {"demo": demo, "audit": audit}
"""By name: modules with ``HELP``, one line; ``parser(formatter)``, the command's parser; and
``run(options)``, which takes what was parsed and returns the exit status."""


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Its arguments; None for those of the process.

    Returns:
        The exit status: 2 for bad usage, 130 after Ctrl-C, else the command's own, 0 if all went
        well.
    """
    try:
        try:
            arguments = _parser().parse_args(argv)
        except SystemExit as end:  # --help and --version
            return int(end.code or 0)
        return COMMANDS[arguments.command].run(arguments[arguments.command])
    except (ArgumentError, HybridPredictError) as error:
        print(f"{PROGRAM}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print(f"{PROGRAM}: stopped before there was anything to report.", file=sys.stderr)
        return INTERRUPTED


def _parser() -> ArgumentParser:
    try:
        from jsonargparse import ArgumentParser, DefaultHelpFormatter
    except ImportError as error:
        raise MissingExtraError("The command line", "cli") from error

    class Help(DefaultHelpFormatter):
        """Help texts as they are written, without types and defaults behind them."""

        def _get_help_string(self, action: Any) -> str:
            return str(action.help or "")

    parser = ArgumentParser(
        prog=PROGRAM,
        formatter_class=Help,
        description="Train neural networks in fewer full steps: corrected updates, and predicted "
        "steps between them.",
        version=__version__,
        exit_on_error=False,
    )
    commands = parser.add_subcommands(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_subcommand(name, command.parser(Help), help=command.HELP)
    return parser
