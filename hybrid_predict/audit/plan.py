"""What an audit or a search would train, and for how long, from a few full steps."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AUTO, AuditConfig, short_steps, speedup_text
from hybrid_predict.audit.search import number_of_tests
from hybrid_predict.audit.store import Cell, RunStore, cell, cells
from hybrid_predict.audit.training import Meter, Trial, TrialEnd, fit_arm, preserved
from hybrid_predict.audit.verdict import counted_seeds
from hybrid_predict.ledger import duration
from hybrid_predict.runs.evidence import FEW_SEEDS, FULL, HYBRID, SHORT
from hybrid_predict.runs.files import given_path
from hybrid_predict.runs.runtime import collected, quiet


@dataclass(frozen=True)
class AuditPlan:
    """What an audit, or at most a search, would train.

    Args:
        full_steps: Full steps of one run of each arm of an audit; for the hybrid arm the fewest,
            if all its predicted steps are made and stand. With ``"auto"`` the most for each arm.
        runs: Number of all runs; of a search the most.
        done: Number of finished runs, which would not be trained again.
        seconds_per_step: Seconds of one full step of plain training.
        seconds: Most seconds of training that remain, without validation: no predicted step is
            made.
        text: All of it, and what the hybrid arm can do, in a few lines.
    """

    full_steps: Mapping[str, int]
    runs: int
    done: int
    seconds_per_step: float
    seconds: float
    text: str

    def __str__(self) -> str:
        return self.text


def plan_audit(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> AuditPlan:
    """Estimate the length of an audit from a few full steps.

    Calls ``make_run`` once, trains in a temporary folder and writes nothing anywhere else. Finished
    runs in ``folder`` count as done. Arguments and errors are those of :func:`audit`.
    """
    finished: set[Cell] = set()
    if folder is not None:
        finished = set(RunStore(given_path("folder", folder), config, source).runs)
    every = cells(config)
    to_train = [each for each in every if each not in finished]
    done = len(every) - len(to_train)
    seeds = counted_seeds(config.seeds)
    title = f"{len(every)} runs: {len(config.arms)} arms, {seeds}; {done} done."
    return _plan(make_run, config, to_train, title, done)


def plan_search(make_run: MakeRun, config: AuditConfig) -> AuditPlan:
    """Estimate the greatest length of a search, as :func:`plan_audit` does that of an audit.

    For each seed it counts one full arm and for each test an arm of full length and its short arm
    at the smallest speedup, whatever is finished.
    """
    tested = replace(config, speedup=config.speedups[0])
    tests = number_of_tests(config)
    each_seed = [cell(tested, FULL, 0), *tests * [cell(tested, SHORT, 0), cell(tested, HYBRID, 0)]]
    title = f"At most {most_runs(config)} runs, for {tests} tests of candidates; fewer if some are "
    return _plan(make_run, tested, config.seeds * each_seed, f"{title}finished.")


def most_runs(config: AuditConfig) -> int:
    """Return an upper bound of the number of runs of a search, finished ones included."""
    return config.seeds * (1 + 2 * number_of_tests(config))


def _plan(
    make_run: MakeRun, config: AuditConfig, to_train: Sequence[Cell], title: str, done: int = 0
) -> AuditPlan:
    """Return the plan for the cells to be trained, after a trial of the hybrid arm."""
    with preserved(), quiet(), collected([]), tempfile.TemporaryDirectory() as folder:
        arm = AuditArm(HYBRID, 0, Path(folder), config)
        assert arm.hybrid is not None  # this arm has it
        meter = Meter(arm, config.metric)
        trial = Trial(arm.hybrid)
        with suppress(TrialEnd):
            fit_arm(arm, make_run, meter, trial)
    total = meter.total_steps

    def most_steps(cell: Cell) -> int:
        if cell.arm == HYBRID or cell.speedup is None or isinstance(cell.speedup, str):
            return total
        return short_steps(total, arm.lengths, cell.speedup)

    full_steps = {name: most_steps(cell(config, name, 0)) for name in config.arms}
    steps = {name: f"{number:,}" for name, number in full_steps.items()}
    seconds = trial.seconds_per_step * sum(map(most_steps, to_train))
    auto = ""
    if config.speedup == AUTO:
        auto = 'With "auto" the hybrid arm may take fewer full steps, and the short arms then too.'
    elif trial.plan is not None and trial.plan.predicted:
        full_steps[HYBRID] -= trial.plan.predicted
        steps[HYBRID] = f"{full_steps[HYBRID]:,} to {steps[FULL]}"
    listed = ", ".join(f"{name} {number}" for name, number in steps.items())
    why = f"it would be plain training: {trial.plain}" if trial.plain else trial.cost
    lines = [
        title,
        f"Full steps per run at speedup {speedup_text(config.speedup)}: {listed}.",
        auto,
        *(f"Hybrid arm: {text}." for text in (trial.shortfall, why) if text),
        f"Training to come: at most {duration(seconds)}, at {duration(trial.seconds_per_step)} per "
        "plain full step; validation, corrected updates, predicted steps and start-up come on top.",
    ]
    if config.seeds < FEW_SEEDS:
        lines.append(f"A verdict needs at least {FEW_SEEDS} seeds; fewer only give a hint.")
    text = "\n".join(filter(None, lines))
    runs = done + len(to_train)
    return AuditPlan(full_steps, runs, done, trial.seconds_per_step, seconds, text)
