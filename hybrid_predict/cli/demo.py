"""``hybrid-predict demo``: a small GPT trained with and without the callback."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial
from typing import Any

from hybrid_predict.cli.auditing import check_threads, shown
from hybrid_predict.cli.options import integer, need, number, output_folder
from hybrid_predict.cli.program import INTERRUPTED, Command


def _add_options(add: Any) -> None:
    add("--quick", action="store_true", help="Train a third of the steps, with one seed.")
    add("--seeds", type=integer, metavar="N", help="Number of paired seeds (3; with --quick 1).")
    add(
        "--speedup",
        type=number,
        default=1.5,
        metavar="X",
        help="Steps per full step of the hybrid arm, above 1 (1.5).",
    )
    add(
        "--steps",
        type=integer,
        metavar="N",
        help="Full steps of the full arm (1800; with --quick 600).",
    )
    add(
        "--learning-rate",
        type=number,
        metavar="X",
        help="Peak learning rate, all arms (0.0113; with --quick 0.008).",
    )
    add(
        "--controls",
        action="store_true",
        help="Add an arm: full, with twice the learning rate on the hidden matrices.",
    )
    add(
        "--output-dir",
        metavar="FOLDER",
        help="Folder for all files that the demo writes (hybrid-predict-demo; with --quick "
        "hybrid-predict-demo-quick).",
    )
    add(
        "--threads",
        type=integer,
        metavar="N",
        help="Threads of torch (1, or one per core up to 4, whichever is faster in a short "
        "measurement before the first run). On a busy machine, the environment variable "
        "OMP_WAIT_POLICY=passive helps.",
    )
    add("--no-mlflow", action="store_true", help="Do not log to MLflow.")
    add(
        "--overwrite",
        action="store_true",
        help="Train all runs again. Without this option, a demo that was stopped goes on.",
    )


def _run(options: Namespace) -> int:
    from hybrid_predict.demo.run import demo_config, run_demo
    from hybrid_predict.demo.training import DemoRecipe

    recipe = DemoRecipe.quick() if options.quick else DemoRecipe()
    given = {"steps": options.steps, "learning_rate": options.learning_rate}
    recipe = replace(recipe, **{name: v for name, v in given.items() if v is not None})
    seeds = options.seeds if options.seeds is not None else 1 if options.quick else 3
    mlflow = not options.no_mlflow
    config = demo_config(
        recipe, speedup=options.speedup, seeds=seeds, controls=options.controls, mlflow=mlflow
    )
    check_threads(options.threads)
    usual = "hybrid-predict-demo-quick" if options.quick else "hybrid-predict-demo"
    folder = output_folder(options.output_dir or usual)
    need("The demo", ("cli", "lightning", *(["mlflow"] if mlflow else [])))
    settings = {"number": options.threads, "overwrite": options.overwrite}
    train = partial(run_demo, recipe, config, folder, **settings)
    return INTERRUPTED if shown("demo", config, folder, train).partial else 0


COMMAND = Command(
    "Train a small GPT with and without the callback.",
    "Trains a small GPT on the source text of Python's standard library: in full, with a shortened "
    "schedule, with corrected updates, and with corrected updates and predicted steps, from the "
    "same weights and batches. Needs no network. Writes a report, the results and an MLflow "
    "database into the output folder. Started again, it skips the runs that are finished. Takes "
    "about 25 minutes on 2 cores, 3 minutes with --quick.",
    _add_options,
    _run,
)
