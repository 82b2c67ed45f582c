"""What an audit or a search would train, and for how long, from a few full steps."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AUTO, AuditConfig, short_steps
from hybrid_predict.audit.search import number_of_tests
from hybrid_predict.audit.store import Cell, RunStore, cell, cells
from hybrid_predict.audit.training import Meter, fit_arm, preserved
from hybrid_predict.audit.trial import Trial, TrialEnd
from hybrid_predict.audit.verdict import counted_seeds
from hybrid_predict.ledger import duration
from hybrid_predict.policy.schedule import schedule
from hybrid_predict.runs.evidence import ARMS, CORRECTED, FEW_SEEDS, FULL, HYBRID
from hybrid_predict.runs.files import given_path
from hybrid_predict.runs.runtime import collected, quiet


@dataclass(frozen=True)
class AuditPlan:
    """What an audit, or at most a search, would train.

    Args:
        seeds: Number of paired seeds.
        full_steps: Full steps of one run of each arm of an audit; for the hybrid arm the fewest,
            if all its predicted steps are made and stand. With ``"auto"`` the most for each arm.
        done: Number of finished runs, which would not be trained again.
        runs: Number of all runs; of a search the most.
        left: Number of runs that remain; of a search the most.
        seconds_per_step: Seconds of one full step of plain training.
        seconds: Estimated seconds of training that remain, without validation, if all predicted
            steps are made and stand.
        most_seconds: The same if no predicted step is made.
        notes: What the hybrid arm can do, in sentences.
        tests: Largest number of candidates that a search tests; 0 for an audit.
    """

    seeds: int
    full_steps: Mapping[str, int]
    done: int
    runs: int
    left: int
    seconds_per_step: float
    seconds: float
    most_seconds: float
    notes: tuple[str, ...] = ()
    tests: int = 0

    def __str__(self) -> str:
        """Return the plan in a few lines."""
        least = duration(self.seconds)
        most = duration(self.most_seconds)
        if self.tests:
            lines = [
                f"At most {self.runs} runs, for {self.tests} tests of candidates; {self.done} "
                f"done, at most {self.left} to be trained; fewer if candidates are given up early."
            ]
            span = f"at most {most}"
        else:
            steps = {arm: f"{number:,}" for arm, number in self.full_steps.items()}
            if self.full_steps[HYBRID] < self.full_steps[FULL]:
                steps[HYBRID] += f" to {steps[FULL]}"
            arms = f"{len(steps)} arms, {counted_seeds(self.seeds)}"
            listed = ", ".join(f"{arm} {number}" for arm, number in steps.items())
            lines = [
                f"{self.runs} runs: {arms}; {self.done} done.",
                f"Full steps per run: {listed}.",
            ]
            span = f"about {most if least == most else f'{least} to {most}'}"
        lines += [
            *self.notes,
            f"Training to come: {span}, at {duration(self.seconds_per_step)} per plain full step; "
            "validation, corrected updates, predicted steps and start-up come on top.",
        ]
        if self.seeds < FEW_SEEDS:
            lines.append(f"A verdict needs at least {FEW_SEEDS} seeds; fewer only give a hint.")
        return "\n".join(lines)


def plan_audit(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> AuditPlan:
    """Estimate the length of an audit from a few full steps.

    Trains in a temporary folder and writes nothing anywhere else.

    Args:
        make_run: As for :func:`audit`; called once.
        config: As for :func:`audit`.
        folder: The audit's folder, whose finished runs count as done; None counts none.
        source: As for :func:`audit`.

    Raises:
        ConfigError: As :func:`audit` does.
        UnsupportedSetupError: As :func:`audit` does.
    """
    every = cells(config)
    plan = _plan(make_run, config, every, len(every), _finished(config, folder, source))
    if config.speedup == AUTO:
        note = 'With "auto" the hybrid arm may take fewer full steps, and the short arms then too.'
        return replace(plan, notes=(note, *plan.notes))
    return plan


def plan_search(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> AuditPlan:
    """Estimate the greatest length of a search, as :func:`plan_audit` does that of an audit.

    It assumes that the most tests are made, each of them with the longest runs that may remain.
    """
    done = _finished(config, folder, source)
    plan = _plan(make_run, config, _candidates(config), most_runs(config), done)
    return replace(plan, tests=number_of_tests(config))


def most_runs(config: AuditConfig) -> int:
    """Return an upper bound of the number of runs of a search, finished ones included.

    Each test has an arm and its short arm. Both ways are first tested at the same speedup.
    """
    each = 1 + 2 * number_of_tests(config) - bool(config.numbers)
    return min(config.seeds * each, len(_candidates(config)))


def _candidates(config: AuditConfig) -> list[Cell]:
    """Return all cells that a search may ask for."""
    found: dict[Cell, None] = {}
    for speedup in config.speedups:
        arms = [arm for arm in ARMS if speedup != AUTO or arm != CORRECTED]
        found.update(dict.fromkeys(cells(replace(config, speedup=speedup), arms)))
    return list(found)


def _finished(
    config: AuditConfig, folder: str | Path | None, source: Mapping[str, Any] | None
) -> set[Cell]:
    if folder is None:
        return set()
    return set(RunStore(given_path("folder", folder), config, source).runs)


def _plan(
    make_run: MakeRun, config: AuditConfig, every: Sequence[Cell], most: int, finished: set[Cell]
) -> AuditPlan:
    """Return the plan for at most so many of these cells, after a trial of the hybrid arm."""
    with preserved(), quiet(), collected([]), tempfile.TemporaryDirectory() as folder:
        arm = AuditArm(HYBRID, config.arms[HYBRID], 0, Path(folder))
        assert arm.hybrid is not None  # this arm has it
        meter = Meter(arm, config.metric)
        trial = Trial(arm.hybrid)
        with suppress(TrialEnd):
            fit_arm(arm, make_run, meter, trial)
    total = meter.total_steps

    def steps(cell: Cell) -> int:
        """Return a run's full steps; of the hybrid arm the fewest, with ``"auto"`` the most."""
        if cell.speedup is None or isinstance(cell.speedup, str):
            return total
        if cell.arm != HYBRID:
            return short_steps(total, arm.lengths, cell.speedup)
        chosen = replace(config, speedup=cell.speedup).hybrid_config()
        return total - schedule(chosen.with_length(total), trial.until_skill).planned

    full_steps = {name: steps(cell(config, name, 0)) for name in config.arms}
    missing = [each for each in every if each not in finished]
    largest = sorted(map(steps, missing), reverse=True)[:most]
    bounds = [total if each.arm == HYBRID else steps(each) for each in missing]
    planned = schedule(config.hybrid_config().with_length(total), trial.until_skill)
    why = f"it would be plain training: {trial.plain}" if trial.plain else trial.cost
    return AuditPlan(
        seeds=config.seeds,
        full_steps=full_steps,
        done=len(every) - len(missing),
        runs=most,
        left=len(largest),
        seconds_per_step=trial.seconds_per_step,
        seconds=trial.seconds_per_step * sum(largest),
        most_seconds=trial.seconds_per_step * sum(sorted(bounds, reverse=True)[:most]),
        notes=tuple(f"Hybrid arm: {text}." for text in (planned.shortfall, why) if text),
    )
