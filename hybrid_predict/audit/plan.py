"""What an audit or a search would train, and for how long, from a few full steps."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import AUTO, SHORTENED, AuditConfig, shortened, speedup_text
from hybrid_predict.audit.search import most_runs, number_of_tests
from hybrid_predict.audit.store import RunStore, run_name
from hybrid_predict.audit.training import LightningTrial, Meter, fit_arm
from hybrid_predict.audit.verdict import counted_seeds
from hybrid_predict.ledger import duration
from hybrid_predict.runs.evidence import FEW_SEEDS, HYBRID
from hybrid_predict.runs.files import given_path
from hybrid_predict.runs.runtime import collected, preserved, quiet
from hybrid_predict.runs.trial import Trial, TrialEnd


def plan_audit(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
    search: bool = False,
) -> str:
    """Return in a few lines what an audit would train, and for how long, from a few full steps.

    Calls ``make_run`` once, trains in a temporary folder and writes nothing anywhere else. Finished
    runs in ``folder`` count as done. With ``search`` the number of runs, and the seconds, are upper
    bounds of those of a search: as if nothing were finished, and every run as long as a full arm.
    Other arguments, and errors, are those of :func:`audit`.
    """
    done = {} if folder is None else RunStore(given_path(folder), config, source).runs
    arm, trial, total = _tried(make_run, config)
    steps = dict.fromkeys(config.arms, total)
    if not isinstance(config.speedup, str):
        share = min(shortened(n, config.speedup) / n for n in arm.lengths.values())
        steps |= dict.fromkeys(SHORTENED, math.ceil(total * share - 1e-9))
    shown = {name: f"{number:,}" for name, number in steps.items()}
    if config.speedup == AUTO:
        shown |= dict.fromkeys(SHORTENED, "as many as hybrid")
    if trial.plan is not None and trial.plan.predicted:
        shown[HYBRID] = f"{total - trial.plan.predicted:,} to {total:,}"
    planned = [(name, seed) for seed in range(config.seeds) for name in config.arms]
    left = [steps[name] for name, seed in planned if run_name(config, name, seed) not in done]
    title = (
        f"{len(planned)} runs: {len(steps)} arms, {counted_seeds(config.seeds)}; "
        f"{len(planned) - len(left)} done."
    )
    if search:
        left = [total] * most_runs(config)
        tests = f"{number_of_tests(config)} tests of candidates"
        title = f"At most {len(left)} runs, for {tests}; fewer if some are finished."
    come = "unknown: the runs are too short to time a full step"
    if trial.seconds is not None:
        plain = trial.seconds[0]
        come = f"at most {duration(sum(left) * plain)}, at {duration(plain)} per plain full step"
    listed = ", ".join(f"{name} {number}" for name, number in shown.items())
    lines = [title, f"Full steps per run at speedup {speedup_text(config.speedup)}: {listed}."]
    if trial.shortfall:
        lines.append(f"Hybrid arm: {trial.shortfall}.")
    if trial.plain:
        lines.append(f"Hybrid arm: it would be plain training: {trial.plain}.")
    lines.append(
        f"Training to come: {come}; validation, corrected updates, predicted steps and start-up "
        "come on top."
    )
    if config.seeds < FEW_SEEDS:
        lines.append(f"A verdict needs at least {FEW_SEEDS} seeds; fewer only give a hint.")
    return "\n".join(lines)


def _tried(make_run: MakeRun, config: AuditConfig) -> tuple[AuditArm, Trial, int]:
    """Return the hybrid arm, what a trial of it found, and its number of steps."""
    with preserved(), quiet(), collected([]), tempfile.TemporaryDirectory() as folder:
        arm = AuditArm(HYBRID, 0, Path(folder), config)
        assert arm.hybrid is not None  # this arm has it
        meter = Meter(arm, config)
        trying = LightningTrial(arm.hybrid)
        with suppress(TrialEnd):
            fit_arm(arm, make_run, meter, trying)
    return arm, trying.trial, int(meter.entry["total_steps"])
