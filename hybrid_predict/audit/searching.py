"""The largest speedup that keeps quality on a model of your own, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hybrid_predict.audit.arm import MakeRun
from hybrid_predict.audit.config import AUTO, AuditConfig, shortened
from hybrid_predict.audit.results import paired
from hybrid_predict.audit.run import Runs
from hybrid_predict.audit.store import SCHEMA, SEARCH, FinishedRun, RunStore
from hybrid_predict.audit.verdict import AuditOutcome, AuditVerdict, PairedSeed, judge_audit
from hybrid_predict.config import Speedup
from hybrid_predict.report import slow_run
from hybrid_predict.runs.evidence import CORRECTED, FEW_SEEDS, FULL, HYBRID, LEAST_SAVING, SHORT
from hybrid_predict.runs.runtime import (
    Observer,
    environment,
    finite,
    locked,
    quiet,
    writable_folder,
    write_json,
)

T = TypeVar("T")

GetRun = Callable[[AuditConfig, str, int], FinishedRun]
"""Returns a finished run from the configuration, which has speedup and update, arm and seed."""

WAYS = (CORRECTED, HYBRID)
"""The arms whose largest speedup is searched."""

COMPARED = 3
"""Largest number of seeds with which corrected updates are compared."""

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
    def way(self) -> str:
        """Name in the answer: that of the arm, or ``auto``."""
        return AUTO if self.speedup == AUTO else self.arm

    @property
    def shortening(self) -> float:
        """Steps per full step: the speedup, or with ``"auto"`` the mean of what was measured."""
        if not isinstance(self.speedup, str):
            return self.speedup
        return 1.0 / (1.0 - (self.verdict.saving or 0.0))

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate as plain data."""
        names = ("arm", "speedup", "passed", "finding")
        return {**{name: getattr(self, name) for name in names}, **self.verdict.to_dict()}


class Direction(NamedTuple):
    """A corrected update, and what runs of corrections alone with it arrived at."""

    name: str
    metric: float | None = None
    """Mean over the compared seeds; None if a run diverged, or nothing was compared."""


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Args:
        tried: The candidates, in the order in which they were tested.
        results: Content of ``search.json``.
        folder: Folder of that file.
        directions: The compared directions, that of the answer first.
    """

    tried: tuple[Candidate, ...]
    results: Mapping[str, Any]
    folder: Path
    directions: tuple[Direction, ...] = ()

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

    If ``config.directions`` names several, each is first trained with corrections alone and up to
    three seeds. The one with the best mean metric is searched with. The search bisects the numbers
    of ``config.speedups`` once for each arm, and tests ``"auto"`` if it is among them. A candidate
    passes if the audit's own test verifies a saving over the paired seeds. The test's level is
    divided by the number of tests of all directions, so that the probability of any error is at
    most ``config.alpha``. Runs are kept as those of an audit: a search that was stopped continues,
    and searches and audits in one folder share their runs. Nothing is recorded in MLflow.

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
    with locked(place), quiet(slow_run.__name__):
        store = RunStore(place, config, source, overwrite=overwrite)
        watching = observer or Observer()
        runs = Runs(make_run, store, config.speedups, watching)
        return Searching(runs.get, config, place, watching).result()


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


def try_candidates(config: AuditConfig, passes: Callable[[str, Speedup], bool]) -> None:
    """Test candidates, given by arm and speedup, until the answer cannot change."""
    for arm in WAYS:
        bisect(config.numbers, partial(passes, arm))
    if AUTO in config.speedups:
        passes(HYBRID, AUTO)


def number_of_tests(config: AuditConfig) -> int:
    r"""Return the largest number of tests of a search, whichever direction is chosen.

    The answer is wrong if a candidate passes by chance. With Bonferroni's bound, which holds for
    tests that depend on each other, each test has the level

    .. math:: \alpha' = \alpha / D (\text{arms} \lceil \log_2 (K + 1) \rceil + [\text{auto}])

    for D directions and K numbers.
    """
    each = math.ceil(math.log2(len(config.numbers) + 1))
    tests = len(WAYS) * each + (AUTO in config.speedups)
    return tests * max(1, len(config.directions))


def compare(config: AuditConfig, get: GetRun, observer: Observer) -> list[Direction]:
    """Train corrections alone with each update, at the speedup that a search tests first.

    Returns:
        The updates, the best first.
    """
    configs = {
        name: replace(each, speedup=config.first_tested)
        for name, each in config.by_direction().items()
    }
    # First a full run, which shows whether the lengths can be audited, and is needed anyway.
    if len(configs) == 1 or get(next(iter(configs.values())), FULL, 0)["failure"]:
        return [Direction(name) for name in configs]
    seeds = min(config.seeds, COMPARED)
    means: dict[str, float | None] = dict.fromkeys(configs, 0.0)
    for seed, name in product(range(seeds), configs):
        mean = means[name]
        if mean is not None:
            observer.direction_started(name)
            run = get(configs[name], CORRECTED, seed)
            means[name] = None if run["failure"] else mean + run["metric"] / seeds
    compared = [Direction(name, mean) for name, mean in means.items()]
    return sorted(compared, key=lambda d: (d.metric is None, config.sign * (d.metric or 0.0)))


class Searching:
    """One call of :func:`search`; ``get`` gives finished runs."""

    def __init__(self, get: GetRun, config: AuditConfig, folder: Path, observer: Observer) -> None:
        self._get = get
        self._asked = config
        self._config = config
        self._folder = folder
        self._observer = observer
        self._directions: list[Direction] = []
        self._level = config.alpha / number_of_tests(config)
        self._tried: list[Candidate] = []
        self._lengths: Mapping[str, int] = {}
        self._full_failed = False

    def result(self) -> SearchResult:
        """Test candidates until the answer cannot change, or the user interrupts."""
        try:
            self._directions = compare(self._asked, self._get, self._observer)
            chosen = self._directions[0].name
            self._config = self._asked.by_direction()[chosen]
            self._observer.direction_started(chosen)
            try_candidates(self._config, self._passes)
        except KeyboardInterrupt:
            return self._written(partial=True)
        return self._written(partial=False)

    def _passes(self, arm: str, speedup: Speedup) -> bool:
        """Test a candidate, unless no candidate can pass because a full run has no metric."""
        if self._full_failed:
            return False
        self._observer.candidate_started(arm, speedup)
        candidate = self._test(arm, speedup)
        self._tried.append(candidate)
        self._written(partial=True)
        self._observer.candidate_finished(arm, speedup, candidate.finding)
        return candidate.passed or plain_suffices(candidate.verdict, self._config)

    def _test(self, arm: str, speedup: Speedup) -> Candidate:
        """Train and judge a candidate, seed by seed, as long as it can pass."""
        config = replace(self._config, speedup=speedup, alpha=self._level)
        seeds: list[PairedSeed] = []
        for seed in range(config.seeds):
            runs = []
            for name in (FULL, SHORT, arm):
                run = self._get(config, name, seed)
                runs.append(run)
                self._lengths = run["lengths"]
                if failure := run["failure"]:
                    self._full_failed = name == FULL
                    return _given_up(arm, config, seeds, f"{name} {failure}", fault=name == arm)
            seeds.append(paired(*runs))
            if len(seeds) < config.seeds and _inferior(judge_audit(seeds, config, arm), config):
                reason = f"inferior on {len(seeds)} seeds"
                return _given_up(arm, config, seeds, reason, fault=True)
        verdict = judge_audit(seeds, config, arm)
        return Candidate(arm, speedup, verdict, FINDINGS[verdict.outcome])

    def _written(self, *, partial: bool) -> SearchResult:
        """Write the results file, and return its content."""
        best: dict[str, float | None] = dict.fromkeys(WAYS)
        if AUTO in self._config.speedups:
            best[AUTO] = None
        for each in self._tried:
            if each.passed:
                best[each.way] = max(each.shortening, best[each.way] or 0.0)
        results: dict[str, Any] = finite(
            {
                "schema": SCHEMA,
                "partial": partial,
                "environment": environment(),
                "config": self._asked.to_dict(),
                "level": self._level,
                "directions": [d._asdict() for d in self._directions if d.name],
                "tried": [each.to_dict() for each in self._tried],
                "best": best,
                "line": trainer_line(self._config, self._tried, self._lengths),
            }
        )
        write_json(results, self._folder / SEARCH)
        return SearchResult(tuple(self._tried), results, self._folder, tuple(self._directions))


def _given_up(
    arm: str, config: AuditConfig, seeds: Sequence[PairedSeed], reason: str, *, fault: bool
) -> Candidate:
    """Return a candidate that cannot pass any more; ``fault`` is whether its arm is the cause."""
    no_saving = fault and config.seeds >= FEW_SEEDS
    outcome = AuditOutcome.NO_SAVING if no_saving else AuditOutcome.UNDECIDED
    finding = f"given up: {reason}"
    verdict = replace(judge_audit(seeds, config, arm), outcome=outcome, headline=finding)
    return Candidate(arm, config.speedup, verdict, finding)


def _inferior(verdict: AuditVerdict, config: AuditConfig) -> bool:
    """Whether the candidate cannot pass, and plain training as short cannot be as good either."""
    if verdict.seeds < FUTILE or verdict.contrast is None or verdict.worth is None:
        return False
    return verdict.contrast.lower > 0 and verdict.worth.lower > (config.margin or 0.0)


def plain_suffices(verdict: AuditVerdict, config: AuditConfig) -> bool:
    """Whether plain training of as few full steps was as good as the full arm."""
    worth = verdict.worth
    if verdict.seeds < FEW_SEEDS or (verdict.way or 0.0) > LEAST_SAVING:
        return False
    return worth is not None and worth.upper < (config.margin or 0.0)


def trainer_line(
    config: AuditConfig, tried: Sequence[Candidate], lengths: Mapping[str, int]
) -> str:
    """Return the Python source of the Trainer of the candidate that saves most full steps.

    The lengths are ``max_steps`` and ``max_epochs`` of the full arm, as far as given. Empty if
    they are not known, because nothing was trained.
    """
    if not lengths:
        return ""
    lines: dict[float, str] = {}  # by the share of full steps that is saved
    options = [f"{name}={value!r}" for name, value in config.hybrid.items()]
    note = "with a schedule as short as the run"
    for t in tried:
        short = {name: shortened(length, t.shortening) for name, length in lengths.items()}
        saving = t.verdict.saving or 0.0
        if plain_suffices(t.verdict, config):
            lines[1.0 - 1.0 / t.shortening] = f"{_trainer(short)}  # plain training, {note}"
        elif t.passed and t.arm == CORRECTED:
            lines.setdefault(saving, f"{_trainer(short, 'speedup=1', *options)}  # {note}")
        elif t.passed:
            speedup = f"speedup={t.speedup!r}" if t.speedup == AUTO else f"speedup={t.speedup:g}"
            lines.setdefault(saving, _trainer(lengths, speedup, *options))
    if lines:
        return lines[max(lines)]
    few = f"; fewer than {FEW_SEEDS} seeds show none" if config.seeds < FEW_SEEDS else ""
    return f"{_trainer(lengths)}  # no saving at equal quality was shown{few}"


def _trainer(lengths: Mapping[str, int], *options: str) -> str:
    arguments = [f"{name}={length}" for name, length in lengths.items()]
    if options:
        arguments.append(f"callbacks=[HybridPredict({', '.join(options)})]")
    return f"Trainer({', '.join(arguments)})"
