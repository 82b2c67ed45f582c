"""``hybrid-predict report``: a page about runs that were trained with the callback."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from hybrid_predict.cli.options import PROGRAM, need, under_way
from hybrid_predict.cli.program import Command
from hybrid_predict.errors import ConfigError
from hybrid_predict.report.plain_text import printable
from hybrid_predict.report.run_log import NAME, find_log, read_log

PAGE = Path(NAME).with_suffix(".html").name


def _add_options(add: Any) -> None:
    add(
        "runs",
        nargs="+",
        metavar="RUN",
        help="Folder of a run's logger, or one above it; its newest run log is read.",
    )
    add(
        "--output",
        metavar="FILE",
        help=f"File to write ({PAGE}, beside the run log; in this folder for several runs).",
    )


def _run(options: Namespace) -> int:
    under_way("reading")
    need("The report", ["cli"])
    from hybrid_predict.report.run_facts import ONE_RUN, finding
    from hybrid_predict.report.run_page import NEXT, write_run_page

    logs = [read_log(find_log(name)) for name in options.runs]
    beside = logs[0].path.with_suffix(".html") if len(logs) == 1 else Path(PAGE)
    path = beside if options.output is None else Path(os.path.expanduser(options.output))
    try:
        write_run_page(logs, path)
    except OSError as error:
        remedy = f"The system says: {error.strerror}. Give another with --output."
        raise ConfigError("--output", "a file that can be written", str(path), remedy) from error
    for log in logs:
        print(f"{printable(log.name)}: {finding(log)}")
    print(f"\n{ONE_RUN}\nProof:    {NEXT}\nReport:   {printable(path)}")
    return 0


COMMAND = Command(
    "Write a page about runs: their cost, and what to do next.",
    "Writes one HTML page about runs that were trained with the callback, finished or not: where "
    "steps and seconds went, skill, events, configuration. Several runs are shown side by side. "
    "Reads the run log that the callback writes into the folder of a TensorBoard or CSV logger. "
    f"See also: {PROGRAM} watch.",
    _add_options,
    _run,
)
