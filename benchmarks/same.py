"""Compares short seeded runs at a commit and in the working tree, bit for bit.

Processors round differently, so both are run on this machine, and no digests are committed.

Run with: python -m benchmarks.same COMMIT
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.house import ROOT, checkout


def run(root: Path, folder: Path) -> None:
    """Make the seeded runs with the package of a checkout."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    program = str(Path(__file__).with_name("seeded_runs.py"))
    subprocess.run([sys.executable, program, str(folder)], cwd=root, env=environment, check=True)


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Describe how two runs differ; empty if they have the same bits."""
    pairs = list(zip(before["weights"], now["weights"], strict=True))
    same = all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
    losses = [torch.tensor(run["losses"]).nan_to_num() for run in (before, now)]
    if same and torch.equal(*losses) and before["records"] == now["records"]:
        return ""
    steps = zip(before["records"], now["records"], strict=False)
    first = next((k for k, (a, b) in enumerate(steps, 1) if a != b), None)
    size = torch.stack([a.double().norm() for a, _ in pairs]).norm()
    off = torch.stack([(a.double() - b.double()).norm() for a, b in pairs]).norm()
    text = f"weights differ by {float(off / size):.1e} of their length"
    return text if first is None else f"{text}; records from the {first}. on"


def main() -> int:
    """Compare all runs; return 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="state to compare the working tree with")
    commit = parser.parse_args().commit
    with TemporaryDirectory() as folder, checkout(ROOT, commit) as before:
        places = Path(folder) / "before", Path(folder) / "now"
        run(before, places[0])
        run(ROOT, places[1])
        found = {
            path.stem: difference(*(torch.load(p / path.name, weights_only=False) for p in places))
            for path in sorted(places[1].glob("*.pt"))
        }
    for name, text in found.items():
        print(f"{name}: {text or 'the same bits'}")
    return int(any(found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
