"""Compares the import of the engine with that of torch, side by side in fresh interpreters.

Run with: python -m benchmarks.import_time > docs/results/import_time.json
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version

CLOCK = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def seconds(module: str) -> float:
    """Seconds that a fresh interpreter takes to import a module."""
    command = [sys.executable, "-c", CLOCK.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main(rounds: int = 11) -> dict[str, object]:
    """Median over interleaved rounds; the first warms the file cache and is dropped."""
    pairs = [(seconds("torch"), seconds("hybrid_predict.engine")) for _ in range(rounds + 1)][1:]
    ratios = sorted(ours / torch for torch, ours in pairs)
    return {
        "torch_seconds": statistics.median(torch for torch, _ in pairs),
        "hybrid_predict_seconds": statistics.median(ours for _, ours in pairs),
        "ratio": statistics.median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
        "rounds": rounds,
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
