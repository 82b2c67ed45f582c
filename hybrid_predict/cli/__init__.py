"""The command ``hybrid-predict``."""

from __future__ import annotations

from hybrid_predict import __version__
from hybrid_predict.cli import audit, demo, doctor, runs
from hybrid_predict.cli.program import PROGRAM, run_program

COMMANDS = {
    "demo": demo.COMMAND,
    "doctor": doctor.COMMAND,
    "watch": runs.WATCH,
    "report": runs.REPORT,
    "audit": audit.COMMAND,
}

DESCRIPTION = (
    "Train neural networks in fewer full steps: corrected updates, and predicted steps between "
    "them."
)


def main(argv: list[str] | None = None) -> int:
    """Run a command; see :func:`hybrid_predict.cli.program.run_program`."""
    return run_program(PROGRAM, DESCRIPTION, COMMANDS, argv, __version__)
