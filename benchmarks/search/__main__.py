"""Compares the audit's search with a sweep: python -m benchmarks.search NAME... --seeds 5."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.search.subjects import RESULTS, SUBJECTS, subject
from benchmarks.search.sweep import compare
from hybrid_predict.audit import AuditConfig
from hybrid_predict.runs.runtime import environment, write_json

SCHEMA = 1
"""Of the results file: what its fields mean."""


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser("python -m benchmarks.search", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(SUBJECTS)}; or all"
    )
    parser.add_argument("--seeds", type=int, default=5, help="of each (default: 5)")
    parser.add_argument(
        "--speedups", type=float, nargs="+", default=AuditConfig().speedups, metavar="X",
        help="the candidates, ascending (those of an audit)",
    )  # fmt: skip
    parser.add_argument(
        "--output-dir", type=Path, default=Path("search-runs"),
        help="where finished runs are kept, so that the same command goes on (search-runs)",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "search.json", help="the results file"
    )
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in SUBJECTS]:
        parser.error(f"nothing is named {unknown[0]!r}; there are {', '.join(SUBJECTS)}")
    if asked.seeds < 1:
        parser.error("--seeds: expected at least 1")
    torch.set_num_threads(1)
    for name in asked.names or SUBJECTS:
        chosen = subject(name)
        config = chosen.config(asked.seeds, asked.speedups)
        found = compare(chosen, config, asked.output_dir / name)
        write_json(_with(asked.output, name, found), asked.output)
        print(f"{name}: {found['search']['line']}", flush=True)


def _with(path: Path, name: str, found: dict[str, Any]) -> dict[str, Any]:
    """What the file holds, with one subject more or anew."""
    before = json.loads(path.read_text("utf-8"))["subjects"] if path.exists() else {}
    order = {**before, name: {**found, "environment": environment()}}
    subjects = {key: order[key] for key in SUBJECTS if key in order}
    return {"schema": SCHEMA, "subjects": subjects}


if __name__ == "__main__":
    main()
