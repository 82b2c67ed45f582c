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
from hybrid_predict.audit.store import Cell, RunStore, cells
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
    finished: set[Cell] = set()
    if folder is not None:
        finished = set(RunStore(given_path(folder), config, source).runs)
    arm, trial, total = _tried(make_run, config)
    share = 1.0
    if not isinstance(config.speedup, str):
        share = min(shortened(n, config.speedup) / n for n in arm.lengths.values())
    steps = dict.fromkeys(config.arms, total)
    steps.update(dict.fromkeys(SHORTENED, math.ceil(total * share - 1e-9)))
    every = cells(config)
    left = [steps[each.arm] for each in every if each not in finished]
    made = f"{counted_seeds(config.seeds)}; {len(every) - len(left)} done"
    title = f"{len(every)} runs: {len(config.arms)} arms, {made}."
    if search:
        left = [total] * most_runs(config)
        tests = number_of_tests(config)
        title = f"At most {len(left)} runs, for {tests} tests of candidates; fewer if some are "
        title += "finished."
    shown = {name: f"{number:,}" for name, number in steps.items()}
    if config.speedup == AUTO:
        shown |= dict.fromkeys(SHORTENED, "as many as hybrid")
    if trial.plan is not None and trial.plan.predicted:
        shown[HYBRID] = f"{total - trial.plan.predicted:,} to {total:,}"
    listed = ", ".join(f"{name} {number}" for name, number in shown.items())
    cost = trial.plan.words.get("correcting") if trial.plan is not None else None
    why = f"correcting {cost}" if cost else ""
    if trial.plain:
        why = f"it would be plain training: {trial.plain}"
    come = "unknown: the runs are too short to time a full step"
    if trial.seconds is not None:
        plain = trial.seconds[0]
        come = f"at most {duration(sum(left) * plain)}, at {duration(plain)} per plain full step"
    few = f"A verdict needs at least {FEW_SEEDS} seeds; fewer only give a hint."
    lines = [
        title,
        f"Full steps per run at speedup {speedup_text(config.speedup)}: {listed}.",
        *(f"Hybrid arm: {text}." for text in (trial.shortfall, why) if text),
        f"Training to come: {come}; validation, corrected updates, predicted steps and start-up "
        "come on top.",
        few if config.seeds < FEW_SEEDS else "",
    ]
    return "\n".join(filter(None, lines))


def _tried(make_run: MakeRun, config: AuditConfig) -> tuple[AuditArm, Trial, int]:
    """Return the hybrid arm, what a trial of it found, and its number of steps."""
    with preserved(), quiet(), collected([]), tempfile.TemporaryDirectory() as folder:
        arm = AuditArm(HYBRID, 0, Path(folder), config)
        assert arm.hybrid is not None  # this arm has it
        meter = Meter(arm, config.metric)
        trying = LightningTrial(arm.hybrid)
        with suppress(TrialEnd):
            fit_arm(arm, make_run, meter, trying)
    return arm, trying.trial, meter.total_steps
