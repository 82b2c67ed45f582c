"""The finished runs of a folder, kept so that an audit or a search continues where it stopped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import torch

from hybrid_predict.audit.config import AUTO, SHORTENED, AuditConfig, shortened, speedup_text
from hybrid_predict.config import Speedup
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import FULL, HYBRID, SHORT
from hybrid_predict.runs.files import read_regular, writing
from hybrid_predict.runs.rows import RUNS, Rows
from hybrid_predict.runs.runtime import finite

RunKey = tuple[str, Speedup | None, int]
"""Arm, speedup and seed of a run; the full arm and controls have no speedup."""

FinishedRun = Mapping[str, Any]
"""Entry of a run in the results file; :func:`hybrid_predict.audit.training.train_arm` makes it."""

PLAIN = (FULL, SHORT)
"""Arms of plain training, which do not depend on the configuration of the plug-in."""

_DIRECTIONS = "directions"  # folder of runs with other corrected updates

RESULTS, SEARCH = "results.json", "search.json"
"""Files that an audit and a search write from the finished runs."""

SCHEMA = 6
"""Version of the fields in these files and of the entries of runs."""

RATES_APART = 0.05
"""Largest difference of the final learning rates of two arms, as shares of their peaks, at which a
schedule counts as shortened; rates within a factor of two, of schedules without an end, do too."""


def run_key(arm: str, speedup: Speedup | None, seed: int) -> RunKey:
    """Return the key of a run; the full arm and controls are the same at every speedup."""
    if speedup is None or arm not in (*SHORTENED, HYBRID):
        return arm, None, seed
    return arm, speedup if speedup == AUTO else float(speedup), seed


class RunStore:
    """Finished runs, as lines of ``runs.jsonl`` in a folder that need not exist yet.

    ``depends_on`` is what they depend on, as plain data: options, versions and ``source``. Runs of
    another training, and a results file without its runs, are refused with a ConfigError. With
    ``plain``, that store keeps the runs of plain training.
    """

    def __init__(
        self,
        folder: Path,
        config: AuditConfig,
        source: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        plain: RunStore | None = None,
    ) -> None:
        self.folder, self._source, self._overwrite = folder, source, overwrite
        self._plain = plain
        versions = {"schema": SCHEMA, "hybrid_predict": version("hybrid-predict"),
                    "torch": torch.__version__, "lightning": version("lightning")}  # fmt: skip
        conditions = {**config.training(), **(source or {}), **versions}
        self.depends_on: dict[str, Any] = _plain(conditions)
        self._rows = Rows(folder / RUNS, _row_key)
        if overwrite:
            self._rows.clear()
            shutil.rmtree(folder / _DIRECTIONS, ignore_errors=True)
            for path in (folder / RESULTS, folder / SEARCH):
                with writing(path):
                    path.unlink(missing_ok=True)
        for row in self._rows.done.values():
            self._check_conditions(row, config)
        for run in self.runs.values():
            self.check(run)
        if not self.runs:
            self._check_results()

    def within(self, name: str, config: AuditConfig) -> RunStore:
        """Return a store in a folder within for another configuration of the plug-in.

        Its runs of plain training are those of this store.
        """
        folder = self.folder / _DIRECTIONS / name
        return RunStore(folder, config, self._source, overwrite=self._overwrite, plain=self)

    @property
    def runs(self) -> dict[RunKey, FinishedRun]:
        """The finished runs by key."""
        shared = {} if self._plain is None else self._plain.runs
        plain = {key: run for key, run in shared.items() if key[0] in PLAIN}
        return {**plain, **{key: row["run"] for key, row in self._rows.done.items()}}

    def key(self, arm: str, speedup: Speedup | None, seed: int) -> RunKey | None:
        """Return the key of a run; None if it needs the hybrid arm of its seed, which is missing.

        With ``"auto"`` a short arm takes as many full steps as that one.
        """
        if speedup == AUTO and arm in SHORTENED:
            hybrid = self.runs.get(run_key(HYBRID, AUTO, seed))
            if hybrid is None:
                return None
            total = hybrid["total_steps"]
            speedup = total / (total - hybrid["predicted_steps"])
        return run_key(arm, speedup, seed)

    def place(self, key: RunKey) -> Path:
        """Return the folder that the Trainer of a run may write to."""
        arm, speedup, seed = key
        name = arm if speedup is None else f"{arm}-{speedup_text(speedup)}"
        return self.folder / "runs" / f"{name}-seed{seed}"

    def save(self, run: FinishedRun) -> None:
        """Add a finished run, after checking it."""
        if self._plain is not None and run["arm"] in PLAIN:
            self._plain.save(run)
            return
        self.check(run)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._rows.add({"depends_on": self.depends_on, "run": run})

    def check(self, run: FinishedRun) -> None:
        """Refuse a run of another training; ``run`` may be what is known before it is trained."""
        for other in self.runs.values():
            if what := _differing(run, other):
                got = f"{other['arm']}, seed {other['seed']}, with other {what}"
                self._refuse("finished runs of this training", got)
            if run["seed"] == other["seed"]:
                _check_seed(run, other)

    def _check_conditions(self, row: Mapping[str, Any], config: AuditConfig) -> None:
        now, before, run = self.depends_on, row["depends_on"], row["run"]
        if other := [n for n in sorted(now.keys() | before.keys()) if now.get(n) != before.get(n)]:
            self._refuse("finished runs of this audit", f"runs with other {', '.join(other)}")
        if _plain(config.controls.get(run["arm"], run["changes"])) != run["changes"]:
            self._refuse("finished runs of this audit", f"{run['arm']} with other changes")

    def _check_results(self) -> None:
        """Refuse to replace results whose runs are missing."""
        path = self.folder / RESULTS
        try:
            if os.path.lexists(path) and json.loads(read_regular(path, "folder"))["runs"]:
                self._refuse("no results of other runs", f"{RESULTS} without its {RUNS}")
        except (ValueError, LookupError, TypeError):
            self._refuse("results that can be read", RESULTS)

    def _refuse(self, expected: str, got: str) -> NoReturn:
        remedy = "Choose another folder, or train its runs again: overwrite=True, --overwrite."
        raise ConfigError(str(self.folder), expected, got, remedy)


def _row_key(row: Mapping[str, Any]) -> RunKey:
    """Return the key of a line's run; raise for a damaged line what :class:`Rows` catches."""
    run = row["run"]
    for name in ("shapes", "total_steps", "lengths", "weights", "changes"):
        run[name]
    if not isinstance(row["depends_on"], dict):
        raise TypeError("depends_on is no mapping")
    speedup = run.get("speedup")  # runs of earlier versions have none, and are refused by schema
    return run_key(str(run["arm"]), speedup, int(run["seed"]))


def _differing(run: FinishedRun, other: FinishedRun) -> str:
    """Return what shows that two runs are of different trainings; empty if nothing does."""
    if other["shapes"] != run["shapes"]:
        return "names or shapes of parameters"
    longer, shorter = sorted((run, other), key=_scale)
    if (scale := _scale(shorter)) == _scale(longer):
        if run["total_steps"] != other["total_steps"]:
            return "number of steps"
        due = longer["lengths"]
    elif _scale(longer) == 1.0:
        due = {name: shortened(length, scale) for name, length in longer["lengths"].items()}
    else:
        return ""
    return "max_steps or max_epochs" if shorter["lengths"] != due else ""


def _scale(run: FinishedRun) -> float:
    """Return the factor by which the run's schedule is shorter than that of the full arm."""
    return float(run["speedup"]) if run["arm"] in SHORTENED else 1.0


def _check_seed(run: FinishedRun, other: FinishedRun) -> None:
    """Check that two arms of one seed start alike, and end at alike learning rates."""
    if run["weights"] != other["weights"]:
        raise ConfigError(
            "make_run",
            "the same initial weights in every arm of a seed",
            f"others in {run['arm']} than in {other['arm']}, seed {run['seed']}",
            "Build the model inside make_run, which is called after the seed is set; if the "
            "training was changed since, choose another folder.",
        )
    arms = {run["arm"]: run, other["arm"]: other}
    if arms.keys() != {FULL, SHORT} or "rates" not in run:
        return
    for full, short in zip(arms[FULL]["rates"], arms[SHORT]["rates"], strict=False):
        low, high = sorted((full, short))
        if high - low > RATES_APART and high > 2 * low:
            raise ConfigError(
                "scaled",
                "a schedule that is shortened in the short arm",
                f"a learning rate that ends at {full:.2g} of its peak in the full arm and at "
                f"{short:.2g} in the short arm",
                "Shorten what the schedule counts: with audit.scaled in a YAML file, with "
                "arm.scaled(...) in make_run.",
            )


def _plain(value: Any) -> Any:
    """Return data from YAML as data for JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else finite(value)
