"""Whether runs with ``auto`` that hinted at a larger learning rate were right, as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

import numpy as np

from benchmarks.plan import Row, number
from benchmarks.rates.study import RATES, SHARES, best_rates, nearest, share_text
from benchmarks.table import NONE, markdown
from benchmarks.tasks import TASKS
from hybrid_predict.ledger import LEAST_FACTOR


def factor(row: Row) -> float:
    """Return the factor on the learning rate that a run with ``auto`` has measured."""
    return float(1.0 + row["advance"])


def hints(rows: Iterable[Row]) -> str:
    """Return how often runs hinted, and how often plain training of T steps gained by following.

    Losses of plain training are means over seeds. They are interpolated between the rates of the
    study, linearly over the logarithm of the rate; nothing is extrapolated. Runs at constant rates
    are left out.
    """
    best, lines = best_rates(), []
    kept = [row for row in rows if row["decay"]]
    plain = _plain(kept)
    for share in SHARES:
        runs = [
            row for row in kept
            if (row["arm"], row["setting"]) == ("auto", RATES)
            and row["steps"] == TASKS[row["task"]].steps
            and nearest(row["rate"] / best[row["task"]]) == share
        ]  # fmt: skip
        said = [row for row in runs if factor(row) >= LEAST_FACTOR]
        pairs = [_losses(plain.get(row["task"], {}), row) for row in said]
        known = [(here, there) for here, there in pairs if math.isfinite(here + there)]
        better = f"{sum(there < here for here, there in known)} of {len(known)}"
        factors = [factor(row) for row in said]
        ends = dict.fromkeys(f"{end(factors):.1f}" for end in (min, max)) if said else [NONE]
        lines.append([share_text(share), f"{len(runs)}", f"{len(said)}", " to ".join(ends), better])
    titles = ["rate / best rate", "runs", "hinted", "at factors of", "plain training gained by it"]
    return markdown(titles, [line for line in lines if line[1] != "0"])


def _plain(rows: Iterable[Row]) -> dict[str, dict[float, float]]:
    """Mean losses of plain training of T steps, by task and rate."""
    losses: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        if row["arm"] == "plain" and row["full_steps"] == TASKS[row["task"]].steps:
            losses.setdefault(row["task"], {}).setdefault(row["rate"], []).append(
                number(row["loss"])
            )
    return {
        task: {rate: statistics.fmean(each) for rate, each in sorted(rates.items())}
        for task, rates in losses.items()
    }


def _losses(plain: Mapping[float, float], row: Row) -> tuple[float, float]:
    """Plain losses at a run's rate, and at the rate that it hinted at; nan if not known."""
    rates = [math.log(rate) for rate in plain]
    here, there = math.log(row["rate"]), math.log(row["rate"] * factor(row))
    if not rates or here < rates[0] or there > rates[-1]:
        return math.nan, math.nan
    losses = list(plain.values())
    return float(np.interp(here, rates, losses)), float(np.interp(there, rates, losses))
