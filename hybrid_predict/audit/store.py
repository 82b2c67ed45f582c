"""Finished arms, kept in the output folder so that an audit can go on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

from hybrid_predict.audit.arm import shortened
from hybrid_predict.audit.config import SHORTENED
from hybrid_predict.errors import ConfigError
from hybrid_predict.runs.evidence import FULL, SHORT
from hybrid_predict.runs.rows import RUNS, Rows
from hybrid_predict.runs.runtime import finite, writing

Key = tuple[str, int]
Run = dict[str, Any]

RESULTS = "results.json"
"""The file that everything is in, made anew from the finished arms."""

RATES_APART = 0.05
"""A schedule counts as not shortened if the final learning rates of two arms, as shares of their
peaks, differ by more than this and by more than a factor of two. Schedules without an end, such as
one over the square root of the steps, stay within that factor."""

_REMEDY = "Choose another folder, or train this one's arms anew: overwrite=True, --overwrite."

_CALLED = {
    "shapes": "names or shapes of parameters",
    "total_steps": "number of steps",
    "lengths": "max_steps or max_epochs",
}


class RunStore:
    """Finished arms as lines of ``runs.jsonl``.

    Args:
        folder: The output folder; need not exist until something is saved.
        depends_on: What finished arms depend on, as plain data.
    """

    def __init__(self, folder: Path, depends_on: Mapping[str, Any]) -> None:
        self._folder = folder
        self._known: dict[Key, Mapping[str, Any]] = {}
        self._rows = Rows(folder / RUNS, _key)
        self.depends_on = _plain(depends_on)
        text = json.dumps(self.depends_on, sort_keys=True)
        self.digest = hashlib.sha256(text.encode("utf-8")).hexdigest()

    def load(self, controls: Mapping[str, Mapping[str, Any]] | None = None) -> dict[Key, Run]:
        """The finished arms, by name and seed.

        Args:
            controls: What each control changes.

        Raises:
            ConfigError: If one of them was trained under other conditions, or there is a results
                file that did not come of them.
        """
        for (arm, _), saved in self._rows.done.items():
            if saved["digest"] != self.digest:
                differences = ", ".join(self._differences(saved["depends_on"]))
                self._refuse("finished arms of this same audit", f"arms with other {differences}")
            changes = (controls or {}).get(arm, saved["run"]["changes"])
            if _plain(changes) != saved["run"]["changes"]:
                self._refuse("finished arms of this same audit", f"{arm} with other changes")
            self.check(saved["run"])
            self._known[_key(saved)] = saved["run"]
        if not self._rows.done:
            self._refuse_other_results()
        return {key: saved["run"] for key, saved in self._rows.done.items()}

    def place(self, name: str, seed: int) -> Path:
        """Where the Trainer of an arm may write."""
        return self._folder / "runs" / f"{name}-seed{seed}"

    def clear(self) -> None:
        """Forget all finished arms, and what was made of them.

        Raises:
            ConfigError: If the system refuses.
        """
        self._rows.clear()
        with writing(self._folder / RESULTS):
            (self._folder / RESULTS).unlink(missing_ok=True)

    def check(self, run: Mapping[str, Any]) -> None:
        """Make sure that an arm belongs to the same training as the known ones.

        Args:
            run: Its entry of the results file; before training, what is known of it.

        Raises:
            ConfigError: If it does not.
        """
        for (arm, seed), other in self._known.items():
            if (arm, seed) == (run["arm"], run["seed"]):
                continue
            same = ["shapes"]
            if (arm in SHORTENED) == (run["arm"] in SHORTENED):
                same += ["total_steps", "lengths"]
            for name in same:
                if other[name] != run[name]:
                    found = f"{arm}, seed {seed}, with other {_CALLED[name]}"
                    self._refuse("finished arms of this same training", found)
            if seed == run["seed"]:
                _refuse_other_start(run, other)
                _refuse_unscaled(run, other)

    def check_length(self, run: Mapping[str, Any], full: Mapping[str, Any], speedup: float) -> None:
        """Make sure that an arm is as long as it should be beside the full arm.

        Args:
            run: Its entry of the results file; before training, what is known of it.
            full: That of the full arm.
            speedup: Of the arm.

        Raises:
            ConfigError: If it is not.
        """
        short = run["arm"] in SHORTENED
        due = {n: shortened(x, speedup) if short else x for n, x in full["lengths"].items()}
        if run["lengths"] != due:
            found = f"{run['arm']}, seed {run['seed']}, with other {_CALLED['lengths']}"
            self._refuse("finished arms of this same training", found)

    def save(self, run: Mapping[str, Any]) -> None:
        """Keep a finished arm.

        Raises:
            ConfigError: If it belongs to another training than the known ones.
        """
        self.check(run)
        self._known[run["arm"], run["seed"]] = run
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rows.add({"digest": self.digest, "depends_on": self.depends_on, "run": run})

    def _differences(self, before: Mapping[str, Any]) -> list[str]:
        names = sorted(self.depends_on.keys() | before.keys())
        return [name for name in names if self.depends_on.get(name) != before.get(name)]

    def _refuse(self, expected: str, found: str) -> NoReturn:
        raise ConfigError(str(self._folder), expected, found, _REMEDY)

    def _refuse_other_results(self) -> None:
        """Raise if a results file holds what its audit would not write again."""
        path = self._folder / RESULTS
        try:
            if path.exists() and json.loads(path.read_text("utf-8"))["runs"]:
                self._refuse("no results of other runs", f"{RESULTS} without its {RUNS}")
        except (ValueError, LookupError, TypeError):
            self._refuse("results that can be read", RESULTS)


def _key(saved: Mapping[str, Any]) -> Key:
    """The arm and the seed of a line.

    Raises:
        LookupError: If it lacks something.
        TypeError: If it is no mapping.
        ValueError: If it does not depend on anything.
    """
    run = saved["run"]
    if not (isinstance(saved["depends_on"], dict) and saved["digest"]):
        raise ValueError("no conditions")
    for name in ("shapes", "total_steps", "lengths", "weights", "changes"):
        run[name]
    return str(run["arm"]), int(run["seed"])


def _refuse_other_start(run: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise if two arms of one seed start from other weights."""
    if run["weights"] != other["weights"]:
        raise ConfigError(
            "make_run",
            "the same initial weights in every arm of a seed",
            f"others in {run['arm']} than in {other['arm']}, seed {run['seed']}",
            "Build the model inside make_run, which is called after the seed is set; if the "
            "training was changed since, choose another folder.",
        )


def _refuse_unscaled(run: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise if the schedule ends elsewhere in the short arm than in the full arm."""
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
                "Shorten what the schedule counts: by audit.scaled in a YAML file, by "
                "arm.scaled(...) in make_run.",
            )


def _plain(value: Any) -> Any:
    """What YAML can hold as what JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, date):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else finite(value)
