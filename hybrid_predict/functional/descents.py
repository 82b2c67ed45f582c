"""How steep predicted steps were, and what is concluded from it, as functions of arrays.

The rule is that of `verify.descent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_predict.functional.state import Group, HybridState, select
from hybrid_predict.tensors.arrays import ArrayBackend, cast, namespace, wide_dtype
from hybrid_predict.verify.descent import Evidence, Slopes, weigh


def slopes(
    state: HybridState,
    group: Group,
    before: Mapping[str, Any],
    moved: Mapping[str, Any],
    rates: Mapping[str, Any],
) -> Slopes:
    """How steep the predicted steps of a group were; zeros where nothing was predicted.

    Args:
        state: What is known, with the weights before predicted steps.
        group: The group, with the gradients of the verifying step in its averages.
        before: Weights after the predicted steps, right before the update.
        moved: Displacements of the update by name, per unit of the learning rate.
        rates: Learning rates by name.
    """
    backend, names = ArrayBackend(), list(moved)
    average = [group.average[name] for name in names]
    wide = {name: wide_dtype(before[name]) for name in names}
    pairs = ((name, cast(before[name], wide[name])) for name in names)
    predicted = [x - cast(state.kept[name], wide[name]) for name, x in pairs]
    own = [rates[name] * moved[name] for name in names]
    parts = []
    for movement in (predicted, own):
        xp, norms = namespace(*movement), backend.norms(movement)
        parts += [xp.sum(backend.dots(average, movement)), xp.sum(norms * norms)]
    found, square = Slopes(*parts), parts[1]
    result: Slopes = select(
        (square > 0) & (state.predicted > 0), found, Slopes(*(0 * x for x in parts))
    )
    return result


def weighed(state: HybridState, each: Sequence[Slopes]) -> Evidence:
    """The evidence after a full step, which counts if predicted steps came before it and stand."""
    if not each:
        return state.evidence
    dtype = state.evidence.wealth.dtype
    new = weigh(state.evidence, Slopes(*(sum(parts) for parts in zip(*each, strict=True))))
    counts = state.stands & (state.predicted > 0)
    result: Evidence = select(counts, Evidence(*(cast(x, dtype) for x in new)), state.evidence)
    return result
