"""The audit's search beside a sweep, which trains every candidate with every seed.

The search then chooses among the runs of the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from benchmarks.digests import code_digest
from benchmarks.measure import without_advice
from benchmarks.plan import Plan, Row, Selection
from benchmarks.search import SUBJECTS
from benchmarks.search.subjects import Subject, configured, subject
from hybrid_predict.audit import AuditConfig, Observer, judge_audit, search
from hybrid_predict.audit.results import paired
from hybrid_predict.audit.run import Runs
from hybrid_predict.audit.search import WAYS, number_of_tests
from hybrid_predict.audit.store import RunStore
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import FULL, SHORT
from hybrid_predict.runs.runtime import (
    environment,
    finite,
    locked,
    quiet,
    writable_folder,
)

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


class SearchPlan(Plan[str]):
    """A run is a subject: its sweep, and the search over it; trainings are kept in a folder."""

    def __init__(self, chosen: Selection, folder: Path) -> None:
        self._names = [name for name in SUBJECTS if chosen.tasks is None or name in chosen.tasks]
        self._config = configured(chosen.seeds or 5)
        self._folder = folder

    def keys(self, done: Mapping[str, Row]) -> Iterator[str]:
        """Yield the subjects."""
        yield from self._names

    def key(self, row: Row) -> str:
        """Return the name of the subject."""
        return str(row["name"])

    def work(self, name: str) -> Row:
        """Compare the search with a sweep."""
        results = compare(subject(name), self._config, self._folder / name)
        return {"name": name, **results, "environment": environment()}

    def holds(self, row: Row) -> bool:
        """Return whether the trainings come from the present code of the plug-in."""
        return bool(row["code"] == code_digest("hybrid"))

    def tell(self, row: Row) -> str:
        """Return the answer of the search."""
        return f"{row['name']}: {row['search']['line']}"


def compare(chosen: Subject, config: AuditConfig, folder: Path) -> dict[str, Any]:
    """Return a subject's part of the results file: the sweep, and the search over its runs."""
    place, source = writable_folder(folder), chosen.to_dict()
    with locked(place), quiet(), without_advice():
        store = RunStore(place, config, source)
        runs = Runs(chosen.make_run, store, config.speedups, _Counted())
        rows = [
            {"speedup": speedup, **{name: run[name] for name in KEPT}}
            for seed in range(config.seeds)
            for speedup in config.speedups
            for name in (FULL, SHORT, *WAYS)
            if name != FULL or speedup == config.speedups[0]
            for run in [runs.get(replace(config, speedup=speedup), name, seed)]
        ]
    used = _Counted()
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
class _Counted(Observer):
    """Counts runs, and prints a line on those that are trained."""

    def __init__(self) -> None:
        self.found = 0
        self.trained = 0

    def run_found(self, run: Mapping[str, Any]) -> None:
        """Count it."""
        self.found += 1

    def run_finished(self, run: Mapping[str, Any]) -> None:
        """Count it, and print a line."""
        self.trained += 1
        print(
            f"{run['arm']}, seed {run['seed']}: {run['full_steps']} full steps in "
            f"{run['seconds']:.1f} s, {run['metric']}",
            flush=True,
        )
