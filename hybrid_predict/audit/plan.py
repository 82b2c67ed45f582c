"""What an audit or a search would train, and for how long, from a few full steps."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AUTO, SHORTENED, AuditConfig
from hybrid_predict.audit.meter import Meter
from hybrid_predict.audit.searching import WAYS, compare, number_of_tests, try_candidates
from hybrid_predict.audit.store import Cell, FinishedRun, RunStore, cell, cells
from hybrid_predict.audit.training import fit_arm, short_steps
from hybrid_predict.audit.verdict import counted_seeds
from hybrid_predict.config import Speedup
from hybrid_predict.engine import HybridEngine
from hybrid_predict.ledger import FELL_BACK, duration
from hybrid_predict.policy.budget import NONE_FIT
from hybrid_predict.policy.schedule import Schedule, schedule
from hybrid_predict.report.overview import steps_until_skill
from hybrid_predict.runs.evidence import FEW_SEEDS, FULL, HYBRID, SHORT
from hybrid_predict.runs.files import given_path
from hybrid_predict.runs.runtime import Observer, collected, quiet

TRIED_STEPS = 12
"""Full steps of the trial."""


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
        shortfall: Why the hybrid arm cannot make as many predicted steps as asked for, or empty.
        tests: Largest number of candidates that a search tests; 0 for an audit.
        auto: Whether the hybrid arm decides how many full steps it and the short arms take.
        left_out: What of the user's Trainer is not used, in sentences.
        too_dear: Why corrections do not fit ``max_overhead`` and what to set, or empty.
    """

    seeds: int
    full_steps: Mapping[str, int]
    done: int
    runs: int
    left: int
    seconds_per_step: float
    seconds: float
    most_seconds: float
    shortfall: str = ""
    tests: int = 0
    auto: bool = False
    left_out: tuple[str, ...] = ()
    too_dear: str = ""

    def __str__(self) -> str:
        """Return the plan in a few lines."""
        if self.tests:
            runs = [
                f"At most {self.runs} runs, for {self.tests} tests of candidates; {self.done} "
                f"done, at most {self.left} to be trained; fewer if candidates are given up early."
            ]
        else:
            arms = f"{len(self.full_steps)} arms"
            seeds = counted_seeds(self.seeds)
            steps = [f"{arm} {self._limits(arm, n)}" for arm, n in self.full_steps.items()]
            runs = [
                f"{self.runs} runs: {arms}, {seeds}; {self.done} done.",
                f"Full steps per run: {', '.join(steps)}.",
                f"Hybrid arm: {self.shortfall}." * bool(self.shortfall),
            ]
        least = duration(self.seconds)
        most = duration(self.most_seconds)
        span = most if self.tests or least == most else f"{least} to {most}"
        lines = [
            *runs,
            *self.left_out,
            f"{self.too_dear} (in a file, under audit.hybrid)." * bool(self.too_dear),
            f"About {span} of training to come{' at most' * bool(self.tests)}, "
            f"at {duration(self.seconds_per_step)} per plain full step. Validation, corrected "
            "updates, predicted steps and start-up are not included; on small models they take "
            "longer. Without skill, full steps take the place of predicted ones.",
            f"A verdict needs at least {FEW_SEEDS} seeds; fewer only give a hint."
            * (self.seeds < FEW_SEEDS),
        ]
        return "\n".join(filter(None, lines))

    def _limits(self, arm: str, full_steps: int) -> str:
        """Return the full steps of an arm, with both ends if they are not known."""
        if self.auto and arm in (*SHORTENED, HYBRID):
            return f"at most {full_steps:,}"
        most = self.full_steps[FULL] if arm == HYBRID else full_steps
        return f"{full_steps:,}" + f" to {most:,}" * (most > full_steps)


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
    return _plan(_paths(config, done), make_run, config, done, number_of_tests(config))


def most_runs(config: AuditConfig) -> int:
    """Return the largest number of runs of a search, finished ones included."""
    return max(map(len, _paths(config, {})))


def _paths(config: AuditConfig, done: Mapping[Cell, FinishedRun]) -> list[set[Cell]]:
    """Return the cells of every way that a search can take if no candidate is given up.

    Finished runs may have chosen the direction already.
    """
    compared: list[Cell] = []

    def note(each: AuditConfig, arm: str, seed: int) -> FinishedRun:
        compared.append(cell(each, arm, seed))
        return done.get(compared[-1], {"failure": None, "metric": 0.0})

    ordered = [direction.name for direction in compare(config, note, Observer())]
    chosen = ordered[:1] if done.keys() >= set(compared) else ordered
    configs = config.by_direction()
    borders = product(chosen, product((0.0, *config.numbers), repeat=len(WAYS)))
    return [{*compared, *_path(configs[name], largest)} for name, largest in borders]


def _path(config: AuditConfig, largest: Sequence[float]) -> set[Cell]:
    """Return the cells of a search in which each arm passes up to its largest speedup."""
    border = dict(zip(WAYS, largest, strict=True))
    found: set[Cell] = set()

    def passes(arm: str, speedup: Speedup) -> bool:
        tested = replace(config, speedup=speedup)
        found.update(cells(tested, (FULL, SHORT, arm)))
        return isinstance(speedup, str) or speedup <= border[arm]

    try_candidates(config, passes)
    return found


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
    """Return the plan for the longest of several sets of cells."""
    trial = _Trial(make_run, config)
    every = set[Cell]().union(*paths)
    done = finished.keys() & every
    left = [path - done for path in paths]
    least = {(c.arm, c.speedup): trial.steps(c.arm, c.speedup) for c in every}
    most = {key: trial.meter.total_steps if key[0] == HYBRID else n for key, n in least.items()}

    def seconds(steps: Mapping[tuple[str, Speedup | None], int]) -> float:
        longest = max(sum(steps[c.arm, c.speedup] for c in path) for path in left)
        return trial.meter.seconds_per_step * longest

    return AuditPlan(
        seeds=config.seeds,
        full_steps={} if tests else {arm: least[cell(config, arm, 0)[:2]] for arm in config.arms},
        done=len(done),
        runs=max(map(len, paths)),
        left=max(map(len, left)),
        seconds_per_step=trial.meter.seconds_per_step,
        seconds=seconds(least),
        most_seconds=seconds(most),
        shortfall="" if tests else trial.schedule(config.speedup).shortfall,
        tests=tests,
        auto=config.speedup == AUTO,
        left_out=tuple(trial.arm.left_out),
        too_dear=trial.too_dear,
    )


class _Trial:
    """A few full steps of the hybrid arm in a temporary folder: one as it is, then plain ones.

    ``too_dear`` is what the arm says of its budget after the first one.
    """

    def __init__(self, make_run: MakeRun, config: AuditConfig) -> None:
        self.config = config
        self.meter = Meter(config.metric, on_step=self._stepped, limit=TRIED_STEPS)
        self.meter.on_start = self._started
        self.too_dear = ""
        with quiet(), collected([]), tempfile.TemporaryDirectory() as folder:
            self.arm = AuditArm(HYBRID, 0, config, Path(folder), self.meter)
            fit_arm(self.arm, make_run, self.meter)

    def _started(self, trainer: Any) -> None:
        self.arm.settle_callbacks(trainer)
        self._until_skill = steps_until_skill(self._engine)

    def _stepped(self, steps: int, loss: float) -> None:
        if self.meter.full_steps > 1:
            return
        ledger = self._engine.ledger
        if reason := ledger.fell_back.removeprefix(FELL_BACK):
            self.too_dear = f"The hybrid arm would be plain training: {reason}"
        for event in ledger.events:
            if NONE_FIT in event["reason"] and not self.too_dear:
                self.too_dear = f"Hybrid arm: {event['reason']}"
        self._engine.detach()

    @property
    def _engine(self) -> HybridEngine:
        assert self.arm.hybrid is not None  # this arm has it
        assert self.arm.hybrid.engine is not None  # since training has started
        return self.arm.hybrid.engine

    def schedule(self, speedup: Speedup) -> Schedule:
        """Return the schedule of the hybrid arm, which has its predicted steps."""
        chosen = replace(self.config, speedup=speedup).hybrid_config()
        return schedule(chosen.with_length(self.meter.total_steps), self._until_skill)

    def steps(self, arm: str, speedup: Speedup | None) -> int:
        """Return an arm's full steps; of the hybrid arm the fewest, with ``"auto"`` the most."""
        total = self.meter.total_steps
        if speedup is None:
            return total
        if speedup == AUTO or arm in SHORTENED:
            return short_steps(total, self.arm.lengths, speedup)
        return total - self.schedule(speedup).planned
