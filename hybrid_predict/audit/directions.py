"""Which of several corrected updates a search goes on with."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any, NamedTuple, final

from hybrid_predict.audit.arm import MakeRun
from hybrid_predict.audit.config import AUTO, AuditConfig
from hybrid_predict.audit.run import ArmRuns
from hybrid_predict.audit.store import PLAIN, RunStore, run_key
from hybrid_predict.config import Speedup
from hybrid_predict.runs.evidence import CORRECTED, FULL, SHORT
from hybrid_predict.runs.runtime import Observer

COMPARED = 3
"""Largest number of seeds with which the updates are compared."""

GetRun = Callable[[str, Speedup, int], Mapping[str, Any]]
"""Returns a finished run from arm, speedup and seed."""


@final
class Direction(NamedTuple):
    """A corrected update, and what runs of corrections alone with it arrived at."""

    name: str
    metric: float | None = None
    """Mean over the compared seeds; None if a run diverged, or nothing was compared."""


def direction_stores(config: AuditConfig, store: RunStore) -> dict[str, RunStore]:
    """Return the store of the runs with each corrected update, by its name.

    ``store`` keeps the runs of plain training, and those with the update of ``config.hybrid``. Runs
    with other updates are kept in folders within.
    """
    stores = {}
    for name, each in config.by_direction().items():
        stores[name] = store
        if each.hybrid_config() != config.hybrid_config():
            digest = hashlib.sha256(json.dumps(each.training()["hybrid"], default=repr).encode())
            short = re.sub(r"[^\w.=-]+", "_", name)[:40]
            stores[name] = store.within(f"{short}-{digest.hexdigest()[:8]}", each)
    return stores


def direction_runs(
    make_run: MakeRun, config: AuditConfig, store: RunStore, observer: Observer
) -> dict[str, GetRun]:
    """Return what gives the runs with each corrected update, by its name."""
    stores, configs = direction_stores(config, store), config.by_direction()
    arms = {
        name: ArmRuns(make_run, each, config.speedups, stores[name], observer)
        for name, each in configs.items()
    }
    first = next(iter(arms.values()))
    return {name: partial(_get, first, own) for name, own in arms.items()}


def _get(first: ArmRuns, own: ArmRuns, arm: str, speedup: Speedup, seed: int) -> Mapping[str, Any]:
    """Return a run; those of plain training are the same for all updates."""
    plain = arm in PLAIN and not (arm == SHORT and speedup == AUTO)
    return (first if plain else own).get(arm, speedup, seed)


def finished_direction(config: AuditConfig, stores: Mapping[str, RunStore]) -> str | None:
    """Return the name of the update that finished runs choose; None if one of them is missing."""

    def run(name: str, arm: str, speedup: Speedup, seed: int) -> Mapping[str, Any]:
        return stores[name].runs[run_key(arm, speedup, seed)]

    try:
        return compare(config, {name: partial(run, name) for name in stores}, Observer())[0].name
    except KeyError:
        return None


def compare(config: AuditConfig, runs: Mapping[str, GetRun], observer: Observer) -> list[Direction]:
    """Train corrections alone with each update, at the speedup that a search tests first.

    Returns:
        The updates, the best first.
    """
    names = list(runs)
    if len(names) == 1:
        return [Direction(names[0])]
    # First a full run, which shows whether the lengths can be audited, and is needed anyway.
    if runs[names[0]](FULL, config.first_tested, 0)["failure"]:
        return [Direction(name) for name in names]
    seeds = min(config.seeds, COMPARED)
    means: dict[str, float | None] = dict.fromkeys(names, 0.0)
    for seed, name in product(range(seeds), names):
        mean = means[name]
        if mean is not None:
            observer.direction_started(name)
            run = runs[name](CORRECTED, config.first_tested, seed)
            means[name] = None if run["failure"] else mean + run["metric"] / seeds
    compared = [Direction(name, mean) for name, mean in means.items()]
    return sorted(compared, key=lambda d: (d.metric is None, config.sign * (d.metric or 0.0)))
