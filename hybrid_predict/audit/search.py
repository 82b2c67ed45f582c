"""The largest speedup that keeps quality on a model of your own, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hybrid_predict.audit.arm import MakeRun
from hybrid_predict.audit.config import AUTO, AuditConfig
from hybrid_predict.audit.results import as_compared, paired
from hybrid_predict.audit.run import Runs
from hybrid_predict.audit.store import SCHEMA, SEARCH, FinishedRun, RunStore
from hybrid_predict.audit.training import Observer
from hybrid_predict.audit.verdict import AuditOutcome, judge_audit
from hybrid_predict.config import Speedup
from hybrid_predict.runs.evidence import CORRECTED, FEW_SEEDS, FULL, HYBRID, SHORT
from hybrid_predict.runs.runtime import (
    environment,
    finite,
    locked,
    quiet,
    writable_folder,
    write_json,
)

T = TypeVar("T")

GetRun = Callable[[AuditConfig, str, int], FinishedRun]
"""Returns a finished run from the configuration, which has the speedup, arm and seed."""

Tried = Mapping[str, Any]
"""A candidate, as plain data: arm, speedup, and fields of the verdict at the level of one test."""

WAYS = (CORRECTED, HYBRID)
"""The arms whose largest speedup is searched."""


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Args:
        results: Content of ``search.json``; ``tried`` in it are the candidates, in the order in
            which they were tested.
        folder: Folder of that file.
    """

    results: Mapping[str, Any]
    folder: Path

    @property
    def line(self) -> str:
        """Python source that builds the callback; empty if nothing was trained."""
        return str(self.results["line"])

    @property
    def outcome(self) -> AuditOutcome:
        """Verified if a candidate keeps quality; undecided if more seeds may show one."""
        found = {tried["outcome"] for tried in self.results["tried"]}
        order = (AuditOutcome.VERIFIED, AuditOutcome.UNDECIDED)
        return next((outcome for outcome in order if outcome in found), AuditOutcome.NO_SAVING)

    @property
    def partial(self) -> bool:
        """Whether the user interrupted the search before its answer was final."""
        return bool(self.results["partial"])


def search(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path,
    *,
    observer: Observer | None = None,
    source: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> SearchResult:
    """Find the largest speedup that keeps quality, with predicted steps and with corrections alone.

    The search bisects the numbers of ``config.speedups`` once for each arm, and tests ``"auto"`` if
    it is among them. A candidate passes if the audit's own test verifies a saving over the paired
    seeds. The test's level is divided by the number of tests, so that the probability of any error
    is at most ``config.alpha``. Runs are kept as those of an audit, and shared with audits in the
    same folder. Nothing is recorded in MLflow.

    Arguments and errors are those of :func:`hybrid_predict.audit.audit`.

    Returns:
        The answer; ``partial`` is true after Ctrl-C.
    """
    place = writable_folder(folder)
    watching = observer or Observer()
    with locked(place), quiet():
        store = RunStore(place, config, source, overwrite=overwrite)
        runs = Runs(make_run, store, config.speedups, watching)
        return search_runs(runs.get, config, place, watching)


def search_runs(get: GetRun, config: AuditConfig, folder: Path, observer: Observer) -> SearchResult:
    """Test candidates until the answer cannot change, or the user interrupts.

    The results file is written after every candidate.
    """
    tried: list[Tried] = []
    level = config.alpha / number_of_tests(config)

    def written(*, partial: bool) -> SearchResult:
        found: dict[str, Any] = {"schema": SCHEMA, "partial": partial, "level": level}
        found |= {"environment": environment(), "config": config.to_dict(), "tried": tried}
        found["line"] = callback_line(config, tried) if tried else ""
        results = finite(found)
        write_json(results, folder / SEARCH)
        return SearchResult(results, folder)

    def passes(arm: str, speedup: Speedup) -> bool:
        tried.append(_tested(get, replace(config, speedup=speedup, alpha=level), arm))
        written(partial=True)
        outcome = tried[-1]["outcome"]
        observer.candidate_finished(arm, speedup, outcome)
        return bool(outcome == AuditOutcome.VERIFIED.value)

    try:
        for arm in WAYS:
            bisect(config.numbers, partial(passes, arm))
        if AUTO in config.speedups:
            passes(HYBRID, AUTO)
    except KeyboardInterrupt:
        return written(partial=True)
    return written(partial=False)


def bisect(candidates: Sequence[T], passes: Callable[[T], bool]) -> None:
    """Find the largest of ascending candidates that passes, by testing about log2 of them.

    Assumes that every candidate below one that passes would pass, and every one above one that
    fails would fail.
    """
    passed = -1
    failed = len(candidates)
    while failed - passed > 1:
        tested = (passed + failed) // 2
        if passes(candidates[tested]):
            passed = tested
        else:
            failed = tested


def number_of_tests(config: AuditConfig) -> int:
    r"""Return the largest number of tests of a search.

    The answer is wrong if a candidate passes by chance. With Bonferroni's bound, which holds for
    tests that depend on each other, each test has the level

    .. math:: \alpha' = \alpha / (\text{arms} \lceil \log_2 (K + 1) \rceil + [\text{auto}])

    for K numbers.
    """
    each = math.ceil(math.log2(len(config.numbers) + 1))
    return len(WAYS) * each + (AUTO in config.speedups)


def _tested(get: GetRun, config: AuditConfig, arm: str) -> Tried:
    """Train and judge a candidate."""
    seeds = [
        paired(*(as_compared(get(config, name, seed), config) for name in (FULL, SHORT, arm)))
        for seed in range(config.seeds)
    ]
    verdict = judge_audit(seeds, config, arm)
    return {"arm": arm, "speedup": config.speedup, **verdict.to_dict()}


def callback_line(config: AuditConfig, tried: Sequence[Tried]) -> str:
    """Return the Python source of the callback of the candidate that saves most full steps."""
    passed = [each for each in tried if each["outcome"] == AuditOutcome.VERIFIED.value]
    if not passed:
        few = f"; fewer than {FEW_SEEDS} seeds show none" * (config.seeds < FEW_SEEDS)
        return f"# no saving at equal quality was shown{few}"
    best = max(passed, key=lambda each: each["saving"])  # the first one of equals
    options = [f"speedup={best['speedup']!r}"]
    note = ""
    if best["arm"] == CORRECTED:
        options = ["speedup=1"]
        note = f"  # in a run, and with a schedule, shorter by {best['speedup']:g}"
    options += [f"{name}={value!r}" for name, value in config.hybrid.items()]
    return f"HybridPredict({', '.join(options)}){note}"
