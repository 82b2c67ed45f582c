"""What forecasts are made of: drifts of the displacements, as functions of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_predict.functional.plan import Rule
from hybrid_predict.functional.state import History, Window, select
from hybrid_predict.functional.windows import Reading, fit, observe, reopen, sampled
from hybrid_predict.tensors.arrays import ArrayBackend, beside, cast, namespace, wide_dtype


def start(rule: Rule, weights: Mapping[str, Any], backend: ArrayBackend) -> History:
    """A history without any displacement."""
    arrays = list(weights.values())
    xp, own = namespace(*arrays), beside(arrays)
    count = len(rule.decays) + rule.last
    none = xp.zeros((), dtype=xp.int32, **own)

    def empty() -> dict[str, Any]:
        return {name: xp.zeros_like(x) for name, x in sampled(weights).items()}

    drifts = tuple(dict(zip(weights, backend.zeros(arrays), strict=True)) for _ in range(count))
    first = backend.constants([rule.coefficient] + [0.0] * (count - 1), arrays)
    dtype = wide_dtype(*arrays)
    window = Window(
        empty(),
        empty(),
        tuple(empty() for _ in range(1 + count)),
        xp.zeros(len(arrays), dtype=dtype, **own),
        none,
        none + 0,
    )
    factors = first + xp.zeros((len(arrays), count), dtype=dtype, **own)
    sums = xp.zeros((len(arrays), count, count + 1), dtype=dtype, **own)
    return History(drifts, none + 0, factors, sums, window)


def forecast(history: History) -> dict[str, Any]:
    """The movement of one predicted step, per unit of the learning rate."""
    found = {}
    for k, name in enumerate(history.directions[0]):
        each = [directions[name] for directions in history.directions]
        dtype = wide_dtype(*each)
        factors = cast(history.factors, dtype)
        found[name] = sum(factors[k, j] * cast(x, dtype) for j, x in enumerate(each))
    return found


def learn(
    rule: Rule,
    history: History,
    moved: Mapping[str, Any],
    frozen: Mapping[str, Any],
    length: Any,
    learns: Any,
    backend: ArrayBackend,
) -> tuple[History, Reading]:
    """Take the displacement of one full step, per unit of the learning rate.

    Args:
        rule: How the group is forecast.
        history: What is known.
        moved: Displacements by name.
        frozen: Masks of the entries that stand still now, whose drift is lost; by name.
        length: Displacements in a window, 0-dim integer.
        learns: Whether this one counts, 0-dim bool.
        backend: How averages are stored.
    """
    xp = namespace(*moved.values())
    window, reading = observe(history.window, moved, length)
    count = history.count + 1
    so_far = 1.0 - 1.0 / cast(count, wide_dtype(*moved.values()))
    directions = []
    for decay, drift in zip(rule.decays, history.directions, strict=False):
        own = xp.minimum(xp.full_like(so_far, decay), so_far)
        directions.append(_averaged(drift, moved, own, backend))
    if rule.last:
        directions.append(_averaged(history.directions[-1], moved, 0.0, backend))
    directions = [
        {n: xp.where(frozen[n], xp.zeros_like(x), x) if n in frozen else x for n, x in each.items()}
        for each in directions
    ]
    new = history._replace(directions=tuple(directions), count=count)
    # The next window is about the forecast as it was before this one was read.
    window = reopen(window, forecast(new), new.directions, reading.full, length)
    factors, sums = history.factors, history.sums
    if rule.fitted is not None:
        factors, sums, square = fit(rule.fitted, factors, sums, reading)
        reading = reading._replace(square=square)
    new = new._replace(window=window, factors=factors, sums=sums)
    return select(learns, new, history), reading._replace(full=reading.full & learns)


def _averaged(
    means: Mapping[str, Any], values: Mapping[str, Any], decay: Any, backend: ArrayBackend
) -> dict[str, Any]:
    names = list(means)
    found = backend.average([means[n] for n in names], [values[n] for n in names], decay)
    return dict(zip(names, found, strict=True))
