"""What a search would train at most, from a few full steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from hybrid_predict.audit.arm import MakeRun, planned_steps
from hybrid_predict.audit.bisection import most_tests, tested
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.plan import WITHOUT_SKILL, duration, hint, pace, trial
from hybrid_predict.audit.searching import WAYS
from hybrid_predict.audit.shared_runs import RunKey, SharedRuns
from hybrid_predict.runs.evidence import FULL, SHORT


@dataclass(frozen=True)
class SearchPlan:
    """What a search would do at most.

    Args:
        seeds: Number of paired seeds.
        tests: Most candidates that are tested, over all arms.
        runs: Most runs.
        done: How many runs of its candidates are done; the search may need not all of them.
        left: Most runs that are still to be trained.
        seconds_per_step: Seconds of one full step of plain training.
        seconds: Most seconds of plain training still to come, by estimate, validation left out.
    """

    seeds: int
    tests: int
    runs: int
    done: int
    left: int
    seconds_per_step: float
    seconds: float

    def __str__(self) -> str:
        """The plan in a few lines."""
        return "\n".join(
            (
                f"At most {self.runs} runs, for {self.tests} tests of candidates; {self.done} "
                f"done, at most {self.left} to be trained.",
                f"About {duration(self.seconds)} of training to come at most, at "
                f"{pace(self.seconds_per_step)} {WITHOUT_SKILL}",
                "It is less if candidates are given up early.",
                *hint(self.seeds),
            )
        )


def plan_search(
    make_run: MakeRun,
    config: AuditConfig,
    folder: str | Path | None = None,
    *,
    source: Mapping[str, Any] | None = None,
) -> SearchPlan:
    """Find out what a search would take at most, by a few full steps of the full arm.

    Trains in a temporary folder and writes nothing anywhere else.

    Args:
        make_run: As for :func:`search`; called once.
        config: As for :func:`search`.
        folder: The search's folder; runs finished there count as done. None: nothing is done.
        source: As for :func:`search`.

    Raises:
        ConfigError: As :func:`search` does.
        UnsupportedSetupError: As :func:`search` does.
    """
    done: set[RunKey] = set()
    if folder is not None:
        place = Path(folder).expanduser()
        done = SharedRuns(make_run, config, place, source=source).done & everything(config)
    tried = trial(make_run, config)
    steps = {
        (name, speedup): planned_steps(
            name,
            tried["total_steps"],
            tried["lengths"],
            replace(config, speedup=speedup),
            tried["until_skill"],
        )
        for name, speedup in product((FULL, SHORT, *WAYS), config.speedups)
    }

    def cost(key: RunKey) -> float:
        name, speedup, _ = key
        return 0 if key in done else steps[name, speedup or config.speedups[0]]

    return SearchPlan(
        seeds=config.seeds,
        tests=most_tests(len(config.speedups)) * len(WAYS),
        runs=most_runs(config),
        done=len(done),
        left=round(_most(config, lambda key: key not in done)),
        seconds_per_step=tried["seconds_per_step"],
        seconds=tried["seconds_per_step"] * _most(config, cost),
    )


def most_runs(config: AuditConfig) -> int:
    """Most runs of a search, those that are done included."""
    return round(_most(config, lambda key: 1))


def everything(config: AuditConfig) -> set[RunKey]:
    """All runs that a search could ask for."""
    return set[RunKey]().union(*_ways(config))


def _most(config: AuditConfig, cost: Callable[[RunKey], float]) -> float:
    """The cost of the most expensive way through the candidates."""
    return max(sum(map(cost, way)) for way in _ways(config))


def _ways(config: AuditConfig) -> Iterator[set[RunKey]]:
    """The runs of every way through the candidates, if none is given up."""
    speedups, seeds = config.speedups, range(config.seeds)
    full: set[RunKey] = {(FULL, None, seed) for seed in seeds}
    for borders in product(range(len(speedups) + 1), repeat=len(WAYS)):
        way = set(full)
        for arm, border in zip(WAYS, borders, strict=True):
            for at, name, seed in product(tested(len(speedups), border), (SHORT, arm), seeds):
                way.add((name, speedups[at], seed))
        yield way
