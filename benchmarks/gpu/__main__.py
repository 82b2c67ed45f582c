"""``python -m benchmarks.gpu``: what has to be measured on a GPU, one command each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.arms import ARMS
from benchmarks.gpu import record
from benchmarks.gpu.shards import Shards
from benchmarks.gpu.table import TABLES, done, path
from benchmarks.measure import waits
from benchmarks.plan import Cell, recipe_digest
from benchmarks.ranks.measure import GPUS, TOY, results
from benchmarks.run import trained
from benchmarks.step_cost import WAYS, TaskLoop, memory, times
from benchmarks.tasks import Task
from benchmarks.tasks.gpt import GPT_124M
from hybrid_predict.cli.program import Command, run_program
from hybrid_predict.errors import ConfigError, UnsupportedSetupError
from hybrid_predict.runs.runtime import environment, write_json

PROGRAM = "python -m benchmarks.gpu"

QUALITY = ("short", "plain", "plain-double", "corrected", "hybrid", "muon")
"""Arms of ``quality``. All have the task's rate; Muon's hidden matrices have four times that."""


def main(argv: list[str] | None = None) -> int:
    """Run a command; return 2 for bad usage, 130 after Ctrl-C, else 0."""
    return run_program(PROGRAM, "Measure what needs a GPU, at 124 M parameters.", _COMMANDS, argv)


def step_time(task: Task, options: Any) -> dict[str, Any]:
    """Time full steps with and without the plug-in; see `step_cost.times`."""
    loops = {way: TaskLoop(task, arguments) for way, arguments in WAYS.items()}
    results = times(loops, *((2, 2) if options.toy else (12, 16)))
    for loop in loops.values():
        loop.close()
    return results


def memories(task: Task, options: Any) -> dict[str, Any]:
    """Return the bytes of twelve full steps by way; see `step_cost.memory`."""
    return {way: memory(task, way) for way in WAYS}


def syncs(task: Task, options: Any, steps: int = 64) -> dict[str, Any]:
    """Return what first made the host wait for the device, by way; None if nothing did."""
    if not torch.cuda.is_available():
        raise UnsupportedSetupError(PROGRAM, "a CUDA device", "none", "A CPU never waits for one.")
    messages: dict[str, Any] = {}
    for way, arguments in WAYS.items():
        loop = TaskLoop(task, arguments)
        loop.run(steps)
        messages[way] = waits(loop.step, steps)
        loop.close()
    return messages


def _measure(
    name: str, measure: Callable[[Task, Any], dict[str, Any]], options: Any
) -> int:  # fmt: skip
    _device(options)
    return _report(name, {**measure(_task(options), options), **_origin(options)}, options)


def _run_quality(options: Any) -> int:
    """Train every arm once; an interrupted run goes on where it was."""
    _device(options)
    file, origin = _file("quality", options), _origin(options)
    known = [r for r in (done(file) if file else []) if all(r[k] == origin[k] for k in origin)]
    rows: list[dict[str, Any]] = []
    for row in quality(_task(options), known):
        print(row)
        rows.append({**row, **origin})
        if file:
            write_json({"rows": rows}, file)
    return _report("quality", {"rows": rows}, options)


def quality(task: Task, known: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Train the arms of :data:`QUALITY` that are not known yet; yield rows as in a suite."""
    for name in QUALITY:
        cell = Cell(
            task.name, "default-decay", name, 0, task.recipe.learning_rate,
            4.0 if name == "muon" else 1.0, True, task.steps, recipe_digest(task, ARMS[name]),
        )  # fmt: skip
        earlier = next((r for r in known if (r["arm"], r["recipe"]) == (name, cell.recipe)), None)
        yield dict(earlier or trained(cell, task))


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
    row.update(_origin(options))
    file = _file("record", options)
    key = ("arm", "steps", "seed", "rows", "compiled", "toy", "environment")
    others = [r for r in (done(file) if file else []) if any(r[k] != row[k] for k in key)]
    return _report("record", {"rows": [*others, row]}, options)


def _run_ranks(options: Any) -> int:
    """Measure on every number of GPUs up to 8 that is a power of two; toys on two processes."""
    count = torch.cuda.device_count()
    if count < 2 and not options.toy:
        raise UnsupportedSetupError(
            PROGRAM, "at least two CUDA devices", count, "With --toy two processes run on a CPU."
        )
    counts = [n for n in (1, 2, 4, 8) if n <= count]
    found = results(TOY, (2,), "cpu") if options.toy else results(GPUS, counts, "cuda")
    rows = [{**row, **_origin(options)} for row in found["rows"]]
    return _report("ranks", {**found, "rows": rows}, options)


def _device(options: Any) -> torch.device:
    """Return the device to run on: the CPU is for toys."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if options.toy:
        return torch.device("cpu")
    raise UnsupportedSetupError(
        PROGRAM, "a CUDA device", "none", "With --toy a few steps of a small model run anywhere."
    )


def _task(options: Any) -> Task:
    return GPT_124M.tiny() if options.toy else GPT_124M


def _origin(options: Any) -> dict[str, Any]:
    """Return what results, or each of their rows, say of where they come from."""
    return {"toy": options.toy, "environment": environment()}


def _report(name: str, results: dict[str, Any], options: Any) -> int:
    """Print the table, and write the results file; toys only where it is named."""
    print(TABLES[name](results))
    if file := _file(name, options):
        print(f"\nResults: {write_json(results, file)}")
    return 0


def _file(name: str, options: Any) -> Path | None:
    chosen: Path | None = options.output
    return chosen or (None if options.toy else path(name))


def _options(name: str, add: Any) -> None:
    add("--toy", action="store_true", help="A few steps of a small model, on a CPU too; nothing "
        "is written without --output.")  # fmt: skip
    add("--output", type=Path, metavar="FILE", help=f"The results file (docs/results/gpu-{name}"
        ".json, which the pages are made of).")  # fmt: skip


def _record_options(add: Any) -> None:
    _options("record", add)
    add("--train", required=True, metavar="PATTERN", help="Shards of training tokens, such as "
        "'data/fineweb10B/fineweb_train_*.bin'; about 1.8 billion tokens.")  # fmt: skip
    add("--val", required=True, metavar="PATTERN", help="Shards of validation tokens.")
    add("--arm", default="hybrid", metavar="NAME", help=f"One of {', '.join(record.ARMS)} "
        "(hybrid).")  # fmt: skip
    add("--steps", type=int, default=record.ADAMW_STEPS, metavar="N", help="Steps of the run "
        f"({record.ADAMW_STEPS}, of the tuned AdamW). What counts is its full steps.")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="Decides initial weights (0).")
    add("--rows", type=int, metavar="N", help="Windows that go through the model together "
        "(16); fewer need less memory.")  # fmt: skip
    add("--compile", action="store_true", help="Compile the model with torch.compile.")


_RECORD = "Train in the set-up of the modded-nanogpt speedrun's optimization track, on your shards."
_MEASURED = {
    "step-time": ("Time full steps with and without the plug-in.", step_time),
    "memory": ("Measure the memory of training with and without the plug-in.", memories),
    "sync": ("Look for waits of the host in steady state.", syncs),
}
_RANKS = "Measure what corrected updates take with DDP, FSDP2 and HSDP, on 1 to 8 GPUs."
_QUALITY = "Train every arm once on bytes of installed source text."

_COMMANDS = {
    **{name: Command(text, text, partial(_options, name), partial(_measure, name, measure))
       for name, (text, measure) in _MEASURED.items()},
    "quality": Command(_QUALITY, _QUALITY, partial(_options, "quality"), _run_quality),
    "ranks": Command(_RANKS, _RANKS, partial(_options, "ranks"), _run_ranks),
    "record": Command(_RECORD, _RECORD, _record_options, _run_record),
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
