"""``hybrid-predict demo``: audits the training of a small GPT."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from hybrid_predict.cli.audit import add_shared
from hybrid_predict.cli.program import INTERRUPTED, add_command, need

_SHOWN = """\
A small GPT is trained from the same weights in four ways: in full; with a shortened schedule;
the same with corrected updates; and in full with corrected updates and predicted steps, which
replace full ones. What counts is the loss at the end, and how many full steps that took."""

_FOLDER = "hybrid-predict-demo"


def add_demo(commands: Any) -> None:
    """Add ``demo`` to the commands of a parser."""
    text = (
        "Train a small GPT with and without the callback. Audits it on the source text of Python's "
        "standard library, without a network, and writes a report, the results and an MLflow "
        "database into the output folder. Started again, it skips the runs that are finished. "
        "Takes about three minutes on 2 cores, 25 with --full."
    )
    parser = add_command(commands, "demo", _run, text)
    text = "Train three times the steps; three seeds, unless --seeds says otherwise."
    parser.add_argument("--full", action="store_true", help=text)
    text = "Steps per full step of the hybrid arm, above 1 (1.5)."
    parser.add_argument("--speedup", type=float, default=1.5, metavar="X", help=text)
    text = "Full steps of the full arm (600; with --full 1800)."
    parser.add_argument("--steps", type=int, metavar="N", help=text)
    add_shared(parser, _FOLDER)


def _run(options: Namespace) -> int:
    mlflow = not options.no_mlflow
    need("The demo", ("cli", "lightning", *(["mlflow"] if mlflow else [])))
    import torch

    from hybrid_predict.audit import AuditConfig
    from hybrid_predict.cli.screen import show_audit
    from hybrid_predict.demo.byte_gpt import demo_audit
    from hybrid_predict.runs.runtime import writable_folder

    # Each learning rate is about the best one for its number of steps.
    usual, learning_rate, seeds = (1800, 0.0113, 3) if options.full else (600, 0.008, 1)
    steps = usual if options.steps is None else options.steps
    config = AuditConfig(
        metric="val_loss",
        speedup=options.speedup,
        seeds=seeds if options.seeds is None else options.seeds,
        experiment="hybrid-predict demo",
        mlflow=mlflow,
    )
    longer = options.full and options.output_dir == _FOLDER  # a folder holds runs of one length
    folder = writable_folder(f"{_FOLDER}-full" if longer else options.output_dir, "--output-dir")
    make_run, source = demo_audit(steps, learning_rate)
    print(_SHOWN, flush=True)
    torch.set_num_threads(1)
    given = {"make_run": make_run, "source": source, "overwrite": options.overwrite}
    return INTERRUPTED if show_audit(config, folder, **given).partial else 0
