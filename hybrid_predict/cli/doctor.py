"""``hybrid-predict doctor``: what is installed, and what works with a Trainer and a model."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from importlib.util import find_spec
from textwrap import TextWrapper
from typing import Any, Literal

from hybrid_predict.cli.program import EXTRAS, Command, need
from hybrid_predict.errors import install_line
from hybrid_predict.runs.files import printable

REFUSED = 4
"""Exit status where the callback refuses the set-up, or the run would be plain training."""


def _add_options(add: Any) -> None:
    text = (
        "YAML file as for the audit, or module:function. The function returns trainer, model and "
        "training data; data can be left out if the model has its own."
    )
    add("config", nargs="?", metavar="CONFIG", help=text)
    text = 'Speedup to plan for, a number or "auto" (that of the file or its callback, or 1.5).'
    add("--speedup", type=_speedup, metavar="X", help=text)


def _speedup(text: str) -> float | Literal["auto"]:
    try:
        return "auto" if text == "auto" else float(text)
    except ValueError as error:
        raise ArgumentTypeError(f'expected a number or "auto", got {text!r}') from error


def _run(options: Namespace) -> int:
    _print(_environment())
    if options.config is None:
        text = "hybrid-predict doctor CONFIG prints what works with your Trainer and model."
        _print([("next", text)])
        return 0
    need("The examination", ["lightning", "cli"])
    from hybrid_predict.audit.doctor import examine
    from hybrid_predict.audit.file import importable

    with importable():
        works, findings = examine(options.config, options.speedup)
    print()
    _print(findings)
    return 0 if works else REFUSED


def _environment() -> list[tuple[str, str]]:
    """Return versions, devices and extras as titles and texts."""
    from hybrid_predict.runs.runtime import environment

    found = environment()
    names = ("hybrid_predict", "python", "torch", "lightning")
    cores = f"{found['cpu_count']} CPU cores ({found['cpu']})"
    rows = [
        ("versions", ", ".join(f"{name} {found[name] or 'missing'}" for name in names)),
        ("device", f"{found['gpu'] or 'no GPU'}, {cores}"),
    ]
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if find_spec(module) is None]
        remedy = f"missing {', '.join(missing)}: {install_line(extra)}"
        rows.append((f"extra {extra}", remedy if missing else "installed"))
    return rows


def _print(rows: list[tuple[str, str]]) -> None:
    for title, text in rows:
        lines = TextWrapper(
            80, f"{title:18}", " " * 18, break_long_words=False, break_on_hyphens=False
        )
        print(lines.fill(printable(text)))


COMMAND = Command(
    "Print what is installed, and what works with your Trainer and model.",
    "Prints versions, devices and extras. With CONFIG it trains a few full steps of your model "
    "and prints what would be corrected, predicted and left alone, how many predicted steps fit, "
    "how long the run would take, and the line to paste. Exit status: 0 if it works, 4 if the "
    "callback refuses the set-up or would leave the training as it is, 2 for bad usage.",
    _add_options,
    _run,
)
