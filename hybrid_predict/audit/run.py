"""The audit: the arms of every seed, one after the other, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from hybrid_predict.audit.arm import MakeRun
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.results import SCHEMA, Finished, make_results
from hybrid_predict.audit.store import RESULTS, RunStore
from hybrid_predict.audit.training import train_arm
from hybrid_predict.audit.verdict import AuditOutcome, AuditVerdict
from hybrid_predict.report.audit import write_audit_page
from hybrid_predict.report.run_log import NAME
from hybrid_predict.runs.evidence import HYBRID
from hybrid_predict.runs.runtime import Observer, locked, quiet, writable_folder, write_json
from hybrid_predict.runs.tracking import Tracking

REPORT = "report.html"

_TRACKED = ("metric", "full_steps", "predicted_steps", "undone_steps", "steps", "seconds")


@dataclass(frozen=True)
class AuditResult(Finished):
    """What an audit found.

    Args:
        verdict: Outcome, headline and explanation.
        results: What ``results.json`` holds.
        folder: Where it is, beside ``report.html``.
    """

    verdict: AuditVerdict
    results: Mapping[str, Any]
    folder: Path

    @property
    def outcome(self) -> AuditOutcome:
        """Verified, no saving, or undecided."""
        return self.verdict.outcome


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
    ``short`` is the same over N / speedup steps. ``corrected`` is as ``short``, with corrected
    updates. ``hybrid`` takes N steps, with corrected updates and predicted steps. The controls of
    the configuration follow. Arms that the folder holds already are not trained again: an audit
    that was stopped goes on, and one with more seeds or controls extends it. ``results.json`` is
    written after every arm, ``report.html`` at the end.

    Args:
        make_run: Called with an :class:`AuditArm` once per arm and seed; returns the Trainer that
            ``arm.trainer(...)`` made, the LightningModule, and the data: a LightningDataModule, a
            pair of training and validation loader, or None. It must do the same at every call but
            for what ``arm.scaled`` and random states decide.
        config: What is compared and how it is judged.
        folder: For everything that is written; made if need be.
        observer: Is told what happens.
        source: Plain data that the training depends on besides the configuration, so that finished
            arms are not taken for those of another training.
        overwrite: Forget what the folder holds, and train all arms anew.

    Returns:
        The verdict and the results; ``partial`` is true after Ctrl-C.

    Raises:
        ConfigError: If the runs cannot be audited as they are set up, the folder holds arms of
            another audit, or another process audits there.
        UnsupportedSetupError: If the callback cannot work with them.
        MissingExtraError: If Lightning, matplotlib or MLflow is not installed.
    """
    place = writable_folder(folder)
    with locked(place), quiet():
        store = RunStore(place, conditions(config, source or {}))
        if overwrite:
            store.clear()
        return _Running(make_run, config, place, observer or Observer(), store).run()


def conditions(config: AuditConfig, source: Mapping[str, Any]) -> dict[str, Any]:
    """What finished arms depend on, as plain data."""
    return {
        **config.training(),
        **source,
        "schema": SCHEMA,
        "hybrid_predict": version("hybrid-predict"),
        "torch": torch.__version__,
        "lightning": version("lightning"),
    }


class _Running:
    """One call of :func:`audit`."""

    def __init__(
        self,
        make_run: MakeRun,
        config: AuditConfig,
        folder: Path,
        observer: Observer,
        store: RunStore,
    ) -> None:
        self._make_run = make_run
        self._config = config
        self._folder = folder
        self._observer = observer
        self._store = store
        self._found = store.load(config.controls)
        self._tracking = self._track() if config.mlflow else None
        self.result: AuditResult | None = None

    def _track(self) -> Tracking:
        params = {k: str(v) for k, v in self._config.to_dict().items()}
        name, key = self._config.experiment, self._store.digest
        return Tracking(self._folder, name, "audit", params, key)

    def run(self) -> AuditResult:
        """Train what is missing, and finish whatever ends it."""
        try:
            self.train()
        except KeyboardInterrupt:
            self.finish("KILLED")
        except BaseException:
            self.finish("FAILED")
            raise
        else:
            self.finish("FINISHED")
        assert self.result is not None
        return self.result

    def train(self) -> None:
        """Train what is missing, seed by seed, so that a slow hour meets all arms alike."""
        for name, seed in self._order():
            if (name, seed) in self._found:
                self._observer.run_found(self._found[name, seed])
                continue
            self._found[name, seed] = self._train(name, seed)
            self._write_results()
            self._observer.run_finished(self._found[name, seed])

    def _order(self) -> list[tuple[str, int]]:
        return [(name, seed) for seed in range(self._config.seeds) for name in self._config.arms]

    def _train(self, name: str, seed: int) -> dict[str, Any]:
        tags = {"arm": name, "seed": str(seed)}
        tracking = self._tracking
        logger = tracking.logger(f"{name}, seed {seed}", tags) if tracking else None
        run = train_arm(
            self._make_run,
            self._config,
            name,
            seed,
            self._store.place(name, seed),
            self._observer,
            logger,
            self._store.check,
        )
        self._store.save(run)
        if tracking is not None and logger is not None:
            tracking.finish_run(logger, {f"audit/{k}": run[k] for k in _TRACKED})
        return run

    def _write_results(self) -> Path:
        runs = [self._found[key] for key in self._order() if key in self._found]
        results, verdict = make_results(self._config, self._store.depends_on, runs)
        self.result = AuditResult(verdict, results, self._folder)
        return write_json(results, self._folder / RESULTS)

    def finish(self, status: str) -> None:
        """Write results and report of what is done, and end the MLflow run."""
        if status == "FAILED" and not self._found:  # a report on nothing would hide the error
            if self._tracking is not None:
                self._tracking.finish({}, {}, [], status)
            return
        with ExitStack() as last:
            files: list[Path] = []
            if self._tracking is not None:
                last.callback(self._end_tracking, files, status)
            files.append(self._write_results())
            assert self.result is not None
            log = self._store.place(HYBRID, 0) / NAME if (HYBRID, 0) in self._found else None
            page = self._folder / REPORT
            files.append(write_audit_page(self.result.results, log, page))

    def _end_tracking(self, files: list[Path], status: str) -> None:
        assert self._tracking is not None
        assert self.result is not None
        results, verdict = self.result.results, self.result.verdict
        # MLflow takes no comma in a name.
        means = {
            f"{arm.replace(',', '')}/metric": summary["metric"]["mean"]
            for arm, summary in results["summary"].items()
        }
        tags = {"outcome": verdict.outcome.value, "conclusion": verdict.headline}
        self._tracking.finish({**means, "saving": verdict.saving}, tags, files, status)
