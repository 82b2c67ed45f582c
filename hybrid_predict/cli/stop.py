"""``hybrid-predict stop``: asks a run in another process to end with a checkpoint."""

from __future__ import annotations

from argparse import Namespace
from time import time
from typing import Any

from hybrid_predict.ledger import duration
from hybrid_predict.cli.options import PROGRAM
from hybrid_predict.cli.program import Command
from hybrid_predict.report.plain_text import printable
from hybrid_predict.report.run_log import find_log, read_log
from hybrid_predict.report.stop_request import ask


def _add_options(add: Any) -> None:
    add(
        "run",
        metavar="RUN",
        help="Folder of a run's logger, or one above it; the run of its newest event log is asked.",
    )


def _run(options: Namespace) -> int:
    log = read_log(find_log(options.run))
    ask(log)
    print(
        f"Asked {printable(log.name)} to stop. It looks for requests about once a second, and "
        f"ends after a full step with a checkpoint in {printable(log.path.parent / 'checkpoints')}."
    )
    silent = time() - log.seen
    if silent > 60:
        print(f"It has written nothing for {duration(silent)}; it may have been killed.")
    print(f"Watch:  {PROGRAM} watch {printable(log.place)}")
    return 0


COMMAND = Command(
    "Ask a run to stop, with a checkpoint.",
    "Asks a run of a Trainer with the callback, in another process, to stop. The run ends after a "
    "full step, as with early stopping, and saves a checkpoint; trainer.fit(..., ckpt_path=...) "
    "resumes from it. The request is a file beside the run's event log; other runs ignore it.",
    _add_options,
    _run,
)
