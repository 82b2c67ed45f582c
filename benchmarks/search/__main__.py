"""Compares the audit's search with a sweep: python -m benchmarks.search NAME... --seeds 5.

The sweep trains every candidate with every seed; the search then chooses among these runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch

from benchmarks import RESULTS
from benchmarks.arguments import one_of
from benchmarks.measure import without_advice
from benchmarks.run import code_digest
from benchmarks.search.subjects import SUBJECTS, Subject, configured, subject
from hybrid_predict.audit import AuditConfig, judge_audit, search
from hybrid_predict.audit.results import paired
from hybrid_predict.audit.run import Runs
from hybrid_predict.audit.searching import WAYS, number_of_tests
from hybrid_predict.audit.store import RunStore
from hybrid_predict.cli.program import positive
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import FULL, SHORT
from hybrid_predict.runs.runtime import (
    Observer,
    environment,
    finite,
    locked,
    quiet,
    writable_folder,
    write_json,
)

KEPT = (
    "arm", "seed", "metric", "full_steps", "predicted_steps", "undone_steps", "seconds", "failure",
)  # fmt: skip
"""What the results file holds of a run, beside its speedup."""

SCHEMA = 1
Row = Mapping[str, Any]


def compare(chosen: Subject, config: AuditConfig, folder: Path) -> dict[str, Any]:
    """Return a subject's part of the results file: the sweep, and the search over its runs."""
    place, source = writable_folder(folder), chosen.to_dict()
    with locked(place), quiet(), without_advice():
        trained = _Told(config)
        store = RunStore(place, config, source)
        runs = Runs(chosen.make_run, store, config.speedups, trained)
        rows = [
            {"speedup": speedup, **{name: run[name] for name in KEPT}}
            for seed in range(config.seeds)
            for speedup in config.speedups
            for name in (FULL, SHORT, *WAYS)
            if name != FULL or speedup == config.speedups[0]
            for run in [runs.get(replace(config, speedup=speedup), name, seed)]
        ]
    used = _Told(config)
    with without_advice():
        searched = search(chosen.make_run, config, place, observer=used, source=source)
    if used.trained:
        raise ConfigError("folder", "a search that finds all of its runs", used.trained)
    each = config.alpha / number_of_tests(config)
    answer = {name: searched.results[name] for name in ("tried", "best", "line")}
    plain: dict[str, Any] = finite(
        {
            "subject": source,
            "config": config.to_dict(),
            "level": each,
            "code": code_digest("hybrid"),
            "runs": rows,
            "sweep": judged(rows, config, each),
            "search": {**answer, "runs": used.found},
        }
    )
    return plain


def judged(rows: Iterable[Row], config: AuditConfig, each: float) -> list[dict[str, Any]]:
    """The verdict on every candidate, over all seeds."""
    by_run = {(row["arm"], row["speedup"], row["seed"]): row for row in rows}
    first, verdicts = config.speedups[0], []
    for arm in WAYS:
        for speedup in config.speedups:
            seeds = [
                paired(
                    by_run[FULL, first, seed],
                    by_run[SHORT, speedup, seed],
                    by_run[arm, speedup, seed],
                )
                for seed in range(config.seeds)
            ]
            chosen = replace(config, speedup=speedup, alpha=each)
            verdict = judge_audit(seeds, chosen, arm).to_dict()
            verdicts.append({"arm": arm, "speedup": speedup, **verdict})
    return verdicts


@final
class _Told(Observer):
    """Counts runs, and tells of those that are trained."""

    def __init__(self, config: AuditConfig) -> None:
        each = 1 + (1 + len(WAYS)) * len(config.speedups)
        self._planned = config.seeds * each
        self.found = self.trained = 0

    def run_found(self, run: Mapping[str, Any]) -> None:
        """Count it."""
        self.found += 1

    def run_finished(self, run: Mapping[str, Any]) -> None:
        """Count it, and print a line."""
        self.trained += 1
        print(
            f"{self.found + self.trained}/{self._planned}  {run['arm']}, seed {run['seed']}: "
            f"{run['full_steps']} full steps in {run['seconds']:.1f} s, {run['metric']}",
            flush=True,
        )


def main() -> None:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser("python -m benchmarks.search", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", type=one_of(SUBJECTS),
                        help=f"of {', '.join(SUBJECTS)}; or all")  # fmt: skip
    parser.add_argument("--seeds", type=positive, default=5, help="of each (default: 5)")
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
    torch.set_num_threads(1)
    for name in asked.names or SUBJECTS:
        config = configured(asked.seeds, asked.speedups)
        results = compare(subject(name), config, asked.output_dir / name)
        write_json(_with(asked.output, name, results), asked.output)
        print(f"{name}: {results['search']['line']}", flush=True)


def _with(path: Path, name: str, results: dict[str, Any]) -> dict[str, Any]:
    """What the file holds, with one subject more or anew."""
    before = json.loads(path.read_text("utf-8"))["subjects"] if path.exists() else {}
    order = {**before, name: {**results, "environment": environment()}}
    subjects = {key: order[key] for key in SUBJECTS if key in order}
    return {"schema": SCHEMA, "subjects": subjects}


if __name__ == "__main__":
    main()
