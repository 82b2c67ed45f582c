"""The command ``hybrid-predict``."""

from __future__ import annotations

from argparse import ArgumentParser

from hybrid_predict import __version__
from hybrid_predict.cli.audit import add_audit, add_demo
from hybrid_predict.cli.doctor import add_doctor
from hybrid_predict.cli.program import PROGRAM, run_program
from hybrid_predict.cli.runs import add_report, add_watch


def main(argv: list[str] | None = None) -> int:
    """Run a command; see :func:`hybrid_predict.cli.program.run_program`."""
    parser = ArgumentParser(
        prog=PROGRAM,
        description="Train neural networks in fewer full steps: corrected updates, and predicted "
        "steps between them.",
        epilog=f"{PROGRAM} COMMAND --help prints the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_demo(commands)
    add_doctor(commands)
    add_watch(commands)
    add_report(commands)
    add_audit(commands)
    return run_program(parser, argv)
