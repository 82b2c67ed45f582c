"""The audit: trains the arms of every seed, one after the other, and judges them."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import MakeRun
from hybrid_predict.audit.config import AUTO, SHORTENED, AuditConfig
from hybrid_predict.audit.results import make_results
from hybrid_predict.audit.store import RESULTS, Cell, FinishedRun, RunStore, cell, cells
from hybrid_predict.audit.training import short_steps, train_arm
from hybrid_predict.audit.verdict import AuditOutcome, AuditVerdict
from hybrid_predict.config import Speedup
from hybrid_predict.integrations.loggers import NOTE
from hybrid_predict.report import slow_run
from hybrid_predict.report.pages import audit_page, plain_finding
from hybrid_predict.report.run_log import NAME
from hybrid_predict.runs.evidence import FULL, HYBRID
from hybrid_predict.runs.files import replace_text
from hybrid_predict.runs.runtime import Observer, locked, quiet, writable_folder, write_json
from hybrid_predict.runs.tracking import Tracking

logger = logging.getLogger(__name__)

_TRACKED = ("metric", "full_steps", "seconds")

_NO_PARAMETERS = ("speedups", "directions", "experiment", "mlflow")
"""Options that change nothing in the runs of an audit."""


class Runs:
    """Gives the runs of an audit or a search, from the store or trained now.

    ``speedups`` are all that may be asked for. The observer is called once for every run.
    """

    def __init__(
        self,
        make_run: MakeRun,
        store: RunStore,
        speedups: Sequence[Speedup],
        observer: Observer,
        tracking: Tracking | None = None,
    ) -> None:
        self._make_run = make_run
        self._store = store
        self._speedups = speedups
        self._observer = observer
        self._tracking = tracking
        self._reported: set[Cell] = set()
        self._told: set[str] = set()

    def get(self, config: AuditConfig, arm: str, seed: int) -> FinishedRun:
        """Return the finished run of an arm at the configuration's speedup."""
        asked = cell(config, arm, seed)
        if asked not in self._reported:
            known = asked in self._store.runs
            if known:
                self._check(self._store.runs[asked])
            else:
                self._train(config, asked)
            self._reported.add(asked)
            report = self._observer.run_found if known else self._observer.run_finished
            report(self._store.runs[asked])
        return self._store.runs[asked]

    def _train(self, config: AuditConfig, asked: Cell) -> None:
        scale = None
        if asked.speedup == AUTO and asked.arm in SHORTENED:
            hybrid = self.get(config, HYBRID, asked.seed)
            scale = hybrid["total_steps"] / (hybrid["total_steps"] - hybrid["predicted_steps"])
        tracking = self._tracking
        title = f"{asked.arm}, seed {asked.seed}"
        tags = {"arm": asked.arm, "seed": str(asked.seed)}
        with nullcontext() if tracking is None else tracking.run(title, tags) as tracked:

            def begun(run: FinishedRun) -> None:
                self._check(run)
                if tracked is not None:
                    tracked.log_hyperparams(_parameters(run))

            place = self._store.place(asked)
            run = train_arm(
                self._make_run, config, asked, place, self._observer, tracked, begun, scale
            )
        self._store.save(run)
        if tracking is not None:
            tracking.log_metrics({f"audit/{name}": run[name] for name in _TRACKED}, tracked)

    def _check(self, run: FinishedRun) -> None:
        """Check a run before anything is trained that depends on it."""
        self._store.check(run)
        for text in run["left_out"]:
            if text not in self._told:
                self._told.add(text)
                logger.warning("%s", text)
        if run["arm"] == FULL:
            for speedup in self._speedups:
                short_steps(run["total_steps"], run["lengths"], speedup)


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Args:
        verdict: Outcome, headline and explanation.
        results: Content of ``results.json``.
        folder: Folder of ``results.json`` and ``report.html``.
    """

    verdict: AuditVerdict
    results: Mapping[str, Any]
    folder: Path

    @property
    def outcome(self) -> AuditOutcome:
        """Verified, no saving, or undecided."""
        return self.verdict.outcome

    @property
    def partial(self) -> bool:
        """Whether runs are missing, because the user interrupted the audit."""
        return bool(self.results["partial"])


def audit(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path,
    *,
    observer: Observer | None = None,
    source: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> AuditResult:
    """Find out whether full steps are saved at equal quality on a model of your own.

    For every seed four arms are trained. ``full`` is your training as it is, over N steps.
    ``short`` is the same over N / speedup steps; with ``"auto"`` over as many full steps as
    ``hybrid`` took. ``corrected`` is as ``short``, with corrected updates. ``hybrid`` takes N
    steps, with corrected updates and predicted steps. The controls of the configuration follow.
    Runs that the folder holds are not trained again: an audit that was
    stopped continues, and one with more seeds, controls or another speedup extends it.
    ``results.json`` is written after every run, ``report.html`` at the end.

    Args:
        make_run: Called with an :class:`AuditArm` once per arm and seed; returns the Trainer that
            ``arm.trainer(...)`` made, the LightningModule, and the data: a LightningDataModule, a
            pair of training and validation loader, or None. Apart from ``arm.scaled`` and random
            states it must do the same at every call.
        config: What is compared and how it is judged.
        folder: Folder for all files; created if it is missing.
        observer: Is called as runs begin, advance and end.
        source: Plain data that the training depends on besides the configuration. Finished runs
            with other data are refused.
        overwrite: Whether to delete what the folder holds, and train all runs again.

    Returns:
        The verdict and the results; ``partial`` is true after Ctrl-C.

    Raises:
        ConfigError: If the runs cannot be audited as they are set up, the folder holds runs of
            another training, or another process audits there.
        UnsupportedSetupError: If the callback does not support them.
        MissingExtraError: If Lightning, matplotlib or MLflow is not installed.
    """
    place = writable_folder(folder)
    status = "FAILED"
    with locked(place), quiet(slow_run.__name__):  # arms are timed
        store = RunStore(place, config, source, overwrite=overwrite)
        tracking = _tracking(store, config) if config.mlflow else None
        runs = Runs(make_run, store, (config.speedup,), observer or Observer(), tracking)
        try:
            for each in cells(config, config.arms):
                runs.get(config, each.arm, each.seed)
                write_json(_results(store, config).results, place / RESULTS)
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
        finally:
            result = _finish(store, config, tracking, status)
        return result


def _results(store: RunStore, config: AuditConfig) -> AuditResult:
    """Judge the finished runs of an audit."""
    done = store.runs
    runs = [done[each] for each in cells(config, config.arms) if each in done]
    results, verdict = make_results(config, store.depends_on, runs)
    return AuditResult(verdict, results, store.folder)


def _finish(
    store: RunStore, config: AuditConfig, tracking: Tracking | None, status: str
) -> AuditResult:
    """Write results and report of the finished runs, and end the MLflow run."""
    result = _results(store, config)
    results = result.results
    files: list[Path] = []
    try:
        if results["runs"] or status != "FAILED":  # an empty report would hide the error
            first = cell(config, HYBRID, 0)
            log = store.place(first) / NAME if first in store.runs else None
            files.append(write_json(results, store.folder / RESULTS))
            files.append(replace_text(store.folder / "report.html", audit_page(results, log)))
    finally:
        if tracking is not None:
            metrics = {
                f"metric/{arm.replace(',', '')}": summary["metric"]["mean"]  # MLflow: no comma
                for arm, summary in results["summary"].items()
            }
            tracking.log_metrics({**metrics, "saving": result.verdict.saving})
            verdict = result.verdict
            note = f"**{plain_finding(results)}**\n\nVerdict: {verdict.headline}.\n\n{verdict.text}"
            tags = {"outcome": verdict.outcome.value, "conclusion": verdict.headline, NOTE: note}
            tracking.finish(tags, files, status)
    return result


def _parameters(run: FinishedRun) -> dict[str, Any]:
    """Return what distinguishes a run from the others, known before it is trained, by name.

    The names cannot be those of the model's own hyperparameters, in the same MLflow run.
    """
    names = ("arm", "seed", "speedup", "total_steps")
    chosen = {name: run[name] for name in names if run[name] is not None}
    return {f"audit/{name}": value for name, value in {**chosen, **run["changes"]}.items()}


def _tracking(store: RunStore, config: AuditConfig) -> Tracking:
    """Continue the parent run of this audit in MLflow, or start it."""
    chosen = {k: v for k, v in config.to_dict().items() if k not in _NO_PARAMETERS}
    params = {name: str(value) for name, value in chosen.items() if value not in (None, {}, [])}
    conditions = json.dumps([store.depends_on, config.speedup, config.update], sort_keys=True)
    key = hashlib.sha256(conditions.encode()).hexdigest()
    return Tracking(store.folder, config.experiment, "audit", params, key)
