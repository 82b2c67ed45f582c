"""A request to stop a run with a checkpoint: a file beside its event log."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from hybrid_predict.errors import ConfigError
from hybrid_predict.report.line_file import LONGEST, mapping, open_regular
from hybrid_predict.report.run_log import RunLog
from hybrid_predict.runs.files import replace_text

STOP = "hybrid_predict.stop"
"""Name of the file."""


def ask(log: RunLog) -> None:
    """Ask a run to stop after a full step, with a checkpoint.

    The request names the start time of the run, so that a later run in the folder ignores it.

    Raises:
        ConfigError: If the run has ended, or the request cannot be written.
    """
    if log.end is not None:
        remedy = "A run that has just started can be asked after its first full step."
        raise ConfigError("RUN", "a run that trains", log.status, remedy)
    path = log.path.with_name(STOP)
    try:
        replace_text(path, json.dumps({"started": log.start["time"]}))
    except OSError as error:
        remedy = f"The system says: {error.strerror}."
        raise ConfigError("RUN", "a folder that can be written to", str(path), remedy) from error


def is_asked(log: Path, started: float) -> bool:
    """Return whether a run has been asked to stop.

    Args:
        log: Event log of the run.
        started: Start of the run, in seconds since 1970, as in the log's first line.
    """
    try:
        with open_regular(log.with_name(STOP)) as file:
            found = mapping(file.read(LONGEST))
    except OSError:
        return False
    return found is not None and found.get("started") == started


def withdraw(log: Path, started: float) -> None:
    """Remove the request to this run, if there is one; a request to another run stays."""
    if is_asked(log, started):
        with suppress(OSError):
            log.with_name(STOP).unlink()
