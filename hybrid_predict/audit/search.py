"""The largest speedup that keeps quality on a model of your own, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hybrid_predict.audit.arm import MakeRun
from hybrid_predict.audit.config import AUTO, AuditConfig, shortened
from hybrid_predict.audit.results import paired
from hybrid_predict.audit.run import Runs
from hybrid_predict.audit.store import SCHEMA, SEARCH, FinishedRun, RunStore
from hybrid_predict.audit.training import Observer
from hybrid_predict.audit.verdict import AuditOutcome, AuditVerdict, PairedSeed, judge_audit
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

WAYS = (CORRECTED, HYBRID)
"""The arms whose largest speedup is searched."""

FUTILE = 3
"""Smallest number of seeds after which a candidate that is inferior is given up."""

FINDINGS = {
    AuditOutcome.VERIFIED: "keeps quality",
    AuditOutcome.NO_SAVING: "no saving",
    AuditOutcome.UNDECIDED: "not enough seeds to tell",
}
"""Outcomes in a few words."""


@dataclass(frozen=True)
class Candidate:
    """An arm at a speedup, and the verdict at the level of one test of the search."""

    arm: str
    speedup: Speedup
    verdict: AuditVerdict
    finding: str

    @property
    def passed(self) -> bool:
        """Whether it saves full steps at equal quality."""
        return self.verdict.outcome is AuditOutcome.VERIFIED

    @property
    def shortening(self) -> float:
        """Steps per full step: the speedup, or with ``"auto"`` the mean of what was measured."""
        if not isinstance(self.speedup, str):
            return self.speedup
        return 1.0 / (1.0 - (self.verdict.saving or 0.0))


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Args:
        tried: The candidates, in the order in which they were tested.
        results: Content of ``search.json``.
        folder: Folder of that file.
    """

    tried: tuple[Candidate, ...]
    results: Mapping[str, Any]
    folder: Path

    @property
    def best(self) -> Mapping[str, float | None]:
        """By arm, the largest speedup that keeps quality; None if none was shown to.

        For ``auto``, if it is a candidate, the mean of what it arrived at.
        """
        return dict(self.results["best"])

    @property
    def line(self) -> str:
        """Python source that builds the Trainer; empty if nothing was trained."""
        return str(self.results["line"])

    @property
    def outcome(self) -> AuditOutcome:
        """Verified if a candidate keeps quality; undecided if more seeds may show one."""
        found = {candidate.verdict.outcome for candidate in self.tried}
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
    is at most ``config.alpha``. Runs are kept as those of an audit: a search that was stopped
    continues, and searches and audits in one folder share their runs. Nothing is recorded in
    MLflow.

    Args:
        make_run: As for :func:`hybrid_predict.audit.audit`.
        config: As for :func:`hybrid_predict.audit.audit`; ``speedups`` are the candidates.
        folder: Folder for all files.
        observer: Is called as runs and tests of candidates begin and end.
        source: As for :func:`hybrid_predict.audit.audit`.
        overwrite: Whether to delete what the folder holds, and train all runs again.

    Returns:
        The answer; ``partial`` is true after Ctrl-C.

    Raises:
        ConfigError: As :func:`hybrid_predict.audit.audit` does.
        UnsupportedSetupError: As :func:`hybrid_predict.audit.audit` does.
        MissingExtraError: If Lightning is not installed.
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
    tried: list[Candidate] = []
    lengths: dict[str, int] = {}

    def known(config: AuditConfig, arm: str, seed: int) -> FinishedRun:
        run = get(config, arm, seed)
        lengths.update(run["lengths"])
        return run

    def passes(arm: str, speedup: Speedup) -> bool:
        if any(each.finding.startswith(f"given up: {FULL}") for each in tried):
            return False  # no candidate can pass
        level = config.alpha / number_of_tests(config)
        candidate = _test(known, replace(config, speedup=speedup, alpha=level), arm)
        tried.append(candidate)
        _written(config, tried, lengths, folder, partial=True)
        observer.candidate_finished(arm, speedup, candidate.finding)
        return candidate.passed

    try:
        try_candidates(config, passes)
    except KeyboardInterrupt:
        return _written(config, tried, lengths, folder, partial=True)
    return _written(config, tried, lengths, folder, partial=False)


def try_candidates(config: AuditConfig, passes: Callable[[str, Speedup], bool]) -> None:
    """Test candidates, given by arm and speedup, until the answer cannot change."""
    for arm in WAYS:
        bisect(config.numbers, partial(passes, arm))
    if AUTO in config.speedups:
        passes(HYBRID, AUTO)


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


def _test(get: GetRun, config: AuditConfig, arm: str) -> Candidate:
    """Train and judge a candidate, seed by seed, as long as it can pass."""
    seeds: list[PairedSeed] = []
    for seed in range(config.seeds):
        runs = []
        for name in (FULL, SHORT, arm):
            run = get(config, name, seed)
            runs.append(run)
            if failure := run["failure"]:
                return _given_up(arm, config, seeds, f"{name} {failure}", fault=name == arm)
        seeds.append(paired(*runs))
        if FUTILE <= len(seeds) < config.seeds:
            contrast = judge_audit(seeds, config, arm).contrast
            if contrast is not None and contrast.lower > 0:
                reason = f"inferior on {len(seeds)} seeds"
                return _given_up(arm, config, seeds, reason, fault=True)
    verdict = judge_audit(seeds, config, arm)
    return Candidate(arm, config.speedup, verdict, FINDINGS[verdict.outcome])


def _given_up(
    arm: str, config: AuditConfig, seeds: Sequence[PairedSeed], reason: str, *, fault: bool
) -> Candidate:
    """Return a candidate that cannot pass any more; ``fault`` is whether its arm is the cause."""
    no_saving = fault and config.seeds >= FEW_SEEDS
    outcome = AuditOutcome.NO_SAVING if no_saving else AuditOutcome.UNDECIDED
    finding = f"given up: {reason}"
    verdict = replace(judge_audit(seeds, config, arm), outcome=outcome, headline=finding)
    return Candidate(arm, config.speedup, verdict, finding)


def _written(
    config: AuditConfig,
    tried: Sequence[Candidate],
    lengths: Mapping[str, int],
    folder: Path,
    *,
    partial: bool,
) -> SearchResult:
    """Write the results file, and return the result."""
    best: dict[str, float | None] = dict.fromkeys((*WAYS, *({AUTO} & set(config.speedups))))
    for each in tried:
        if each.passed:
            way = AUTO if each.speedup == AUTO else each.arm
            best[way] = max(each.shortening, best[way] or 0.0)
    names = ("arm", "speedup", "passed", "finding")
    described = [
        {**{name: getattr(each, name) for name in names}, **each.verdict.to_dict()}
        for each in tried
    ]
    results: dict[str, Any] = finite(
        {
            "schema": SCHEMA,
            "partial": partial,
            "environment": environment(),
            "config": config.to_dict(),
            "level": config.alpha / number_of_tests(config),
            "tried": described,
            "best": best,
            "line": trainer_line(config, tried, lengths),
        }
    )
    write_json(results, folder / SEARCH)
    return SearchResult(tuple(tried), results, folder)


def trainer_line(
    config: AuditConfig, tried: Sequence[Candidate], lengths: Mapping[str, int]
) -> str:
    """Return the Python source of the Trainer of the candidate that saves most full steps.

    The lengths are ``max_steps`` and ``max_epochs`` of the full arm, as far as given. Empty if
    they are not known, because nothing was trained.
    """
    if not lengths:
        return ""
    options = [f"{name}={value!r}" for name, value in config.hybrid.items()]
    passed = [each for each in tried if each.passed]
    if not passed:
        few = f"; fewer than {FEW_SEEDS} seeds show none" if config.seeds < FEW_SEEDS else ""
        return f"{_trainer(lengths)}  # no saving at equal quality was shown{few}"
    best = max(passed, key=lambda each: each.verdict.saving or 0.0)  # the first one of equals
    if best.arm == CORRECTED:
        short = {name: shortened(length, best.shortening) for name, length in lengths.items()}
        return f"{_trainer(short, 'speedup=1', *options)}  # with a schedule as short as the run"
    speedup = repr(AUTO) if best.speedup == AUTO else f"{best.speedup:g}"
    return _trainer(lengths, f"speedup={speedup}", *options)


def _trainer(lengths: Mapping[str, int], *options: str) -> str:
    arguments = [f"{name}={length}" for name, length in lengths.items()]
    if options:
        arguments.append(f"callbacks=[HybridPredict({', '.join(options)})]")
    return f"Trainer({', '.join(arguments)})"
