"""How far a run can be shortened: the largest speedup that keeps quality, on a user's own model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import MakeRun, shortened
from hybrid_predict.audit.bisection import Bisection, level
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.results import Finished, paired
from hybrid_predict.audit.shared_runs import SharedRuns
from hybrid_predict.audit.verdict import (
    AuditOutcome,
    AuditVerdict,
    PairedSeed,
    judge_audit,
)
from hybrid_predict.runs.evidence import (
    CORRECTED,
    FEW_SEEDS,
    FULL,
    HYBRID,
    LEAST_SAVING,
    SHORT,
)
from hybrid_predict.runs.runtime import (
    Observer,
    environment,
    finite,
    locked,
    quiet,
    writable_folder,
    write_json,
    writing,
)

RESULTS, SCHEMA = "search.json", 1

WAYS = (CORRECTED, HYBRID)
"""The arms whose largest speedup is searched: a shorter run with corrected updates, and a run that
is as long as before, with predicted steps."""

FUTILE = 3
"""Seeds from which on a candidate that is already shown to be inferior is given up."""

_BARE = "no saving at equal quality was shown"


@dataclass(frozen=True)
class Tried:
    """One candidate and what became of it.

    Args:
        arm: ``corrected`` or ``hybrid``.
        speedup: Its speedup.
        verdict: On the seeds that were trained, at the level of one test of the search.
        given_up: Whether it could not pass any more, and the rest of its runs was left out.
    """

    arm: str
    speedup: float
    verdict: AuditVerdict
    given_up: bool = False

    @property
    def passed(self) -> bool:
        """Whether it saves full steps at equal quality."""
        return self.verdict.outcome is AuditOutcome.VERIFIED

    @property
    def finding(self) -> str:
        """What became of it, in a few words."""
        return self.verdict.headline if self.given_up else FINDINGS[self.verdict.outcome]


FINDINGS = {
    AuditOutcome.VERIFIED: "keeps quality",
    AuditOutcome.NO_SAVING: "no saving",
    AuditOutcome.UNDECIDED: "not enough seeds to tell",
}
"""Outcomes in a few words."""


@dataclass(frozen=True)
class SearchResult(Finished):
    """What a search found.

    Args:
        tried: The candidates in the order in which they were tested.
        best: By arm, the largest speedup that keeps quality; None if none was shown to.
        line: How to build the Trainer, to be pasted.
        results: What ``search.json`` holds.
        folder: Where it is.
    """

    tried: tuple[Tried, ...]
    best: Mapping[str, float | None]
    line: str
    results: Mapping[str, Any]
    folder: Path

    @property
    def outcome(self) -> AuditOutcome:
        """Verified if a candidate keeps quality; undecided if another search may show one.

        One with more seeds may, or one of a plain training that is stable.
        """
        if any(tried.passed for tried in self.tried):
            return AuditOutcome.VERIFIED
        if any(tried.verdict.outcome is AuditOutcome.UNDECIDED for tried in self.tried):
            return AuditOutcome.UNDECIDED
        return AuditOutcome.NO_SAVING


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

    Bisects ``config.speedups`` once for each arm. A candidate passes if the audit's own test
    verifies a saving over the paired seeds. The test's level is divided by the number of tests, so
    that all of them together err with a probability of at most ``config.alpha``. Runs of the full
    arm are trained once and shared. A search that was stopped goes on where it was. Nothing is
    recorded in MLflow.

    Args:
        make_run: As for :func:`hybrid_predict.audit.audit`.
        config: As for :func:`hybrid_predict.audit.audit`; ``speedups`` are the candidates.
        folder: For everything that is written; every speedup has an audit's folder in it.
        observer: Is told what happens.
        source: As for :func:`hybrid_predict.audit.audit`.
        overwrite: Forget what the folder holds, and train all runs anew.

    Returns:
        The answer; ``partial`` is true after Ctrl-C.

    Raises:
        ConfigError: As :func:`hybrid_predict.audit.audit` does.
        UnsupportedSetupError: As :func:`hybrid_predict.audit.audit` does.
        MissingExtraError: If Lightning is not installed.
    """
    place, told = writable_folder(folder), observer or Observer()
    with locked(place), quiet():
        if overwrite:
            with writing(place / RESULTS):
                (place / RESULTS).unlink(missing_ok=True)
        runs = SharedRuns(
            make_run, config, place, observer=told, source=source, overwrite=overwrite
        )
        searching = _Searching(runs, config, place, told)
        try:
            searching.train()
        except KeyboardInterrupt:
            return searching.result(partial=True)
        return searching.result(partial=False)


class _Searching:
    """One call of :func:`search`."""

    def __init__(
        self, runs: SharedRuns, config: AuditConfig, folder: Path, observer: Observer
    ) -> None:
        self._runs, self._config, self._folder = runs, config, folder
        self._observer = observer
        self._level = level(config.alpha, len(config.speedups), len(WAYS))
        self._tried: list[Tried] = []
        self._failed = False
        """Whether a run of the full arm, which all candidates share, has no metric."""

    def train(self) -> None:
        """Test candidates until the answer cannot change."""
        speedups = self._config.speedups
        for arm in WAYS:
            bisection = Bisection(len(speedups))
            while (due := bisection.due) is not None:
                self._observer.candidate_started(arm, speedups[due])
                tried = self._test(arm, speedups[due])
                self._tried.append(tried)
                bisection.tell(tried.passed or _simply_shorter(tried.verdict, self._config))
                self.result(partial=True)
                self._observer.candidate_finished(arm, tried.speedup, tried.finding)
                if self._failed:
                    return

    def _test(self, arm: str, speedup: float) -> Tried:
        """Train and judge one candidate, seed by seed, as long as it can still pass."""
        config = replace(self._config, speedup=speedup, alpha=self._level)
        seeds: list[PairedSeed] = []
        for seed in range(config.seeds):
            runs = []
            for name in (FULL, SHORT, arm):
                runs.append(self._runs.run(name, speedup, seed))
                if failure := runs[-1]["failure"]:
                    self._failed = name == FULL
                    return _given_up(arm, config, seeds, f"{name} {failure}", fault=name == arm)
            seeds.append(paired(*runs))
            if len(seeds) < config.seeds and _inferior(judge_audit(seeds, config, arm), config):
                reason = f"inferior on {len(seeds)} seeds"
                return _given_up(arm, config, seeds, reason, fault=True)
        return Tried(arm, speedup, judge_audit(seeds, config, arm))

    def result(self, *, partial: bool) -> SearchResult:
        """Write what is known so far."""
        lengths = self._runs.lengths
        line = paste(self._config, self._tried, lengths) if lengths else ""
        best = {
            arm: max((t.speedup for t in self._tried if t.arm == arm and t.passed), default=None)
            for arm in WAYS
        }
        results = {
            "schema": SCHEMA,
            "partial": partial,
            "environment": environment(),
            "config": self._config.to_dict(),
            "level": self._level,
            "tried": [
                {
                    "arm": t.arm,
                    "speedup": t.speedup,
                    "passed": t.passed,
                    "finding": t.finding,
                    **t.verdict.to_dict(),
                }
                for t in self._tried
            ],
            "best": best,
            "line": line,
        }
        plain: dict[str, Any] = finite(results)
        write_json(plain, self._folder / RESULTS)
        return SearchResult(tuple(self._tried), best, line, plain, self._folder)


def _given_up(
    arm: str, config: AuditConfig, seeds: Sequence[PairedSeed], reason: str, *, fault: bool
) -> Tried:
    """A candidate that cannot pass any more.

    Args:
        arm: Its arm.
        config: Has its speedup, and the level of one test.
        seeds: Those of which all three arms have a metric.
        reason: Why.
        fault: Whether it is the arm's own.
    """
    few = config.seeds < FEW_SEEDS
    outcome = AuditOutcome.NO_SAVING if fault and not few else AuditOutcome.UNDECIDED
    verdict = judge_audit(seeds, config, arm)
    given_up = replace(verdict, outcome=outcome, headline=f"given up: {reason}")
    return Tried(arm, config.speedup, given_up, given_up=True)


def _inferior(verdict: AuditVerdict, config: AuditConfig) -> bool:
    """Whether neither the candidate can pass nor plain training as short be as good."""
    contrast, worth = verdict.contrast, verdict.worth
    if verdict.seeds < FUTILE or contrast is None or worth is None:
        return False
    return contrast.lower > 0 and worth.lower > (config.margin or 0.0)


def paste(config: AuditConfig, tried: Sequence[Tried], lengths: Mapping[str, int]) -> str:
    """How to build the Trainer of the candidate that saves most.

    Args:
        config: The search's configuration.
        tried: The candidates.
        lengths: ``max_steps`` and ``max_epochs`` of the full arm, as far as given.

    Returns:
        Python's source text: a Trainer, with a comment where something else is to be done.
    """
    ways: list[tuple[float, Mapping[str, int], Sequence[str], str]]
    ways = [(1.0 - 1.0 / t.speedup, _shorter(lengths, t.speedup), (), "plain training, ")
            for t in tried if _simply_shorter(t.verdict, config)]  # fmt: skip
    further = tuple(f"{name}={value!r}" for name, value in config.hybrid.items())
    for t in (t for t in tried if t.passed):
        shorter = t.arm == CORRECTED
        options = ("speedup=1" if shorter else f"speedup={t.speedup:g}", *further)
        length = _shorter(lengths, t.speedup) if shorter else lengths
        ways.append((t.verdict.saving or 0.0, length, options, ""))
    if not ways:
        few = f"; fewer than {FEW_SEEDS} seeds show none" if config.seeds < FEW_SEEDS else ""
        return f"{_trainer(lengths, ())}  # {_BARE}{few}"
    _, best, given, what = max(ways, key=lambda way: way[0])
    note = "" if best == lengths else f"  # {what}with a schedule as short as the run"
    return _trainer(best, given) + note


def _simply_shorter(verdict: AuditVerdict, config: AuditConfig) -> bool:
    """Whether plain training of as few full steps was as good as the full arm."""
    worth = verdict.worth
    if verdict.seeds < FEW_SEEDS or (verdict.way or 0.0) > LEAST_SAVING:
        return False
    return worth is not None and worth.upper < (config.margin or 0.0)


def _shorter(lengths: Mapping[str, int], speedup: float) -> dict[str, int]:
    return {name: shortened(length, speedup) for name, length in lengths.items()}


def _trainer(lengths: Mapping[str, int], options: Sequence[str]) -> str:
    given = [f"{name}={length}" for name, length in lengths.items()]
    if options:
        given.append(f"callbacks=[HybridPredict({', '.join(options)})]")
    return f"Trainer({', '.join(given)})"
