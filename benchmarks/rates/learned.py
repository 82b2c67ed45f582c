"""Rules for the advance, learned from the signals of kept advances and tested on other tasks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

import numpy as np

from benchmarks.plan import Row, number
from benchmarks.rates.gains import at_shares, beside
from benchmarks.rates.signals import ADVANCES
from benchmarks.rates.study import RATES, STEADY
from benchmarks.table import markdown
from hybrid_predict.rules.pace import FIRST_ADVANCE, thresholds

SIGNALS: Mapping[str, Callable[[Row], float]] = {
    "skill": lambda row: float(row["skill"]),
    "fitted length": lambda row: float(row["fitted"]),
    "persistence": lambda row: float(row["persistence"] - 2.0 * row["error"]),
    "worth": lambda row: float(row["worth"]),
}
"""What windows measure, by name; persistence less two of its standard deviations."""

MODELS = (
    ("skill",), ("fitted length",), ("persistence",), ("worth",), ("skill", "persistence"),
    ("persistence", "worth"), tuple(SIGNALS),
)  # fmt: skip

SMALL = 0.2
Place = tuple[str, float, str]
"""Task, share of the best rate, and setting."""

Gains = dict[Place, dict[float, tuple[Row, float]]]
"""Run and gain beside corrected updates by advance, of each place."""

Decide = Callable[[Row], bool]
"""Whether the advance of a run is to be doubled, or to begin with .5."""


def gains(signals: Iterable[Row], rows: Iterable[Row]) -> Gains:
    """Return what every run gains beside corrected updates alone at its rate."""
    kept, found = list(rows), Gains()
    curves = {setting: at_shares(kept, setting) for setting in (RATES, STEADY)}
    for row in signals:
        curve = curves[row["setting"]].get((row["task"], row["share"], "corrected"), [])
        gain = beside(curve, number(row["loss"]), row["full_steps"]).value
        made = found.setdefault((row["task"], row["share"], row["setting"]), {})
        made[row["advance"]] = row, gain if row["predicted_steps"] else 1.0
    return {key: made for key, made in found.items() if len(made) == len(ADVANCES)}


def climbed(made: Mapping[float, tuple[Row, float]], decide: Decide) -> float:
    """Return the gain of the advance at which a decision stops to double it."""
    for advance in ADVANCES[:-1]:
        row, gain = made[advance]
        if not decide(row):
            return gain
    return made[ADVANCES[-1]][1]


def formula(row: Row) -> bool:
    """Decide as :func:`hybrid_predict.rules.pace.follow` does, from signals of the whole run."""
    needed = thresholds(max(2.0 * row["advance"], FIRST_ADVANCE))
    return bool(SIGNALS["persistence"](row) > needed.rising and row["worth"] >= needed.worth)


def learned(known: Gains, names: Iterable[str]) -> Decide:
    """Return the decision of a logistic regression whose examples weigh what they gain or lose."""
    from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
    from sklearn.pipeline import make_pipeline  # type: ignore[import-untyped]
    from sklearn.preprocessing import StandardScaler  # type: ignore[import-untyped]

    chosen = list(names)
    examples = [
        (_features(made[a][0], chosen), math.log(made[b][1] / made[a][1]))
        for made in known.values()
        for a, b in pairwise(ADVANCES)
    ]
    pays = np.array([gain > 0 for _, gain in examples])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=100.0))
    sizes = np.array([abs(gain) for _, gain in examples])
    weights = sizes / sizes.mean()
    model.fit([x for x, _ in examples], pays, logisticregression__sample_weight=weights)
    return lambda row: bool(model.predict([_features(row, chosen)])[0])


def _features(row: Row, names: Iterable[str]) -> list[float]:
    return [SIGNALS[name](row) for name in names]


def held_out(known: Gains, names: Iterable[str]) -> dict[Place, float]:
    """Return the gain on every task of a decision that was learned on the other tasks."""
    found, chosen = {}, list(names)
    for task in dict.fromkeys(task for task, *_ in known):
        others = {key: made for key, made in known.items() if key[0] != task}
        decide = learned(others, chosen)
        found.update({k: climbed(made, decide) for k, made in known.items() if k[0] == task})
    return found


def rules(signals: Iterable[Row], rows: Iterable[Row]) -> str:
    """Return what rules for the advance gain beside corrected updates, as a table."""
    known = gains(signals, rows)
    found = {
        f"{advance:g} drifts per full step" if advance else "no predicted steps": {
            key: made[advance][1] for key, made in known.items()
        }
        for advance in ADVANCES
    }
    for names in MODELS:
        found[f"learned: {', '.join(names)}"] = held_out(known, names)
    found["the rule's formula"] = {key: climbed(made, formula) for key, made in known.items()}
    found["the best for each"] = {
        key: max(gain for _, gain in made.values()) for key, made in known.items()
    }
    titles = ["advance", "at 1/100 to 1/10 of the best rate", "at 1/3 to 3", "all", "worst"]
    return markdown(titles, [[name, *_means(each)] for name, each in found.items()])


def _means(found: Mapping[Place, float]) -> list[str]:
    small = [gain for (_, share, _), gain in found.items() if share < SMALL]
    large = [gain for (_, share, _), gain in found.items() if share >= SMALL]
    means = [statistics.geometric_mean(each) if each else math.nan
             for each in (small, large, [*small, *large])]  # fmt: skip
    (task, *_), worst = min(found.items(), key=lambda item: item[1])
    return [*(f"{mean:.2f}" for mean in means), f"{worst:.2f} ({task})"]
