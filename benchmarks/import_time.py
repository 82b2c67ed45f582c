"""Times the import of the engine relative to torch, and the first output of every command.

Run with: python -m benchmarks.import_time > docs/results/import_time.json
"""

from __future__ import annotations

import json
import os
import platform
import pty
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import torch

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.report.log_writer import LogWriter
from hybrid_predict.report.overview import overview
from hybrid_predict.report.run_log import NAME

CLOCK = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"

PROGRAM = "import sys; from hybrid_predict.cli import main; sys.exit(main(sys.argv[1:]))"

ROOT = Path(__file__).parents[1]

COMMANDS = (
    "", "--help", "--version", "demo --help", "audit --help", "audit {audit} --plan", "report RUN",
    "watch RUN", "doctor", "wacth RUN",
)  # fmt: skip
"""Arguments of ``hybrid-predict``; RUN is a finished run, {audit} a configuration file."""


def seconds(module: str) -> float:
    """Return the seconds that a fresh interpreter takes to import a module."""
    command = [sys.executable, "-c", CLOCK.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def on_a_terminal(arguments: list[str], folder: str) -> tuple[float, float]:
    """Start Python on a terminal; return the seconds to its first output and to its end."""
    reader, writer = pty.openpty()
    started = perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=writer, stdout=writer, stderr=writer, cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"},
    )  # fmt: skip
    os.close(writer)
    first = 0.0
    while True:
        try:
            output = os.read(reader, 65_536)
        except OSError:  # Linux: the other end is closed
            output = b""
        if not output:
            break
        first = first or perf_counter() - started
    process.wait()
    os.close(reader)
    whole = perf_counter() - started
    return first or whole, whole


def commands(rounds: int) -> list[dict[str, object]]:
    """Return the median times of each command, after those of Python alone."""
    audit = str(ROOT / "examples" / "audit.yaml")
    programs = {"python, nothing else": ["-c", "print()"]}
    for typed in COMMANDS:
        name = f"hybrid-predict {typed.format(audit='audit.yaml')}".strip()
        programs[name] = ["-c", PROGRAM, *typed.format(audit=audit).split()]
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        _write_run(Path(folder, "RUN", NAME))
        for name, arguments in programs.items():
            timed = [on_a_terminal(arguments, folder) for _ in range(rounds)]
            first, whole = (statistics.median(each) for each in zip(*timed, strict=True))
            rows.append({"command": name, "first_output_seconds": first, "seconds": whole})
    return rows


def _write_run(path: Path) -> None:
    """Write the log of a short run."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    config = HybridConfig(total_steps=300)
    with HybridEngine(model, optimizer, config) as engine:
        log = LogWriter(path)
        log.start(overview(engine), config.to_dict())
        while not engine.done:
            engine.before_step()
            loss = model(torch.ones(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            record = engine.after_step(loss)
            log.step(record, engine.ledger)
    log.end("finished")


def main(rounds: int = 11, command_rounds: int = 3) -> dict[str, object]:
    """Return medians over interleaved rounds, after one that fills the file cache."""
    pairs = [(seconds("torch"), seconds("hybrid_predict.engine")) for _ in range(rounds + 1)][1:]
    ratios = sorted(ours / torch for torch, ours in pairs)
    return {
        "torch_seconds": statistics.median(torch for torch, _ in pairs),
        "hybrid_predict_seconds": statistics.median(ours for _, ours in pairs),
        "ratio": statistics.median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
        "rounds": rounds,
        "commands": commands(command_rounds),
        "command_rounds": command_rounds,
        "load": os.getloadavg()[1],
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
