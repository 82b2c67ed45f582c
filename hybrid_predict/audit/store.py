"""The runs of an audit as cells, and the store of finished ones, where a stopped audit goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from hybrid_predict.audit.config import AUTO, SHORTENED, AuditConfig, speedup_text
from hybrid_predict.config import HybridConfig, Speedup
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import CORRECTED, FULL, HYBRID, SHORT
from hybrid_predict.runs.files import writing
from hybrid_predict.runs.rows import RUNS, Rows
from hybrid_predict.runs.runtime import finite

FinishedRun = Mapping[str, Any]
"""Entry of a run in the results file; :func:`hybrid_predict.audit.training.train_arm` makes it."""

RESULTS = "results.json"
SEARCH = "search.json"
"""Files that an audit and a search write from the finished runs."""

SCHEMA = 7
"""Version of the fields in these files and of the entries of runs."""

RATES_APART = 0.05
"""Largest difference of the final learning rates of two arms, as shares of their peaks, at which a
schedule counts as shortened; rates within a factor of two, of schedules without an end, do too."""

_SAME = {
    "shapes": "names or shapes of parameters",
    "total_steps": "number of steps",
    "lengths": "max_steps or max_epochs",
}
"""What is the same in all runs of a training, and what to call it."""


class Cell(NamedTuple):
    """What tells a run from the others of a training.

    ``speedup`` is None for the full arm and controls, ``update`` is empty for arms that correct
    nothing. With ``"auto"`` a short arm takes as many full steps as the hybrid arm of its seed.
    """

    arm: str
    speedup: Speedup | None
    seed: int
    update: str


def cell(config: AuditConfig, arm: str, seed: int) -> Cell:
    """Return the cell of an arm at the configuration's speedup and with its corrected update."""
    speedup: Speedup | None = None
    if arm in (*SHORTENED, HYBRID):
        speedup = AUTO if isinstance(config.speedup, str) else float(config.speedup)
    return Cell(arm, speedup, seed, config.update if arm in (CORRECTED, HYBRID) else "")


def cells(config: AuditConfig, arms: Sequence[str]) -> list[Cell]:
    """Return the cells of some arms, all of a seed together, so that they meet the same load."""
    first = [cell(config, arm, 0) for arm in arms]
    return [each._replace(seed=seed) for seed, each in product(range(config.seeds), first)]


class RunStore:
    """Finished runs, as lines of ``runs.jsonl`` in a folder that need not exist yet.

    ``depends_on`` is what they depend on besides their cells, as plain data: options, versions and
    ``source``. Runs of another training are refused with a ConfigError.
    """

    def __init__(
        self,
        folder: Path,
        config: AuditConfig,
        source: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        self.folder = folder
        versions = {
            "schema": SCHEMA,
            "hybrid_predict": version("hybrid-predict"),
            "torch": torch.__version__,
            "lightning": version("lightning"),
        }
        self.depends_on = _plain({**config.training(), **(source or {}), **versions})
        self._rows = Rows(folder / RUNS, _row_cell)
        if overwrite:
            self._rows.clear()
            for path in (folder / RESULTS, folder / SEARCH):
                with writing(path):
                    path.unlink(missing_ok=True)
        for row in self._rows.done.values():
            self._check_conditions(row, config)
        for run in self.runs.values():
            self.check(run)

    @property
    def runs(self) -> dict[Cell, FinishedRun]:
        """The finished runs by cell."""
        return {cell: row["run"] for cell, row in self._rows.done.items()}

    def place(self, cell: Cell) -> Path:
        """Return the folder that the Trainer of a run may write to."""
        words = [cell.arm]
        if cell.speedup is not None:
            words.append(speedup_text(cell.speedup))
        if cell.arm in (CORRECTED, HYBRID) and cell.update != HybridConfig().updates["hidden"]:
            words.append(sha256(cell.update.encode()).hexdigest()[:8])
        return self.folder / "runs" / "-".join([*words, f"seed{cell.seed}"])

    def save(self, run: FinishedRun) -> None:
        """Add a finished run, after checking it."""
        self.check(run)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._rows.add({"depends_on": self.depends_on, "run": run})

    def check(self, run: FinishedRun) -> None:
        """Refuse a run of another training; ``run`` may be what is known before it is trained."""
        for other in self.runs.values():
            for name, what in _SAME.items():
                comparable = name != "total_steps" or other["scale"] == run["scale"]
                if comparable and other[name] != run[name]:
                    got = f"{other['arm']}, seed {other['seed']}, with other {what}"
                    self._refuse("finished runs of this training", got)
            if run["seed"] == other["seed"]:
                _check_seed(run, other)

    def _check_conditions(self, row: Mapping[str, Any], config: AuditConfig) -> None:
        now = self.depends_on
        before = row["depends_on"]
        run = row["run"]
        if before.get("schema") != SCHEMA:
            expected = f"finished runs that this version wrote (schema {SCHEMA})"
            self._refuse(expected, f"runs of another version (schema {before.get('schema')})")
        if other := [n for n in sorted(now.keys() | before.keys()) if now.get(n) != before.get(n)]:
            self._refuse("finished runs of this audit", f"runs with other {', '.join(other)}")
        if _plain(config.controls.get(run["arm"], run["changes"])) != run["changes"]:
            self._refuse("finished runs of this audit", f"{run['arm']} with other changes")

    def _refuse(self, expected: str, got: str) -> NoReturn:
        remedy = "Choose another folder, or train its runs again: overwrite=True, --overwrite."
        raise ConfigError(str(self.folder), expected, got, remedy)


def _row_cell(row: Mapping[str, Any]) -> Cell:
    """Return the cell of a line's run; raise for a damaged line what :class:`Rows` catches."""
    run = row["run"]
    for name in (*_SAME, "weights", "changes"):
        run[name]
    row["depends_on"].keys()
    # Runs of earlier versions lack some names; they are refused by their schema.
    return Cell(str(run["arm"]), run.get("speedup"), int(run["seed"]), run.get("update", ""))


def _check_seed(run: FinishedRun, other: FinishedRun) -> None:
    """Check that two arms of one seed start alike, and end at alike learning rates."""
    if run["weights"] != other["weights"]:
        expected = "the same initial weights in every arm of a seed"
        got = f"others in {run['arm']} than in {other['arm']}, seed {run['seed']}"
        remedy = (
            "Build the model inside make_run, which is called after the seed is set; if the "
            "training was changed since, choose another folder."
        )
        raise ConfigError("make_run", expected, got, remedy)
    arms = {run["arm"]: run, other["arm"]: other}
    if arms.keys() != {FULL, SHORT} or "rates" not in run:
        return
    for full, short in zip(arms[FULL]["rates"], arms[SHORT]["rates"], strict=False):
        low, high = sorted((full, short))
        if high - low > RATES_APART and high > 2 * low:
            got = f"a learning rate that ends at {full:.2g} of its peak in the full arm and at "
            got += f"{short:.2g} in the short arm"
            remedy = (
                "Shorten what the schedule counts: with audit.scaled in a YAML file, with "
                "arm.scaled(...) in make_run."
            )
            expected = "a schedule that is shortened in the short arm"
            raise ConfigError("scaled", expected, got, remedy)


def _plain(value: Any) -> Any:
    """Return data from YAML as data for JSON."""
    return json.loads(json.dumps(finite(value), default=str))
