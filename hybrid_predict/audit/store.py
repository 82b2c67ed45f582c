"""The store of finished runs, where a stopped audit goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from hybrid_predict.audit.config import AuditConfig, speedup_text
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import FULL, SHORT
from hybrid_predict.runs.runtime import RUNS, Rows, environment, finite

FinishedRun = Mapping[str, Any]
"""Entry of a run in the results file; :class:`hybrid_predict.audit.run.Runs` makes it."""

SCHEMA = 9
"""Version of the fields in the files of audits and searches, and of the entries of runs."""

RATES_APART = 0.05
"""Largest difference of the final learning rates of two arms, as shares of their peaks, at which a
schedule counts as shortened; rates within a factor of two, of schedules without an end, do too."""

_ELSEWHERE = "Choose another folder, or delete this one to train its runs again."


def run_name(config: AuditConfig, arm: str, seed: int) -> str:
    """Return what tells a run from the others of a training, and names its folder.

    Arms that do not depend on the speedup have the same runs at all of them.
    """
    speedup = config.speedup_of(arm)
    return f"{arm}-seed{seed}" if speedup is None else f"{arm}-{speedup_text(speedup)}-seed{seed}"


class RunStore:
    """Finished runs, as lines of ``runs.jsonl`` in a folder that need not exist yet.

    ``depends_on`` is what they depend on besides arm, seed and speedup, as plain data: options,
    versions and ``source``. Runs that depend on anything else are refused with a ConfigError.
    """

    def __init__(
        self, folder: Path, config: AuditConfig, source: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        found = environment()
        packages = {name: found[name] for name in ("hybrid_predict", "torch", "lightning")}
        options = {name: config.to_dict()[name] for name in ("metric", "scaled", "hybrid")}
        self.depends_on = _plain({**options, **(source or {}), **packages, "schema": SCHEMA})
        self._rows: Rows[str] = Rows(folder / RUNS, itemgetter("name"))
        for row in self._rows.done.values():
            run = row["run"]
            changes = f"changes in {run['arm']}"
            chosen = _plain(config.controls.get(run["arm"], run["changes"]))
            now = {**self.depends_on, changes: chosen}
            before = {**row["depends_on"], changes: run["changes"]}
            names = sorted(now.keys() | before.keys())
            if other := [name for name in names if now.get(name) != before.get(name)]:
                got = f"runs with other {', '.join(other)}"
                raise ConfigError(str(folder), "finished runs of this training", got, _ELSEWHERE)

    @property
    def runs(self) -> dict[str, FinishedRun]:
        """The finished runs by name."""
        return {name: row["run"] for name, row in self._rows.done.items()}

    def save(self, name: str, run: FinishedRun) -> None:
        """Add a finished run, after checking it."""
        self.check(run)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._rows.add({"name": name, "depends_on": self.depends_on, "run": run})

    def check(self, run: FinishedRun) -> None:
        """Refuse a run of another training; ``run`` may be what is known before it is trained."""
        for other in self.runs.values():
            paired = run["seed"] == other["seed"]
            same = ["shapes", "lengths", *["weights"] * paired]
            if differing := [name for name in same if other[name] != run[name]]:
                got = f"other {differing[0]} in {run['arm']}, seed {run['seed']}, than in "
                got += f"{other['arm']}, seed {other['seed']}"
                remedy = (
                    "Build the model inside make_run, which is called after the seed is set. If "
                    f"the training was changed since: {_ELSEWHERE}"
                )
                raise ConfigError("make_run", "the same training in every run", got, remedy)
            arms = {run["arm"]: run, other["arm"]: other}
            if paired and arms.keys() == {FULL, SHORT} and "rates" in run:
                _check_rates(arms[FULL]["rates"], arms[SHORT]["rates"])


def _check_rates(full_arm: list[float], short_arm: list[float]) -> None:
    """Check that the full and the short arm of a seed end at alike learning rates."""
    for full, short in zip(full_arm, short_arm, strict=False):
        low, high = sorted((full, short))
        if high - low > RATES_APART and high > 2 * low:
            got = f"a learning rate that ends at {full:.2g} of its peak in the full arm and at "
            got += f"{short:.2g} in the short arm"
            remedy = "Shorten what it counts: audit.scaled in a YAML file, or arm.scaled(...)."
            raise ConfigError("scaled", "a schedule shortened in the short arm", got, remedy)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(finite(value), default=str))
