"""``hybrid-predict audit``: whether full steps are saved on a model of one's own."""

from __future__ import annotations

import traceback
from argparse import Namespace
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hybrid_predict.cli.auditing import check_threads, searched, shown
from hybrid_predict.cli.options import integer, need, output_folder, under_way
from hybrid_predict.cli.program import BAD_USAGE, INTERRUPTED, Command
from hybrid_predict.errors import HybridPredictError

if TYPE_CHECKING:
    from hybrid_predict.audit import AuditResult, SearchResult

STATUS = {"verified": 0, "no saving": 4, "undecided": 3}
"""Exit statuses by outcome; 1 is what Python itself ends with when something is broken."""


def _add_options(add: Any) -> None:
    add(
        "file",
        metavar="FILE",
        help="YAML file with model, data and trainer as for LightningCLI, and a section audit.",
    )
    add(
        "--output-dir",
        default="hybrid-predict-audit",
        metavar="FOLDER",
        help="Where everything is written (hybrid-predict-audit).",
    )
    add("--seeds", type=integer, metavar="N", help="Paired seeds (those of the file, or 5).")
    add("--threads", type=integer, metavar="N", help="Threads of torch (torch's own choice).")
    add("--plan", action="store_true", help="Only say what would be trained and how long it takes.")
    add("--overwrite", action="store_true", help="Train anew what the folder holds already.")
    add(
        "--search",
        action="store_true",
        help="Instead of one verdict, find the largest speedup that keeps quality, out of the "
        "file's audit.speedups: with corrected updates alone, and with predicted steps.",
    )
    add("--no-mlflow", action="store_true", help="Record nothing in MLflow.")


def _command(options: Namespace) -> int:
    """Run the audit.

    Args:
        options: What was parsed.

    Returns:
        0 for a verified saving, 4 for none, 3 if there are not enough seeds to tell, 2 if the
        training failed, 130 after Ctrl-C or SIGTERM.
    """
    from hybrid_predict.audit.file_content import check_file

    check_threads(options.threads)
    under_way(f"checking {options.file}")
    check_file(options.file)
    need("The audit", ("cli", "lightning"))
    from hybrid_predict.audit.yaml_file import importable
    from hybrid_predict.runs.runtime import threads

    # A traceback's own exit status, 1, is none of the audit's outcomes.
    try:
        with importable(), threads(options.threads):
            return _run(options)
    except (HybridPredictError, BrokenPipeError):  # the program answers these
        raise
    except Exception:
        traceback.print_exc()
        return BAD_USAGE


def _run(options: Namespace) -> int:
    from hybrid_predict.audit import audit, plan_audit, plan_search, search
    from hybrid_predict.audit.yaml_file import read_audit

    under_way(f"reading {options.file}")
    make_run, config, source = read_audit(options.file)
    chosen: dict[str, Any] = {} if options.seeds is None else {"seeds": options.seeds}
    config = replace(config, **chosen, mlflow=config.mlflow and not options.no_mlflow)
    if options.plan:
        under_way("timing a few full steps of plain training")
        kept = None if options.overwrite else options.output_dir
        plan: Any = plan_search if options.search else plan_audit
        print(plan(make_run, config, kept, source=source))
        return 0
    folder = output_folder(options.output_dir)
    find = search if options.search else audit
    train: Any = partial(find, make_run, config, folder, source=source, overwrite=options.overwrite)
    result: AuditResult | SearchResult
    if options.search:
        result = searched(config, folder, train)
    else:
        need("The audit", ["mlflow"] if config.mlflow else [])
        result = shown("audit", config, folder, train)
    return INTERRUPTED if result.partial else STATUS[result.outcome.value]


COMMAND = Command(
    "Find out whether it saves full steps on your own model.",
    "Trains your own Lightning model in full, with a shortened schedule, with corrected updates, "
    "and with corrected updates and predicted steps, from the same seeds, and tests whether full "
    "steps are saved at equal quality. With --search it does that at several speedups, and ends "
    "with the line that builds the Trainer. What was stopped goes on where it was. Exit status: 0 "
    "verified saving, 4 no saving, 3 not enough seeds to tell, 2 bad usage or failed training, 130 "
    "interrupted.",
    _add_options,
    _command,
)
