"""Runs at several speedups, each trained once; those of the full arm serve all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import MakeRun, short_steps
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.run import conditions
from hybrid_predict.audit.store import Run, RunStore
from hybrid_predict.audit.training import train_arm
from hybrid_predict.runs.evidence import FULL
from hybrid_predict.runs.runtime import Observer

_PREFIX = "speedup-"

RunKey = tuple[str, float | None, int]
"""Name of an arm, its speedup and its seed; the full arm has no speedup."""


class SharedRuns:
    """The runs of a search, kept in one folder of an audit for each speedup.

    Args:
        make_run: Builds Trainer, model and data.
        config: Its ``speedups`` are those that are asked for.
        folder: For everything that is written; need not exist before something is trained.
        observer: Is told of every run once.
        source: What the training depends on besides the configuration.
        overwrite: Forget what the folder holds.

    Raises:
        ConfigError: If the folder holds runs of another training, or epochs cannot be shortened.
    """

    def __init__(
        self,
        make_run: MakeRun,
        config: AuditConfig,
        folder: Path,
        *,
        observer: Observer | None = None,
        source: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self._make_run, self._config = make_run, config
        self._observer = observer or Observer()
        self._told: set[RunKey] = set()
        # Folders of speedups that are no candidates any more hold full runs too.
        self._stores = {
            speedup: RunStore(
                folder / f"{_PREFIX}{float(speedup)!r}".removesuffix(".0"),
                conditions(replace(config, speedup=speedup), source or {}),
            )
            for speedup in sorted({*config.speedups, *_speedups(folder)})
        }
        if overwrite:
            for store in self._stores.values():
                store.clear()
        self._found = {speedup: store.load() for speedup, store in self._stores.items()}
        for full in self._full().values():
            self._check_lengths(full)
        for speedup, runs in self._found.items():
            for run in runs.values():
                self._check_length(run, speedup)

    @property
    def done(self) -> set[RunKey]:
        """The runs that are known."""
        return {
            _key(name, speedup, seed)
            for speedup, runs in self._found.items()
            for name, seed in runs
        }

    @property
    def lengths(self) -> Mapping[str, int] | None:
        """``max_steps`` and ``max_epochs`` of the full arm, as far as given; None until known."""
        return next((run["lengths"] for run in self._full().values()), None)

    def run(self, name: str, speedup: float, seed: int) -> Run:
        """A run's entry of the results file, trained now if need be.

        Args:
            name: The arm.
            speedup: One of the configuration's.
            seed: The seed.

        Raises:
            ConfigError: If the run does not belong to those that are known.
            UnsupportedSetupError: If the callback cannot work with it.
            KeyboardInterrupt: If the user ended it.
        """
        found, key = self._found[speedup], _key(name, speedup, seed)
        if key not in self.done:
            self._told.add(key)
            found[name, seed] = self._train(name, speedup, seed)
            self._observer.run_finished(found[name, seed])
        elif (name, seed) not in found:
            found[name, seed] = self._full()[seed]
            self._stores[speedup].save(found[name, seed])
        if key not in self._told:
            self._told.add(key)
            self._observer.run_found(found[name, seed])
        return found[name, seed]

    def _train(self, name: str, speedup: float, seed: int) -> Run:
        store = self._stores[speedup]

        def check(start: Mapping[str, Any]) -> None:
            store.check(start)
            self._check_length(start, speedup)
            if name == FULL:
                self._check_lengths(start)

        config, place = replace(self._config, speedup=speedup), store.place(name, seed)
        run = train_arm(self._make_run, config, name, seed, place, self._observer, check=check)
        store.save(run)
        return run

    def _full(self) -> dict[int, Run]:
        """The known runs of the full arm by seed."""
        return {
            seed: run
            for runs in self._found.values()
            for (name, seed), run in runs.items()
            if name == FULL
        }

    def _check_length(self, run: Mapping[str, Any], speedup: float) -> None:
        """Refuse a run of another length than the known runs of the full arm ask for.

        Raises:
            ConfigError: If it has another.
        """
        for full in self._full().values():
            self._stores[speedup].check_length(run, full, speedup)

    def _check_lengths(self, full: Mapping[str, Any]) -> None:
        """Refuse a candidate that cannot be shortened before anything is trained for another.

        Raises:
            ConfigError: If there is one.
        """
        for speedup in self._config.speedups:
            short_steps(full["total_steps"], full["lengths"], speedup)


def _key(name: str, speedup: float, seed: int) -> RunKey:
    return name, None if name == FULL else speedup, seed


def _speedups(folder: Path) -> set[float]:
    """The speedups that a search's folder has folders of."""
    found = set()
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(ValueError):
            found.add(float(path.name.removeprefix(_PREFIX)))
    return {speedup for speedup in found if 1 < speedup < math.inf}
