"""``hybrid-predict demo``: audits the training of a small GPT."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial
from typing import Any

from hybrid_predict.cli.audit import add_shared, show_audit
from hybrid_predict.cli.program import INTERRUPTED, Command, need
from hybrid_predict.errors import ConfigError

_SHOWN = """\
A small GPT is trained from the same weights in four ways: in full; with a shortened schedule;
the same with corrected updates; and in full with corrected updates and predicted steps, which
replace full ones. What counts is the loss at the end, and how many full steps that took."""


def _add_options(add: Any) -> None:
    add("--full", action="store_true", help="Train three times the steps, with three seeds.")
    text = "Steps per full step of the hybrid arm, above 1 (1.5)."
    add("--speedup", type=float, default=1.5, metavar="X", help=text)
    text = "Full steps of the full arm (600; with --full 1800)."
    add("--steps", type=int, metavar="N", help=text)
    text = "Peak learning rate, all arms (0.008; with --full 0.0113)."
    add("--learning-rate", type=float, metavar="X", help=text)
    folder = "hybrid-predict-demo; with --full hybrid-predict-demo-full"
    add_shared(add, "1; with --full 3", folder, "1")


def _run(options: Namespace) -> int:
    mlflow = not options.no_mlflow
    need("The demo", ("cli", "lightning", *(["mlflow"] if mlflow else [])))
    from hybrid_predict.audit import AuditConfig, audit
    from hybrid_predict.demo.byte_gpt import FULL, Recipe, demo_audit
    from hybrid_predict.runs.runtime import threads, writable_folder

    given = {"steps": options.steps, "learning_rate": options.learning_rate}
    changes = {name: value for name, value in given.items() if value is not None}
    recipe = replace(FULL if options.full else Recipe(), **changes)
    if not 1 < options.speedup <= recipe.steps / 10:
        expected = f"a number above 1 and at most {recipe.steps / 10:g}"
        raise ConfigError("speedup", expected, options.speedup)
    usual = 3 if options.full else 1
    config = AuditConfig(
        metric="val_loss",
        speedup=options.speedup,
        seeds=usual if options.seeds is None else options.seeds,
        experiment="hybrid-predict demo",
        mlflow=mlflow,
    )
    name = "hybrid-predict-demo" + "-full" * options.full
    place = name if options.output_dir is None else options.output_dir
    folder = writable_folder(place, "--output-dir")
    make_run, source = demo_audit(recipe)
    train = partial(audit, make_run, config, folder, source=source, overwrite=options.overwrite)
    print(_SHOWN, flush=True)
    with threads(options.threads or 1):
        result = show_audit(config, folder, train, most=3)
    return INTERRUPTED if result.partial else 0


COMMAND = Command(
    "Train a small GPT with and without the callback.",
    "Audits a small GPT on the source text of Python's standard library: trains it in full, with a "
    "shortened schedule, with corrected updates, and with corrected updates and predicted steps, "
    "from the same weights and batches. Needs no network. Writes a report, the results and an "
    "MLflow database into the output folder. Started again, it skips the runs that are finished. "
    "Takes about three minutes on 2 cores, 25 with --full.",
    _add_options,
    _run,
)
