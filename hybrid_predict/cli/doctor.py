"""``hybrid-predict doctor``: what is installed, and what works with a Trainer and a model."""

from __future__ import annotations

from argparse import Namespace
from textwrap import TextWrapper
from typing import Any, Literal

from hybrid_predict.cli.program import EXTRAS, add_command, missing, need
from hybrid_predict.errors import install_line
from hybrid_predict.text import printable

REFUSED = 4
"""Exit status where the callback refuses the set-up, or the run would be plain training."""


def add_doctor(commands: Any) -> None:
    """Add ``doctor`` to the commands of a parser."""
    text = (
        "Print what is installed, and what works with your Trainer and model. With CONFIG it "
        "trains a few full steps of your model and prints how many weights would be corrected, "
        "how long a full step and the run would take, what to change, and the line to paste. "
        "Exit status: 0 if it works, 4 if the callback refuses the set-up or would leave the "
        "training as it is, 2 for bad usage."
    )
    parser = add_command(commands, "doctor", _run, text)
    text = (
        "FILE:FUNCTION, such as train.py:build, or a YAML file as for the audit. The function "
        "takes no arguments and returns trainer, model and training data of Lightning (without "
        "data if the model has its own), or the Trainer of Hugging Face."
    )
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=text)
    text = 'Speedup to plan for, a number or "auto" (that of the file or its callback, or 1.5).'
    parser.add_argument("--speedup", type=_speedup, metavar="X", help=text)


def _speedup(text: str) -> float | Literal["auto"]:
    return "auto" if text == "auto" else float(text)


def _run(options: Namespace) -> int:
    works = True
    if options.config is not None:
        file = options.config.endswith((".yaml", ".yml"))
        need("The examination", ["lightning", "cli"] if file else [])
        from hybrid_predict.doctor.examination import examine

        works, findings = examine(options.config, options.speedup)
        for title, text in findings:
            _print(title, text)
        print()
    _print_installed()
    if options.config is None:
        text = "hybrid-predict doctor CONFIG prints what works with your Trainer and model."
        _print("next", text)
    return 0 if works else REFUSED


def _print_installed() -> None:
    from hybrid_predict.runs.runtime import environment

    found = environment()
    names = ("hybrid_predict", "python", "torch", "lightning")
    cores = f"{found['cpu_count']} CPU cores ({found['cpu']})"
    _print("versions", ", ".join(f"{name} {found[name] or 'missing'}" for name in names))
    _print("device", f"{found['gpu'] or 'no GPU'}, {cores}")
    _print("extras", ", ".join(extra for extra in EXTRAS if not missing(extra)) or "none")
    for extra in EXTRAS:
        if lacking := ", ".join(missing(extra)):
            _print(f"extra {extra}", f"missing {lacking}: {install_line(extra)}")


def _print(title: str, text: str) -> None:
    # Lines to paste stay whole.
    shown = TextWrapper(80, "", " " * 18, break_long_words=False, break_on_hyphens=False)
    print(shown.fill(f"{title:18}{printable(text)}"))
