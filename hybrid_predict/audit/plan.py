"""What an audit would train and how long that takes, from a few full steps."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hybrid_predict.rules.schedule import schedule
from hybrid_predict.audit.arm import MakeRun, planned_steps
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.run import conditions
from hybrid_predict.audit.store import RunStore
from hybrid_predict.audit.training import try_steps
from hybrid_predict.audit.verdict import counted_seeds
from hybrid_predict.runs.evidence import FEW_SEEDS, HYBRID
from hybrid_predict.runs.runtime import quiet

TRIED_STEPS = 12
"""Full steps of the trial."""

WITHOUT_SKILL = "Without skill, full steps take the place of predicted ones."


@dataclass(frozen=True)
class AuditPlan:
    """What an audit would do.

    Args:
        seeds: Number of paired seeds.
        full_steps: Full steps of one run of each arm, those of the hybrid arm at least: if all its
            predicted steps are made and stand.
        done: Finished runs, which would not be trained again.
        runs: All runs.
        seconds_per_step: Seconds of one full step of plain training.
        seconds: Estimated seconds of plain training still to come, validation left out.
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
        """The plan in a few lines."""
        least = {HYBRID: "at least "}
        steps = ", ".join(
            f"{name} {least.get(name, '')}{count:,}" for name, count in self.full_steps.items()
        )
        return "\n".join(
            (
                f"{self.runs} runs: {len(self.full_steps)} arms, {counted_seeds(self.seeds)}; "
                f"{self.done} done.",
                f"Full steps per run: {steps}.",
                *([self.shortfall] if self.shortfall else []),
                f"About {duration(self.seconds)} of training to come, at "
                f"{pace(self.seconds_per_step)} {WITHOUT_SKILL}",
                *hint(self.seeds),
            )
        )


def plan_audit(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> AuditPlan:
    """Find out what an audit would take, by a few full steps of the full arm.

    Trains in a temporary folder and writes nothing anywhere else.

    Args:
        make_run: As for :func:`audit`; called once.
        config: As for :func:`audit`.
        folder: The audit's folder; runs finished there count as done. None: nothing is done.
        source: As for :func:`audit`.

    Returns:
        The plan.

    Raises:
        ConfigError: As :func:`audit` does.
        UnsupportedSetupError: As :func:`audit` does.
    """
    done = set()
    if folder is not None:
        store = RunStore(Path(folder).expanduser(), conditions(config, source or {}))
        found = store.load(config.controls)
        done = {(arm, seed) for arm, seed in found if arm in config.arms and seed < config.seeds}
    tried = trial(make_run, config)
    total, lengths = tried["total_steps"], tried["lengths"]
    until_skill = tried["until_skill"]
    steps = {name: planned_steps(name, total, lengths, config, until_skill) for name in config.arms}
    left = [
        name for seed in range(config.seeds) for name in config.arms if (name, seed) not in done
    ]
    return AuditPlan(
        seeds=config.seeds,
        full_steps=steps,
        done=len(done),
        runs=len(config.arms) * config.seeds,
        seconds_per_step=tried["seconds_per_step"],
        seconds=tried["seconds_per_step"] * sum(steps[name] for name in left),
        shortfall=schedule(replace(config.hybrid_config(), total_steps=total), until_skill).shortfall,
    )


def trial(make_run: MakeRun, config: AuditConfig) -> dict[str, Any]:
    """What :func:`try_steps` gives after ``TRIED_STEPS`` full steps in a temporary folder."""
    with quiet(), tempfile.TemporaryDirectory() as place:
        return try_steps(make_run, config, TRIED_STEPS, Path(place))


def pace(seconds_per_step: float) -> str:
    """What an estimated time rests on, and what it leaves out."""
    return (
        f"{1e3 * seconds_per_step:.3g} ms per plain full step. Validation, corrected updates, "
        "predicted steps and start-up are not included; on small models they take longer."
    )


def hint(seeds: int) -> list[str]:
    """The line of a plan with too few seeds for a verdict; none if there are enough."""
    said = f"A verdict needs at least {FEW_SEEDS} seeds; fewer only give a hint."
    return [said] if seeds < FEW_SEEDS else []


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
