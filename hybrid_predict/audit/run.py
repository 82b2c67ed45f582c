"""The audit: trains the arms of every seed, one after the other, and judges them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hybrid_predict.audit.arm import AuditArm, MakeRun
from hybrid_predict.audit.config import SHORTENED, AuditConfig
from hybrid_predict.audit.page import audit_page
from hybrid_predict.audit.results import make_results
from hybrid_predict.audit.store import FinishedRun, RunStore, run_name
from hybrid_predict.audit.tracking import log_run, log_verdict, mlflow_logger
from hybrid_predict.audit.training import Meter, Observer, fit_arm
from hybrid_predict.audit.verdict import AuditOutcome, AuditVerdict
from hybrid_predict.runs.evidence import HYBRID
from hybrid_predict.runs.files import replace_text
from hybrid_predict.runs.runtime import locked, preserved, quiet, writable_folder, write_json

_COUNTED = ("corrected_steps", "predicted_steps", "undone_steps")
"""Steps that a ledger counts; 0 without the plug-in."""


class Runs:
    """Gives the runs of an audit or a search, from the store or trained now.

    The observer is called once for every run.
    """

    def __init__(self, make_run: MakeRun, store: RunStore, observer: Observer | None) -> None:
        self.observer = observer or Observer()
        self._make_run = make_run
        self._store = store
        self._reported: set[str] = set()

    def get(self, config: AuditConfig, arm: str, seed: int) -> FinishedRun:
        """Return the finished run of an arm at the configuration's speedup."""
        name = run_name(config, arm, seed)
        if name not in self._reported:
            trained = name not in self._store.runs
            if trained:
                self._train(name, config, arm, seed)
            self.observer.run_finished(self._store.runs[name], trained)
            self._reported.add(name)
        return self._store.runs[name]

    def _train(self, name: str, config: AuditConfig, arm: str, seed: int) -> None:
        scale = config.speedup if arm in SHORTENED else 1.0
        if isinstance(scale, str):  # as many times shorter as the hybrid arm was
            hybrid = self.get(config, HYBRID, seed)
            scale = float(hybrid["total_steps"] / hybrid["full_steps"])
        place = self._store.folder
        logger = None
        if config.mlflow:
            logger = mlflow_logger(place, config.experiment, f"{arm}, seed {seed}")
        built = AuditArm(arm, seed, place / "runs" / name, config, scale, logger)
        meter = Meter(built, config, self._store.check, self.observer)
        with preserved():
            fit_arm(built, self._make_run, meter)
        ledger = built.hybrid.ledger.summary() if built.hybrid else {}
        run = {
            **meter.entry,
            **{key: ledger.get(key, 0) for key in _COUNTED},
            "threads": torch.get_num_threads(),
            "ledger": ledger or None,
        }
        self._store.save(name, run)
        if logger is not None:
            log_run(logger, run)


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
) -> AuditResult:
    """Find out whether full steps are saved at equal quality on a model of your own.

    For every seed four arms are trained: ``full``, your training as it is, over N steps; ``short``,
    the same over N / speedup steps, with ``"auto"`` over as many full steps as ``hybrid`` took;
    ``corrected``, as ``short`` with corrected updates; ``hybrid``, N steps, some of them predicted,
    with corrected updates. Controls follow. Runs that the folder holds are not trained again.
    ``results.json`` is written after every run, ``report.html`` at the end, unless training raises
    an error.

    Args:
        make_run: Called with an :class:`AuditArm` once per arm and seed; returns the Trainer that
            ``arm.trainer(...)`` made, the LightningModule, and the data: a LightningDataModule, a
            pair of training and validation loader, or None. Apart from ``arm.scaled`` and random
            states it must do the same at every call.
        config: What is compared and how it is judged.
        folder: Folder for all files; created if it is missing.
        observer: Is called as runs begin, advance and end.
        source: Plain data that the training depends on too; runs with other data are refused.

    Raises:
        ConfigError: If the runs cannot be audited as they are set up, the folder holds runs of
            another training, or another process audits there.
        UnsupportedSetupError: If the callback does not support them.
        MissingExtraError: If Lightning is not installed.
    """
    place = writable_folder(folder)
    with locked(place), quiet():
        store = RunStore(place, config, source)
        runs = Runs(make_run, store, observer)
        planned = [(arm, seed) for seed in range(config.seeds) for arm in config.arms]

        def written() -> AuditResult:
            finished = store.runs
            names = [run_name(config, *each) for each in planned]
            known = [finished[name] for name in names if name in finished]
            results, verdict = make_results(config, store.depends_on, known)
            write_json(results, place / "results.json")
            return AuditResult(verdict, results, place)

        result: AuditResult | None = None
        with suppress(KeyboardInterrupt):  # the result is partial then
            for each in planned:
                finished = len(store.runs)
                try:
                    runs.get(config, *each)
                finally:  # Ctrl-C may come right after a run
                    if len(store.runs) > finished:
                        result = written()
        result = result or written()
        replace_text(place / "report.html", audit_page(result.results))
        if config.mlflow:
            log_verdict(place, config.experiment, result.verdict)
        return result
