"""The largest speedup that keeps quality on a model of your own, by bisection."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import MakeRun
from hybrid_predict.audit.config import AUTO, AuditConfig
from hybrid_predict.audit.results import as_compared
from hybrid_predict.audit.run import Runs
from hybrid_predict.audit.store import SCHEMA, RunStore
from hybrid_predict.audit.training import Observer
from hybrid_predict.audit.verdict import AuditOutcome, judge_audit
from hybrid_predict.config import Speedup
from hybrid_predict.integrations.options import as_call
from hybrid_predict.runs.evidence import CORRECTED, FEW_SEEDS, FULL, HYBRID, SHORT
from hybrid_predict.runs.runtime import (
    environment,
    finite,
    locked,
    quiet,
    writable_folder,
    write_json,
)

SEARCH = "search.json"
"""File that a search writes from the finished runs."""

WAYS = (CORRECTED, HYBRID)
"""The arms whose largest speedup is searched."""


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Args:
        line: Python source that builds the callback; empty if nothing was trained.
        outcome: Verified if a candidate keeps quality; undecided if more seeds may show one.
        partial: Whether the user interrupted the search before its answer was final.
        results: Content of ``search.json``; ``tried`` in it are the candidates in order.
        folder: Folder of that file.
    """

    line: str
    outcome: AuditOutcome
    partial: bool
    results: Mapping[str, Any]
    folder: Path


def search(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path,
    *,
    observer: Observer | None = None,
    source: Mapping[str, Any] | None = None,
) -> SearchResult:
    """Find the largest speedup that keeps quality, with predicted steps and with corrections alone.

    The search bisects the numbers of ``config.speedups`` once for each arm, and tests ``"auto"`` if
    it is among them. A candidate passes if the audit's own test verifies a saving, at a level that
    keeps the probability of any error at ``config.alpha`` or below. It assumes that quality falls
    as the speedup rises. Runs are shared with audits in the same folder; ``search.json`` is written
    after every candidate, and nothing in MLflow. Arguments and errors are those of
    :func:`hybrid_predict.audit.audit`.
    """
    place = writable_folder(folder)
    config = replace(config, mlflow=False)
    level = config.alpha / number_of_tests(config)
    tried: list[dict[str, Any]] = []

    def written(*, partial: bool) -> SearchResult:
        line = callback_line(config, tried) if tried else ""
        found: dict[str, Any] = {"schema": SCHEMA, "partial": partial, "level": level, "line": line}
        found |= {"environment": environment(), "config": config.to_dict(), "tried": tried}
        write_json(found, place / SEARCH)
        outcomes = {each["outcome"] for each in tried}
        order = (AuditOutcome.VERIFIED, AuditOutcome.UNDECIDED)
        outcome = next((each for each in order if each in outcomes), AuditOutcome.NO_SAVING)
        return SearchResult(line, outcome, partial, finite(found), place)

    def fails(runs: Runs, arm: str, speedup: Speedup) -> bool:
        tested = replace(config, speedup=speedup, alpha=level)
        seeds = [
            [as_compared(runs.get(tested, name, seed), config) for name in (FULL, SHORT, arm)]
            for seed in range(config.seeds)
        ]
        verdict = judge_audit(seeds, tested, arm)
        tried.append({"arm": arm, "speedup": speedup, **asdict(verdict)})
        written(partial=True)
        runs.observer.candidate_finished(arm, speedup, verdict.outcome.value)
        return verdict.outcome is not AuditOutcome.VERIFIED

    with locked(place), quiet():
        runs = Runs(make_run, RunStore(place, config, source), observer)
        stopped = True
        with suppress(KeyboardInterrupt):
            # Lengths that cannot be shortened are refused before anything else is trained.
            runs.get(replace(config, speedup=config.speedups[0]), FULL, 0)
            for arm in WAYS:
                bisect_left(config.numbers, True, key=partial(fails, runs, arm))
            if AUTO in config.speedups:
                fails(runs, HYBRID, AUTO)
            stopped = False
        return written(partial=stopped)


def number_of_tests(config: AuditConfig) -> int:
    r"""Return the largest number of tests of a search.

    The answer is wrong if a candidate passes by chance. With Bonferroni's bound, which holds for
    tests that depend on each other, each test has the level

    .. math:: \alpha' = \alpha / (\text{arms} \lceil \log_2 (K + 1) \rceil + [\text{auto}])

    for K numbers.
    """
    each = math.ceil(math.log2(len(config.numbers) + 1))
    return len(WAYS) * each + (AUTO in config.speedups)


def most_runs(config: AuditConfig) -> int:
    """Return an upper bound of the number of runs of a search, finished ones included."""
    return config.seeds * (1 + 2 * number_of_tests(config))


def callback_line(config: AuditConfig, tried: Sequence[Mapping[str, Any]]) -> str:
    """Return the Python source of the callback of the candidate that saves most full steps."""
    passed = [each for each in tried if each["outcome"] == AuditOutcome.VERIFIED.value]
    if not passed:
        few = f"; fewer than {FEW_SEEDS} seeds show none" * (config.seeds < FEW_SEEDS)
        return f"# no saving at equal quality was shown{few}"
    best = max(passed, key=lambda each: each["saving"])  # the first one of equals
    speedup = best["speedup"]
    if best["arm"] == HYBRID:
        return as_call("HybridPredict", config.hybrid_config().with_speedup(speedup))
    line = as_call("HybridPredict", config.hybrid_config().with_speedup(1))
    return f"{line}  # in a run, and with a schedule, shorter by {speedup:g}"
