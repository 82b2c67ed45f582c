"""What an audit or a search would train, and for how long, from a few full steps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import gt
from pathlib import Path
from typing import Any

from hybrid_predict.accounts.clock import Clock
from hybrid_predict.audit.arm import MakeRun
from hybrid_predict.audit.config import SHORTENED, AuditConfig
from hybrid_predict.audit.searching import WAYS, bisect, most_tests
from hybrid_predict.audit.store import RunKey, RunStore, run_key
from hybrid_predict.audit.training import Trial, short_steps, try_steps
from hybrid_predict.audit.verdict import counted_seeds
from hybrid_predict.runs.evidence import FEW_SEEDS, FULL, HYBRID, SHORT
from hybrid_predict.runs.runtime import quiet

TRIED_STEPS = 12
"""Full steps of the trial."""


@dataclass(frozen=True)
class AuditPlan:
    """What an audit would do.

    Args:
        seeds: Number of paired seeds.
        full_steps: Full steps of one run of each arm; for the hybrid arm the fewest, if all its
            predicted steps are made and stand.
        done: Number of finished runs, which would not be trained again.
        runs: Number of all runs.
        seconds_per_step: Seconds of one full step of plain training.
        seconds: Estimated seconds of training that remain, without validation.
        shortfall: Why the hybrid arm cannot make as many predicted steps as asked for, or empty.
    """

    seeds: int
    full_steps: Mapping[str, int]
    done: int
    runs: int
    seconds_per_step: float
    seconds: float
    shortfall: str = ""

    def __str__(self) -> str:
        """Return the plan in a few lines."""
        steps = ", ".join(
            f"{name} {'at least ' * (name == HYBRID)}{count:,}"
            for name, count in self.full_steps.items()
        )
        return "\n".join(
            [
                f"{self.runs} runs: {len(self.full_steps)} arms, {counted_seeds(self.seeds)}; "
                f"{self.done} done.",
                f"Full steps per run: {steps}.",
                *([self.shortfall] if self.shortfall else []),
                f"About {_duration(self.seconds)} of training to come, at "
                f"{_pace(self.seconds_per_step)}",
                *_few(self.seeds),
            ]
        )


@dataclass(frozen=True)
class SearchPlan:
    """What a search would do at most.

    Args:
        seeds: Number of paired seeds.
        tests: Largest number of candidates that are tested, over all arms.
        runs: Largest number of runs.
        done: Number of its candidates' runs that are finished; it may not need all of them.
        left: Largest number of runs that remain.
        seconds_per_step: Seconds of one full step of plain training.
        seconds: Estimated seconds of training that remain at most, without validation.
    """

    seeds: int
    tests: int
    runs: int
    done: int
    left: int
    seconds_per_step: float
    seconds: float

    def __str__(self) -> str:
        """Return the plan in a few lines."""
        return "\n".join(
            [
                f"At most {self.runs} runs, for {self.tests} tests of candidates; {self.done} "
                f"done, at most {self.left} to be trained.",
                f"About {_duration(self.seconds)} of training to come at most, at "
                f"{_pace(self.seconds_per_step)}",
                "It is less if candidates are given up early.",
                *_few(self.seeds),
            ]
        )


def plan_audit(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> AuditPlan:
    """Estimate the length of an audit from a few full steps of the full arm.

    Trains in a temporary folder and writes nothing anywhere else.

    Args:
        make_run: As for :func:`audit`; called once.
        config: As for :func:`audit`.
        folder: The audit's folder, whose finished runs count as done; None counts none.
        source: As for :func:`audit`.

    Returns:
        The plan.

    Raises:
        ConfigError: As :func:`audit` does.
        UnsupportedSetupError: As :func:`audit` does.
    """
    keys = [run_key(*key) for key in product(config.arms, [config.speedup], range(config.seeds))]
    done = _done(config, folder, source) & set(keys)
    trial = _trial(make_run, config)
    steps = {name: _steps(name, trial, config) for name in config.arms}
    return AuditPlan(
        seeds=config.seeds,
        full_steps=steps,
        done=len(done),
        runs=len(keys),
        seconds_per_step=trial.seconds_per_step,
        seconds=trial.seconds_per_step * sum(steps[key[0]] for key in keys if key not in done),
        shortfall=_clock(trial, config).shortfall,
    )


def plan_search(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> SearchPlan:
    """Estimate the greatest length of a search from a few full steps of the full arm.

    Args:
        make_run: As for :func:`search`; called once.
        config: As for :func:`search`.
        folder: The search's folder, whose finished runs count as done; None counts none.
        source: As for :func:`search`.

    Raises:
        ConfigError: As :func:`search` does.
        UnsupportedSetupError: As :func:`search` does.
    """
    paths = [set(path) for path in _paths(config)]
    done = _done(config, folder, source) & set().union(*paths)
    trial = _trial(make_run, config)
    steps = {
        (name, None if name == FULL else speedup): _steps(
            name, trial, replace(config, speedup=speedup)
        )
        for name, speedup in product((FULL, SHORT, *WAYS), map(float, config.speedups))
    }
    left = [path - done for path in paths]
    return SearchPlan(
        seeds=config.seeds,
        tests=most_tests(len(config.speedups)) * len(WAYS),
        runs=most_runs(config),
        done=len(done),
        left=max(map(len, left)),
        seconds_per_step=trial.seconds_per_step,
        seconds=trial.seconds_per_step
        * max(sum(steps[arm, speedup] for arm, speedup, _ in path) for path in left),
    )


def most_runs(config: AuditConfig) -> int:
    """Return the largest number of runs of a search, finished ones included."""
    return max(len(set(path)) for path in _paths(config))


def _paths(config: AuditConfig) -> Iterator[Iterable[RunKey]]:
    """Yield the runs of every way that a search can take if no candidate is given up."""
    speedups, seeds = config.speedups, range(config.seeds)
    borders = range(len(speedups) + 1)
    for corrected, hybrid in product(borders, borders):
        candidates = [
            (arm, speedups[k])
            for arm, border in zip(WAYS, (corrected, hybrid), strict=True)
            for k in bisect(len(speedups), partial(gt, border))
        ]
        yield (
            run_key(name, speedup, seed)
            for (arm, speedup), seed in product(candidates, seeds)
            for name in (FULL, SHORT, arm)
        )


def _done(
    config: AuditConfig, folder: str | Path | None, source: Mapping[str, Any] | None
) -> set[RunKey]:
    """Return the keys of a folder's finished runs."""
    if folder is None:
        return set()
    return set(RunStore(Path(folder).expanduser(), config, source).runs)


def _trial(make_run: MakeRun, config: AuditConfig) -> Trial:
    with quiet(), tempfile.TemporaryDirectory() as place:
        return try_steps(make_run, config, TRIED_STEPS, Path(place))


def _clock(trial: Trial, config: AuditConfig) -> Clock:
    """Return the clock of the hybrid arm, which knows its predicted steps."""
    chosen = replace(config.hybrid_config(), total_steps=trial.total_steps)
    return Clock(chosen, trial.until_skill)


def _steps(arm: str, trial: Trial, config: AuditConfig) -> int:
    """Return the full steps of an arm; of the hybrid arm the fewest.

    Raises:
        ConfigError: As :func:`short_steps` does.
    """
    if arm in SHORTENED:
        return short_steps(trial.total_steps, trial.lengths, config.speedup)
    return trial.total_steps - (_clock(trial, config).planned if arm == HYBRID else 0)


def _pace(seconds_per_step: float) -> str:
    """Return what an estimated time rests on, and what it leaves out."""
    return (
        f"{1e3 * seconds_per_step:.3g} ms per plain full step. Validation, corrected updates, "
        "predicted steps and start-up are not included; on small models they take longer. "
        "Without skill, full steps take the place of predicted ones."
    )


def _few(seeds: int) -> list[str]:
    """Return a line for a plan with too few seeds for a verdict."""
    line = f"A verdict needs at least {FEW_SEEDS} seeds; fewer only give a hint."
    return [line] if seeds < FEW_SEEDS else []


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
