"""What an audit or a search would train, and for how long, from a few full steps."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AUTO, SHORTENED, AuditConfig
from hybrid_predict.audit.meter import Meter
from hybrid_predict.audit.search import WAYS, number_of_tests, try_candidates
from hybrid_predict.audit.store import Cell, FinishedRun, RunStore, cell, cells
from hybrid_predict.audit.training import fit, preserved, short_steps
from hybrid_predict.audit.trial import Trial, TrialEnd
from hybrid_predict.audit.verdict import counted_seeds
from hybrid_predict.config import Speedup
from hybrid_predict.ledger import duration
from hybrid_predict.policy.schedule import Schedule, schedule
from hybrid_predict.runs.evidence import FEW_SEEDS, FULL, HYBRID, SHORT
from hybrid_predict.runs.files import given_path
from hybrid_predict.runs.runtime import collected, quiet

_TIMED = 5
"""Full steps that are timed with the callback, and without it."""


@dataclass(frozen=True)
class AuditPlan:
    """What an audit, or at most a search, would train.

    Args:
        seeds: Number of paired seeds.
        full_steps: Full steps of one run of each arm of an audit; for the hybrid arm the fewest,
            if all its predicted steps are made and stand. With ``"auto"`` the most for each arm.
            Without predicted steps the hybrid arm takes as many as the full arm.
        done: Number of finished runs, which would not be trained again.
        runs: Number of all runs.
        left: Number of runs that remain.
        seconds_per_step: Seconds of one full step of plain training.
        seconds: Estimated seconds of training that remain, without validation, if all predicted
            steps are made and stand.
        most_seconds: The same if no predicted step is made.
        notes: What is not used of the user's Trainer, and what the hybrid arm can do, in sentences.
        tests: Largest number of candidates that a search tests; 0 for an audit.
        auto: Whether the hybrid arm decides how many full steps it and the short arms take.
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
    auto: bool = False

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
            arms = f"{len(self.full_steps)} arms, {counted_seeds(self.seeds)}"
            steps = ", ".join(f"{arm} {self._limits(arm)}" for arm in self.full_steps)
            lines = [
                f"{self.runs} runs: {arms}; {self.done} done.",
                f"Full steps per run: {steps}.",
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

    def _limits(self, arm: str) -> str:
        """Return the full steps of an arm, with both ends if they are not known."""
        number = self.full_steps[arm]
        if self.auto and arm in (*SHORTENED, HYBRID):
            return f"at most {number:,}"
        most = self.full_steps[FULL] if arm == HYBRID else number
        return f"{number:,}" + f" to {most:,}" * (most > number)


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
    done = _finished(config, folder, source)
    return _plan([set(cells(config, config.arms))], make_run, config, done)


def plan_search(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> AuditPlan:
    """Estimate the greatest length of a search, as :func:`plan_audit` does that of an audit."""
    done = _finished(config, folder, source)
    return _plan(_paths(config), make_run, config, done, number_of_tests(config))


def most_runs(config: AuditConfig) -> int:
    """Return the largest number of runs of a search, finished ones included."""
    return max(map(len, _paths(config)))


def _paths(config: AuditConfig) -> list[set[Cell]]:
    """Return the cells of every way that a search can take if no candidate is given up."""
    paths = []
    for largest in product((0.0, *config.numbers), repeat=len(WAYS)):
        borders = dict(zip(WAYS, largest, strict=True))
        path: set[Cell] = set()

        def passes(arm: str, speedup: Speedup, borders: Any = borders, path: Any = path) -> bool:
            path.update(cells(replace(config, speedup=speedup), (FULL, SHORT, arm)))
            return isinstance(speedup, str) or speedup <= borders[arm]

        try_candidates(config, passes)
        paths.append(path)
    return paths


def _finished(
    config: AuditConfig, folder: str | Path | None, source: Mapping[str, Any] | None
) -> Mapping[Cell, FinishedRun]:
    return {} if folder is None else RunStore(given_path("folder", folder), config, source).runs


def _plan(
    paths: Sequence[set[Cell]],
    make_run: MakeRun,
    config: AuditConfig,
    finished: Mapping[Cell, FinishedRun],
    tests: int = 0,
) -> AuditPlan:
    """Return the plan for the longest of several sets of cells, after a trial of the hybrid arm."""
    arm, total, trial = _tried(make_run, config)

    def planned(speedup: Speedup) -> Schedule:
        chosen = replace(config, speedup=speedup).hybrid_config()
        return schedule(chosen.with_length(total), trial.until_skill)

    def steps(cell: Cell) -> int:
        """Return a run's full steps; of the hybrid arm the fewest, with ``"auto"`` the most."""
        if cell.speedup is None:
            return total
        if cell.speedup == AUTO or cell.arm in SHORTENED:
            return short_steps(total, arm.lengths, cell.speedup)
        return total - planned(cell.speedup).planned

    every = set[Cell]().union(*paths)
    done = finished.keys() & every
    left = [path - done for path in paths]
    least = {cell: steps(cell) for cell in every}
    most = {cell: total if cell.arm == HYBRID else n for cell, n in least.items()}
    notes = [*arm.left_out]
    if not tests and (shortfall := planned(config.speedup).shortfall):
        notes.append(f"Hybrid arm: {shortfall}.")
    if trial.plain:
        notes.append(f"Hybrid arm: it would be plain training: {trial.plain}.")
    elif trial.cost:
        notes.append(f"Hybrid arm: {trial.cost}.")
    return AuditPlan(
        seeds=config.seeds,
        full_steps={} if tests else {arm: least[cell(config, arm, 0)] for arm in config.arms},
        done=len(done),
        runs=max(map(len, paths)),
        left=max(map(len, left)),
        seconds_per_step=trial.seconds_per_step,
        seconds=trial.seconds_per_step * max(sum(least[c] for c in path) for path in left),
        most_seconds=trial.seconds_per_step * max(sum(most[c] for c in path) for path in left),
        notes=tuple(notes),
        tests=tests,
        auto=config.speedup == AUTO,
    )


def _tried(make_run: MakeRun, config: AuditConfig) -> tuple[AuditArm, int, Trial]:
    """Return the hybrid arm, its length in steps, and a trial of it in a temporary folder."""
    meter = Meter(config.metric)
    with preserved(), quiet(), collected([]), tempfile.TemporaryDirectory() as folder:
        arm = AuditArm(HYBRID, 0, config, Path(folder), meter)
        meter.on_start = arm.settle_callbacks
        pl.seed_everything(0, workers=True, verbose=False)
        trainer, model, data = arm.unpack(make_run(arm))
        assert arm.hybrid is not None  # this arm has it
        trial = Trial(arm.hybrid, _TIMED, on=True)
        trainer.callbacks.append(trial)  # type: ignore[attr-defined]
        with suppress(TrialEnd):
            fit(trainer, model, data)
    meter.check_started()
    return arm, meter.total_steps, trial
