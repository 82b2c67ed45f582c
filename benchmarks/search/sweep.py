"""Trains every candidate with every seed, and lets the audit's search choose among these runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from benchmarks.quiet import without_advice
from benchmarks.run import code_digest
from benchmarks.search.subjects import Subject
from hybrid_predict.audit import AuditConfig, judge_audit, search
from hybrid_predict.audit.results import paired
from hybrid_predict.audit.run import ArmRuns
from hybrid_predict.audit.searching import WAYS, level
from hybrid_predict.audit.store import RunStore
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import FULL, SHORT
from hybrid_predict.runs.runtime import Observer, finite, locked, quiet, writable_folder

KEPT = (
    "arm",
    "seed",
    "metric",
    "full_steps",
    "predicted_steps",
    "undone_steps",
    "seconds",
    "failure",
)
"""What the results file holds of a run, beside its speedup."""

Row = Mapping[str, Any]


def compare(chosen: Subject, config: AuditConfig, folder: Path) -> dict[str, Any]:
    """The sweep of a subject, and the search over the sweep's runs.

    Args:
        chosen: What is trained.
        config: From the subject.
        folder: Where finished runs are kept; those that are there are not trained again.

    Returns:
        The subject's part of the results file.
    """
    place, source = writable_folder(folder), chosen.to_dict()
    with locked(place), quiet(), without_advice():
        trained = _Told(config)
        store = RunStore(place, config, source)
        runs = ArmRuns(chosen.make_run, config, config.speedups, store, trained)
        rows = [
            {"speedup": speedup, **{name: run[name] for name in KEPT}}
            for seed in range(config.seeds)
            for speedup in config.speedups
            for name in (FULL, SHORT, *WAYS)
            if name != FULL or speedup == config.speedups[0]
            for run in [runs.get(name, speedup, seed)]
        ]
    used = _Told(config)
    with without_advice():
        found = search(chosen.make_run, config, place, observer=used, source=source)
    if used.trained:
        raise ConfigError("folder", "a search that finds all of its runs", used.trained)
    each = level(config.alpha, len(config.speedups), len(WAYS))
    answer = {name: found.results[name] for name in ("tried", "best", "line")}
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
    """The verdict on every candidate, over all seeds.

    Args:
        rows: The runs.
        config: The search's.
        each: The level of every test.
    """
    found = {(row["arm"], row["speedup"], row["seed"]): row for row in rows}
    first, verdicts = config.speedups[0], []
    for arm in WAYS:
        for speedup in config.speedups:
            seeds = [
                paired(
                    found[FULL, first, seed], found[SHORT, speedup, seed], found[arm, speedup, seed]
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
        """Count it, and leave one line behind."""
        self.trained += 1
        print(
            f"{self.found + self.trained}/{self._planned}  {run['arm']}, seed {run['seed']}: "
            f"{run['full_steps']} full steps in {run['seconds']:.1f} s, {run['metric']}",
            flush=True,
        )
