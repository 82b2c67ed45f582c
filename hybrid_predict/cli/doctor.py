"""``hybrid-predict doctor``: what is installed, and what works with a Trainer and a model."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from importlib.util import find_spec
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from hybrid_predict.cli.program import EXTRAS, Command, need, under_way
from hybrid_predict.errors import install_line
from hybrid_predict.ledger import percent
from hybrid_predict.report.plain_text import printable

if TYPE_CHECKING:
    from hybrid_predict.audit.doctor import Examination

REFUSED = 4
"""Exit status where the callback refuses the set-up, or the run would be plain training."""

_INDENT = 18


def _add_options(add: Any) -> None:
    add(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="YAML file as for the audit, or module:function. The function returns trainer, model "
        "and training data; data can be left out if the model has its own.",
    )
    add(
        "--speedup",
        type=speedup,
        metavar="X",
        help='Speedup to plan for, a number or "auto" (that of the file or its callback, or 1.5).',
    )


def speedup(text: str) -> float | Literal["auto"]:
    """Read a speedup."""
    try:
        return "auto" if text == "auto" else float(text)
    except ValueError as error:
        raise ArgumentTypeError(f'expected a number or "auto", got {text!r}') from error


def _run(options: Namespace) -> int:
    from hybrid_predict.audit.file import check_file, importable, is_file

    if options.config is not None and is_file(options.config):
        under_way(f"checking {options.config}")
        check_file(options.config)
    under_way("loading torch")
    for title, text in (*_environment(), *_extras()):
        _print(title, text)
    if options.config is None:
        _print(
            "next", "hybrid-predict doctor CONFIG prints what works with your Trainer and model."
        )
        return 0
    need("The examination", ["lightning", "cli"])
    from hybrid_predict.audit.doctor import examine

    with importable():
        result = examine(options.config, options.speedup)
    print()
    for title, text in _findings(result):
        _print(title, text)
    return REFUSED if result.refused or result.plain or result.plan is None else 0


def _environment() -> list[tuple[str, str]]:
    from hybrid_predict.runs.runtime import environment

    result = environment()
    names = ("hybrid_predict", "python", "torch", "lightning")
    cores = f"{result['cpu_count']} CPU cores ({result['cpu']})"
    return [
        ("versions", ", ".join(f"{name} {result[name] or 'missing'}" for name in names)),
        ("device", f"{result['gpu'] or 'no GPU'}, {cores}"),
    ]


def _extras() -> list[tuple[str, str]]:
    rows = []
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        remedy = f"missing {', '.join(missing)}: {install_line(extra)}"
        rows.append((f"extra {extra}", remedy if missing else "installed"))
    return rows


def _findings(result: Examination) -> list[tuple[str, str]]:
    """Return the findings as titles and texts."""
    plan = result.plan
    if result.refused or plan is None:
        return [("works", f"no. {result.refused or 'Training did not start.'}")]
    further = [("warning", text) for text in result.warnings]
    if result.left_out:
        why = "no part in this trial of one step, which has no logger and no validation"
        further.insert(0, ("callbacks", f"{', '.join(result.left_out)}: {why}"))
    if result.plain:
        change = [("change", result.remedies)] if result.remedies else []
        title = f"no, the run would be plain training. {result.plain}"
        return [("works", title), *change, *further]
    corrected = ", ".join(str(part) for part in plan.parts if part.corrected)
    predicted = ", ".join(str(part) for part in plan.parts if part.predicted)
    left = [str(part) for part in plan.parts if not (part.corrected or part.predicted)]
    why = "; ".join(plan.left_out) or "none is of a kind that is corrected"
    counted = "not counted" if result.overhead is None else percent(result.overhead)
    while_ = "last" if plan.paced else "have skill"
    count = f"up to {plan.predicted:,} of {plan.steps:,} steps, made while forecasts {while_}"
    ending = "the run says at its end if it could be much larger"
    unknown = 'only a run with speedup="auto" can tell whether it is far too small'
    paste = [("paste", f"Trainer(..., {result.paste})")] if corrected or predicted else []
    return [
        ("works", "yes"),
        ("corrected", corrected or f"nothing: {why}"),
        ("predicted", f"{predicted}: {count}" if plan.predicted else "nothing"),
        ("left alone", ", ".join([*left, *plan.left_out]) or "nothing"),
        ("plan", f"{plan.plan.removeprefix('plan: ')}; warm-up {plan.warmup}"),
        ("learning rate", ending if plan.paced else unknown),
        ("memory", plan.memory),
        ("overhead", f"{counted} of a full step's operations, for correcting"),
        ("run log", result.run_log),
        *further,
        *paste,
    ]


def _print(title: str, text: str) -> None:
    first, *rest = wrap(
        printable(text), 80 - _INDENT, break_long_words=False, break_on_hyphens=False
    ) or [""]
    print(f"{title:{_INDENT}}{first}")
    for line in rest:
        print(" " * _INDENT + line)


COMMAND = Command(
    "Print what is installed, and what works with your Trainer and model.",
    "Prints versions, devices and extras. With CONFIG it trains one full step of your model and "
    "prints what would be corrected, predicted and left alone, how many predicted steps fit, and "
    "the line to paste. Exit status: 0 if it works, 4 if the callback refuses the set-up or would "
    "leave the training as it is, 2 for bad usage.",
    _add_options,
    _run,
)
