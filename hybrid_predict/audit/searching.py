"""How far a run can be shortened: the largest speedup that keeps quality, on a user's own model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import MakeRun, planned_steps, shortened
from hybrid_predict.audit.bisection import Bisection, level, most_tests
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.plan import TRIED_STEPS, duration
from hybrid_predict.audit.results import paired
from hybrid_predict.audit.run import conditions
from hybrid_predict.audit.store import RunStore
from hybrid_predict.audit.training import train_arm, try_steps
from hybrid_predict.audit.verdict import LEAST_SAVING, AuditOutcome, AuditVerdict, judge_audit
from hybrid_predict.runs.evidence import CORRECTED, FEW_SEEDS, FULL, HYBRID, SHORT
from hybrid_predict.runs.runtime import (
    Observer,
    environment,
    finite,
    locked,
    quiet,
    writable_folder,
    write_json,
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
    """

    arm: str
    speedup: float
    verdict: AuditVerdict

    @property
    def passed(self) -> bool:
        """Whether it saves full steps at equal quality."""
        return self.verdict.outcome is AuditOutcome.VERIFIED


@dataclass(frozen=True)
class SearchResult:
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
    def partial(self) -> bool:
        """Whether the user stopped the search before its answer was final."""
        return bool(self.results["partial"])


def search(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path,
    *,
    observer: Observer | None = None,
    source: Mapping[str, Any] | None = None,
) -> SearchResult:
    """Find the largest speedup that keeps quality, with predicted steps and with corrections alone.

    Bisects ``config.speedups`` once for each arm. A candidate passes if the audit's own test
    verifies a saving over the paired seeds. The test's level is divided by the number of tests, so
    that all of them together err with a probability of at most ``config.alpha``. Runs of the full
    arm are trained once and shared. A search that was stopped goes on where it was.

    Args:
        make_run: As for :func:`hybrid_predict.audit.audit`.
        config: As for :func:`hybrid_predict.audit.audit`; ``speedups`` are the candidates.
        folder: For everything that is written; every speedup has an audit's folder in it.
        observer: Is told what happens.
        source: As for :func:`hybrid_predict.audit.audit`.

    Returns:
        The answer; ``partial`` is true after Ctrl-C.

    Raises:
        ConfigError: As :func:`hybrid_predict.audit.audit` does.
        UnsupportedSetupError: As :func:`hybrid_predict.audit.audit` does.
        MissingExtraError: If Lightning is not installed.
    """
    place = writable_folder(folder)
    with locked(place), quiet():
        searching = _Searching(make_run, config, place, observer or Observer(), source or {})
        try:
            searching.train()
        except KeyboardInterrupt:
            return searching.result(partial=True)
        return searching.result(partial=False)


class _Searching:
    """One call of :func:`search`."""

    def __init__(
        self,
        make_run: MakeRun,
        config: AuditConfig,
        folder: Path,
        observer: Observer,
        source: Mapping[str, Any],
    ) -> None:
        self._make_run, self._config, self._folder = make_run, config, folder
        self._observer, self._source = observer, source
        self._level = level(config.alpha, len(config.speedups), len(WAYS))
        self._stores: dict[float, RunStore] = {}
        self._found: dict[float, dict[tuple[str, int], dict[str, Any]]] = {}
        self._tried: list[Tried] = []
        self._best: dict[str, float | None] = dict.fromkeys(WAYS)

    def train(self) -> None:
        """Test candidates until the answer cannot change."""
        speedups = self._config.speedups
        for arm in WAYS:
            bisection = Bisection(len(speedups))
            while (due := bisection.due) is not None:
                tried = self._test(arm, speedups[due])
                self._tried.append(tried)
                bisection.tell(tried.passed or _simply_shorter(tried.verdict, self._config))
                if tried.passed:
                    self._best[arm] = max(self._best[arm] or 0.0, tried.speedup)
                self.result(partial=True)

    def _test(self, arm: str, speedup: float) -> Tried:
        config, seeds = replace(self._config, speedup=speedup, alpha=self._level), []
        for seed in range(config.seeds):
            runs = [self._run(name, speedup, seed) for name in (FULL, SHORT, arm)]
            seeds.append(paired(*runs))
            verdict = judge_audit(seeds, config)
            contrast = verdict.contrast
            if len(seeds) >= FUTILE and contrast is not None and contrast.lower > 0:
                break
        return Tried(arm, speedup, verdict)

    def _run(self, name: str, speedup: float, seed: int) -> dict[str, Any]:
        """A finished run: known, of another speedup if it is a full one, or trained now."""
        store, found = self._store(speedup)
        if (name, seed) not in found:
            known = [runs[name, seed] for runs in self._found.values() if (name, seed) in runs]
            if name == FULL and known:
                store.save(known[0])
                found[name, seed] = known[0]
            else:
                found[name, seed] = self._train(name, speedup, seed, store)
        return found[name, seed]

    def _store(self, speedup: float) -> tuple[RunStore, dict[tuple[str, int], dict[str, Any]]]:
        if speedup not in self._stores:
            config = replace(self._config, speedup=speedup)
            folder = self._folder / f"speedup-{speedup:g}"
            folder.mkdir(exist_ok=True)
            store = RunStore(folder, conditions(config, self._source))
            self._found[speedup] = store.load()
            self._stores[speedup] = store
            for run in self._found[speedup].values():
                self._observer.run_found(run)
        return self._stores[speedup], self._found[speedup]

    def _train(self, name: str, speedup: float, seed: int, store: RunStore) -> dict[str, Any]:
        place = self._folder / "lightning" / f"{name}-{speedup:g}-seed{seed}"
        config = replace(self._config, speedup=speedup)
        run = train_arm(
            self._make_run, config, name, seed, place, self._observer, None, store.check
        )
        store.save(run)
        self._observer.run_finished(run)
        return run

    def result(self, *, partial: bool) -> SearchResult:
        """Write what is known so far."""
        full = next((r for runs in self._found.values() for (n, _), r in runs.items() if n == FULL),
                    None)  # fmt: skip
        line = paste(self._config, self._tried, full["lengths"]) if full else ""
        results = {
            "schema": SCHEMA,
            "partial": partial,
            "environment": environment(),
            "config": self._config.to_dict(),
            "level": self._level,
            "tried": [
                {"arm": t.arm, "speedup": t.speedup, "passed": t.passed, **t.verdict.to_dict()}
                for t in self._tried
            ],
            "best": self._best,
            "line": line,
        }
        plain: dict[str, Any] = finite(results)
        write_json(plain, self._folder / RESULTS)
        return SearchResult(tuple(self._tried), dict(self._best), line, plain, self._folder)


def paste(config: AuditConfig, tried: list[Tried], lengths: Mapping[str, int]) -> str:
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


def most_runs(config: AuditConfig) -> int:
    """Most runs of a search: the full ones, and for every test a short one and the arm's."""
    return config.seeds * (1 + 2 * len(WAYS) * most_tests(len(config.speedups)))


@dataclass(frozen=True)
class SearchPlan:
    """What a search would do at most.

    Args:
        runs: Most runs, of those that are not done.
        seconds: Estimated seconds of plain training in them, validation left out.
        tests: Most candidates that are tested.
    """

    runs: int
    seconds: float
    tests: int

    def __str__(self) -> str:
        """The plan in one sentence."""
        return (
            f"At most {self.runs} runs for {self.tests} tests of {len(WAYS)} arms: about "
            f"{duration(self.seconds)} of training at the speed of plain full steps. Bisection "
            "ends earlier where a candidate is inferior from the first seeds on."
        )


def plan_search(make_run: MakeRun, config: AuditConfig) -> SearchPlan:
    """Find out what a search would take at most, by a few full steps of the full arm.

    Args:
        make_run: As for :func:`search`; called once.
        config: As for :func:`search`.

    Raises:
        ConfigError: As :func:`search` does.
        UnsupportedSetupError: As :func:`search` does.
    """
    with quiet(), tempfile.TemporaryDirectory() as place:
        tried = try_steps(make_run, config, TRIED_STEPS, Path(place))
    total, lengths = tried["total_steps"], tried["lengths"]

    def steps(speedup: float) -> int:
        chosen = replace(config, speedup=speedup)
        return sum(planned_steps(name, total, lengths, chosen) for name in (SHORT, *WAYS))

    tests = most_tests(len(config.speedups))
    longest = sorted(map(steps, config.speedups), reverse=True)[:tests]
    return SearchPlan(
        runs=most_runs(config),
        seconds=tried["seconds_per_step"] * config.seeds * (total + sum(longest)),
        tests=tests * len(WAYS),
    )
