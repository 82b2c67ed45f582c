"""Which of several corrected updates a search goes on with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, NamedTuple, final

from hybrid_predict.audit.arm import MakeRun
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.run import ArmRuns
from hybrid_predict.audit.store import RunStore
from hybrid_predict.config import Speedup
from hybrid_predict.runs.evidence import CORRECTED
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


def direction_runs(
    make_run: MakeRun, config: AuditConfig, store: RunStore, observer: Observer
) -> dict[str, ArmRuns]:
    """Return what gives the runs with each corrected update, by its name.

    Runs of plain training, and those with the update of ``config.hybrid``, are kept in ``store``,
    the others in folders within.
    """
    runs = {}
    for name, each in config.by_direction().items():
        own = store
        if each.hybrid_config() != config.hybrid_config():
            own = store.within(re.sub(r"[^\w.=-]+", "_", name), each)
        runs[name] = ArmRuns(make_run, each, config.speedups, own, observer)
    return runs


def compare(config: AuditConfig, runs: Mapping[str, GetRun]) -> list[Direction]:
    """Train corrections alone with each update, at the speedup that a search tests first.

    Returns:
        The updates, the best first.
    """
    names = list(runs)
    if len(names) == 1:
        return [Direction(names[0])]
    seeds = min(config.seeds, COMPARED)
    means: dict[str, float | None] = dict.fromkeys(names, 0.0)
    for seed, name in product(range(seeds), names):
        mean = means[name]
        if mean is not None:
            run = runs[name](CORRECTED, config.first_tested, seed)
            means[name] = None if run["failure"] else mean + run["metric"] / seeds
    compared = [Direction(name, mean) for name, mean in means.items()]
    return sorted(compared, key=lambda d: (d.metric is None, config.sign * (d.metric or 0.0)))
