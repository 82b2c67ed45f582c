"""Finished arms, kept in the output folder so that an audit can go on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from hybrid_predict.audit.config import SHORTENED
from hybrid_predict.errors import ConfigError
from hybrid_predict.report.history import RunHistory
from hybrid_predict.runs.evidence import FULL, SHORT
from hybrid_predict.runs.runtime import finite, write_json

RATES_APART = 0.05
"""Final learning rates, as shares of their peaks, that differ by more and by more than a factor of
two are taken for a schedule that was not shortened. Schedules without an end, such as one over the
square root of the steps, stay within that factor."""

_REMEDY = "Choose another folder, or delete this one."

_CALLED = {
    "shapes": "names or shapes of parameters",
    "total_steps": "number of steps",
    "lengths": "max_steps or max_epochs",
}


class RunStore:
    """Finished arms as ``runs/<arm>-seed<k>.json``.

    Args:
        folder: The output folder; need not exist until something is saved.
        depends_on: What finished arms depend on, as plain data.
    """

    def __init__(self, folder: Path, depends_on: Mapping[str, Any]) -> None:
        self._folder = folder
        self._known: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.depends_on = _plain(depends_on)
        text = json.dumps(self.depends_on, sort_keys=True)
        self.digest = hashlib.sha256(text.encode("utf-8")).hexdigest()

    def load(self) -> dict[tuple[str, int], tuple[dict[str, Any], RunHistory | None]]:
        """The finished arms, by name and seed, each with the hybrid run's history.

        Raises:
            ConfigError: If one of them was trained under other conditions or cannot be read.
        """
        found = {}
        for path in sorted((self._folder / "runs").glob("*-seed*.json")):
            try:
                saved = json.loads(path.read_text(encoding="utf-8"))
                key = (saved["run"]["arm"], saved["run"]["seed"])
                digest, before, state = saved["digest"], saved["depends_on"], saved["history"]
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    str(self._folder), "finished arms that can be read", path.name, _REMEDY
                ) from error
            if digest != self.digest:
                raise ConfigError(
                    str(self._folder),
                    "finished arms of this same audit",
                    f"arms with other {', '.join(self._differences(before))}",
                    _REMEDY,
                )
            history = RunHistory() if state else None
            if history is not None:
                history.load_state_dict(state)
            self.check(saved["run"])
            self._known[key] = saved["run"]
            found[key] = (saved["run"], history)
        return found

    def check(self, run: Mapping[str, Any]) -> None:
        """Make sure that an arm is one of the same training as those that are known.

        Args:
            run: Its entry of the results file; before training, what is known of it.

        Raises:
            ConfigError: If it is not.
        """
        for (arm, seed), other in self._known.items():
            if (arm, seed) == (run["arm"], run["seed"]):
                continue
            same = ["shapes"]
            if (arm in SHORTENED) == (run["arm"] in SHORTENED):
                same += ["total_steps", "lengths"]
            for name in same:
                if other[name] != run[name]:
                    raise ConfigError(
                        str(self._folder),
                        "finished arms of this same training",
                        f"{arm}, seed {seed}, with other {_CALLED[name]}",
                        _REMEDY,
                    )
            if seed == run["seed"]:
                _refuse_other_start(run, other)
                _refuse_unscaled(run, other)

    def save(self, run: Mapping[str, Any], history: RunHistory | None) -> None:
        """Keep a finished arm.

        Raises:
            ConfigError: If it is not of the same training as those that are known.
        """
        self.check(run)
        self._known[run["arm"], run["seed"]] = run
        folder = self._folder / "runs"
        folder.mkdir(exist_ok=True)
        saved = {
            "digest": self.digest,
            "depends_on": self.depends_on,
            "run": run,
            "history": history.state_dict() if history is not None else None,
        }
        write_json(finite(saved), folder / f"{run['arm']}-seed{run['seed']}.json")

    def _differences(self, before: Mapping[str, Any]) -> list[str]:
        names = sorted(self.depends_on.keys() | before.keys())
        return [name for name in names if self.depends_on.get(name) != before.get(name)]


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
