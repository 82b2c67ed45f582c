"""``python -m benchmarks.gpu``: what has to be measured on a GPU, one command each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import quality, record, steps
from benchmarks.gpu.shards import Shards
from benchmarks.gpu.table import TABLES, done, path
from benchmarks.tasks import Task
from benchmarks.tasks.gpt import GPT_124M
from hybrid_predict import ConfigError, UnsupportedSetupError
from hybrid_predict.cli.options import integer
from hybrid_predict.cli.program import Command, run_program
from hybrid_predict.runs.runtime import environment, write_json

PROGRAM = "python -m benchmarks.gpu"


def main(argv: list[str] | None = None) -> int:
    """Run one of the commands.

    Args:
        argv: Its arguments; None for those of the process.

    Returns:
        The exit status: 2 for bad usage, 130 after Ctrl-C, else 0.
    """
    return run_program(PROGRAM, "Measure what needs a GPU, at 124 M parameters.", _COMMANDS, argv)


def _device(options: Any) -> torch.device:
    """The device to run on: the CPU is for toys.

    Raises:
        UnsupportedSetupError: If there is no CUDA device.
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    if options.toy:
        return torch.device("cpu")
    raise UnsupportedSetupError(
        PROGRAM, "a CUDA device", "none", "With --toy a few steps of a small model run anywhere."
    )


def _options(name: str, add: Any) -> None:
    add("--toy", action="store_true", help="A few steps of a small model, on a CPU too; nothing "
        "is written without --output.")  # fmt: skip
    add("--output", type=Path, metavar="FILE", help=f"The results file (docs/results/gpu-{name}"
        ".json, which the pages are made of).")  # fmt: skip


def _measured(name: str, make: Callable[[Task], dict[str, Any]], options: Any) -> int:
    _device(options)
    return _tell(name, {**make(_task(options)), **_made_on(options)}, options)


def _made_on(options: Any) -> dict[str, Any]:
    """What results, or each of their rows, say of where they come from."""
    return {"toy": options.toy, "environment": environment()}


def _task(options: Any) -> Task:
    return GPT_124M.tiny() if options.toy else GPT_124M


def _tell(name: str, found: dict[str, Any], options: Any) -> int:
    """Print the table, and write the results file; toys only where it is named."""
    print(TABLES[name](found))
    if file := _file(name, options):
        print(f"\nResults: {write_json(found, file)}")
    return 0


def _file(name: str, options: Any) -> Path | None:
    chosen: Path | None = options.output
    return chosen or (None if options.toy else path(name))


def _step_time(task: Task, toy: bool) -> dict[str, Any]:
    return steps.step_time(task, 2, 2) if toy else steps.step_time(task)


def _run_step_time(options: Any) -> int:
    return _measured("step-time", partial(_step_time, toy=options.toy), options)


def _run_memory(options: Any) -> int:
    return _measured("memory", steps.memories, options)


def _run_sync(options: Any) -> int:
    if not torch.cuda.is_available():
        raise UnsupportedSetupError(PROGRAM, "a CUDA device", "none", "A CPU never waits for one.")
    return _measured("sync", steps.syncs, options)


def _run_quality(options: Any) -> int:
    _device(options)
    file, made_on = _file("quality", options), _made_on(options)
    known = [r for r in (done(file) if file else []) if all(r[k] == made_on[k] for k in made_on)]
    rows: list[dict[str, Any]] = []
    for row in quality.runs(_task(options), known, print):
        rows.append({**row, **made_on})
        if file:  # an interrupted run goes on from here
            write_json({"rows": rows}, file)
    return _tell("quality", {"rows": rows}, options)


def _record_options(add: Any) -> None:
    _options("record", add)
    add("--train", required=True, metavar="PATTERN", help="Shards of training tokens, such as "
        "'data/fineweb10B/fineweb_train_*.bin'; about 1.8 billion tokens.")  # fmt: skip
    add("--val", required=True, metavar="PATTERN", help="Shards of validation tokens.")
    add("--arm", default="hybrid", metavar="NAME", help=f"One of {', '.join(record.ARMS)} "
        "(hybrid).")  # fmt: skip
    add("--steps", type=integer, default=3375, metavar="N", help="Steps of the run (3375, as in "
        "the track's baseline). What counts is its full steps.")  # fmt: skip
    add("--seed", type=integer, default=0, metavar="N", help="Decides initial weights (0).")
    add("--rows", type=integer, metavar="N", help="Windows that go through the model together "
        "(16); fewer need less memory.")  # fmt: skip
    add("--compile", action="store_true", help="Compile the model with torch.compile.")


def _run_record(options: Any) -> int:
    device = _device(options)
    if options.arm not in record.ARMS:
        raise ConfigError("--arm", f"one of {', '.join(record.ARMS)}", options.arm)
    for name in ("steps", "rows"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ConfigError(f"--{name}", "an integer, at least 1", value)
    setup = record.TOY if options.toy else record.Setup()
    setup = replace(setup, rows=options.rows or setup.rows)
    shards = Shards.find(options.train, "--train"), Shards.find(options.val, "--val")
    row = record.train(
        options.arm, options.steps, options.seed, shards, setup, device,
        compiled=options.compile, say=partial(print, flush=True),
    )  # fmt: skip
    row.update(_made_on(options))
    file = _file("record", options)
    key = ("arm", "steps", "seed", "rows", "compiled", "toy", "environment")
    others = [r for r in (done(file) if file else []) if any(r[k] != row[k] for k in key)]
    return _tell("record", {"rows": [*others, row]}, options)


def _command(name: str, text: str, run: Callable[[Any], int]) -> Command:
    return Command(text, text, partial(_options, name), run)


_RECORD = "Train in the set-up of the modded-nanogpt speedrun's optimization track, on your shards."

_COMMANDS = {
    "step-time": _command("step-time", "Time full steps with and without the plug-in.",
                          _run_step_time),
    "memory": _command("memory", "Measure the memory of training with and without the plug-in.",
                       _run_memory),
    "sync": _command("sync", "Look for waits of the host in steady state.", _run_sync),
    "quality": _command("quality", "Train every arm once on bytes of installed source text.",
                        _run_quality),
    "record": Command(_RECORD, _RECORD, _record_options, _run_record),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
