"""The command ``hybrid-predict``."""

from __future__ import annotations

from argparse import ArgumentParser

from hybrid_predict import __version__
from hybrid_predict.cli.commands import add_commands
from hybrid_predict.cli.program import PROGRAM, run_program


def main(argv: list[str] | None = None) -> int:
    """Run a command; see :func:`hybrid_predict.cli.program.run_program`."""
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Train neural networks in fewer full steps: corrected updates, and predicted "
        "steps between them.",
        epilog=f"{PROGRAM} COMMAND --help prints the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    add_commands(parser.add_subparsers(title="commands", metavar="COMMAND", required=True))
    return run_program(parser, argv)
