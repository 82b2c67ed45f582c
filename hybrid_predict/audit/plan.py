"""What an audit or a search would train, and for how long, from a few full steps."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AUTO, SHORTENED, AuditConfig
from hybrid_predict.audit.directions import COMPARED, direction_stores, finished_direction
from hybrid_predict.audit.meter import Meter
from hybrid_predict.audit.searching import WAYS, number_of_tests, try_candidates
from hybrid_predict.audit.store import PLAIN, RunKey, RunStore, run_key
from hybrid_predict.audit.training import fit_arm, short_steps
from hybrid_predict.audit.verdict import counted_seeds
from hybrid_predict.config import Speedup
from hybrid_predict.engine import HybridEngine
from hybrid_predict.ledger import FELL_BACK, duration
from hybrid_predict.report.overview import steps_until_skill
from hybrid_predict.rules.budget import NONE_FIT
from hybrid_predict.rules.schedule import Schedule, schedule
from hybrid_predict.runs.evidence import ARMS, CORRECTED, FEW_SEEDS, FULL, HYBRID, SHORT
from hybrid_predict.runs.files import given_path
from hybrid_predict.runs.runtime import collected, quiet

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
        too_dear: That corrections do not fit into the budget, and what to type, or empty.
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
            arms, seeds = f"{len(self.full_steps)} arms", counted_seeds(self.seeds)
            steps = [f"{arm} {self._limits(arm, n)}" for arm, n in self.full_steps.items()]
            runs = [
                f"{self.runs} runs: {arms}, {seeds}; {self.done} done.",
                f"Full steps per run: {', '.join(steps)}.",
                f"Hybrid arm: {self.shortfall}." * bool(self.shortfall),
            ]
        least, most = duration(self.seconds), duration(self.most_seconds)
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
    """Estimate the length of an audit from a few full steps of the full arm.

    Trains in a temporary folder and writes nothing anywhere else.

    Args:
        make_run: As for :func:`audit`; called twice.
        config: As for :func:`audit`.
        folder: The audit's folder, whose finished runs count as done; None counts none.
        source: As for :func:`audit`.

    Raises:
        ConfigError: As :func:`audit` does.
        UnsupportedSetupError: As :func:`audit` does.
    """
    speedup = config.speedup
    keys = {run_key(arm, speedup, n) for arm, n in product(config.arms, range(config.seeds))}
    plan, trial = _plan([keys], make_run, config, _store(config, folder, source), config.arms)
    steps = {arm: trial.steps(arm, speedup) for arm in config.arms}
    shortfall = trial.schedule(speedup).shortfall
    return replace(plan, full_steps=steps, shortfall=shortfall, auto=speedup == AUTO)


def plan_search(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> AuditPlan:
    """Estimate the greatest length of a search, as :func:`plan_audit` does that of an audit."""
    store = _store(config, folder, source)
    left = more = _compared_runs(config)
    arms: Collection[str] = PLAIN if config.directions else ARMS
    if store is not None and config.directions:
        stores = direction_stores(config, store)
        if (chosen := finished_direction(config, stores)) is not None:
            store, arms, left = stores[chosen], ARMS, 0
    plan, trial = _plan(_paths(config), make_run, config, store, arms)
    more_seconds = left * trial.steps(CORRECTED, config.first_tested) * plan.seconds_per_step
    return replace(
        plan,
        done=plan.done + more - left,
        runs=plan.runs + more,
        left=plan.left + left,
        seconds=plan.seconds + more_seconds,
        most_seconds=plan.most_seconds + more_seconds,
        tests=number_of_tests(config),
    )


def most_runs(config: AuditConfig) -> int:
    """Return the largest number of runs of a search, finished ones included."""
    return max(map(len, _paths(config))) + _compared_runs(config)


def _compared_runs(config: AuditConfig) -> int:
    """Return the number of runs that compare directions and are not those of the chosen one."""
    return max(0, len(config.directions) - 1) * min(config.seeds, COMPARED)


def _paths(config: AuditConfig) -> list[set[RunKey]]:
    """Return the runs of every way that a search can take if no candidate is given up."""
    borders = product((0.0, *config.numbers), repeat=len(WAYS))
    return [_path(config, dict(zip(WAYS, largest, strict=True))) for largest in borders]


def _path(config: AuditConfig, largest: Mapping[str, float]) -> set[RunKey]:
    """Return the runs of a search in which each arm passes up to its largest speedup."""
    tested: list[tuple[str, Speedup]] = []

    def passes(arm: str, speedup: Speedup) -> bool:
        tested.append((arm, speedup))
        return isinstance(speedup, str) or speedup <= largest[arm]

    try_candidates(config, passes)
    return {
        run_key(name, speedup, seed)
        for (arm, speedup), seed in product(tested, range(config.seeds))
        for name in (FULL, SHORT, arm)
    }


def _store(
    config: AuditConfig, folder: str | Path | None, source: Mapping[str, Any] | None
) -> RunStore | None:
    return None if folder is None else RunStore(given_path("folder", folder), config, source)


def _plan(
    paths: Sequence[set[RunKey]],
    make_run: MakeRun,
    config: AuditConfig,
    store: RunStore | None,
    arms: Collection[str],
) -> tuple[AuditPlan, _Trial]:
    """Return the plan for the longest of several sets of runs, and the trial that it is from.

    Runs of these arms in the store count as done.
    """
    every = set[RunKey]().union(*paths)
    done = set[RunKey]()
    if store is not None:
        done = {key for key in every if key[0] in arms and store.key(*key) in store.runs}
    trial = _Trial(make_run, config)
    steps = {(arm, speedup): trial.steps(arm, speedup) for arm, speedup, _ in every}
    longest = {key: trial.meter.total_steps if key[0] == HYBRID else n for key, n in steps.items()}
    left = [path - done for path in paths]
    each = trial.meter.seconds_per_step
    least, most = (
        each * max(sum(lengths[arm, speedup] for arm, speedup, _ in path) for path in left)
        for lengths in (steps, longest)
    )
    runs, remaining = max(map(len, paths)), max(map(len, left))
    plan = AuditPlan(config.seeds, {}, len(done), runs, remaining, each, least, most)
    return replace(plan, left_out=trial.left_out, too_dear=_too_dear(make_run, config)), trial


def _too_dear(make_run: MakeRun, config: AuditConfig) -> str:
    """Return what the hybrid arm says of its budget, after one full step in a temporary folder."""
    meter = Meter(config.metric, 0, limit=1)
    with quiet(), collected([]), tempfile.TemporaryDirectory() as folder:
        arm = AuditArm(HYBRID, 0, config, Path(folder), meter)
        fit_arm(arm, make_run, meter)
    assert arm.hybrid is not None  # this arm has it
    ledger = arm.hybrid.ledger
    if ledger.fell_back:
        return f"The hybrid arm would be plain training: {ledger.fell_back.removeprefix(FELL_BACK)}"
    told = (event["reason"] for event in ledger.events if NONE_FIT in event["reason"])
    return next((f"Hybrid arm: {reason}" for reason in told), "")


class _Trial:
    """A few full steps of the full arm in a temporary folder, and the arms' lengths they show."""

    def __init__(self, make_run: MakeRun, config: AuditConfig) -> None:
        self.config, self.meter = config, Meter(config.metric, 0, self._started, limit=TRIED_STEPS)
        with quiet(), tempfile.TemporaryDirectory() as folder:
            self._arm = AuditArm(FULL, 0, config, Path(folder), self.meter)
            fit_arm(self._arm, make_run, self.meter)

    def _started(self, trainer: Any) -> None:
        self._arm.settle_callbacks(trainer)
        chosen = self.config.hybrid_config().with_length(self.meter.total_steps)
        with HybridEngine(trainer.lightning_module, trainer.optimizers, chosen) as engine:
            self._until_skill = steps_until_skill(engine)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What of the user's Trainer is not used, in sentences."""
        return tuple(self._arm.left_out)

    def schedule(self, speedup: Speedup) -> Schedule:
        """Return the schedule of the hybrid arm, which has its predicted steps."""
        chosen = replace(self.config, speedup=speedup).hybrid_config()
        return schedule(chosen.with_length(self.meter.total_steps), self._until_skill)

    def steps(self, arm: str, speedup: Speedup | None) -> int:
        """Return an arm's full steps; of the hybrid arm the fewest, with ``"auto"`` the most."""
        total = self.meter.total_steps
        if speedup is not None and (speedup == AUTO or arm in SHORTENED):
            return short_steps(total, self._arm.lengths, speedup)
        if speedup is not None and arm == HYBRID:
            return total - self.schedule(speedup).planned
        return total
