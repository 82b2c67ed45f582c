"""Which arrays are corrected, which are predicted, and by what rule."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from fnmatch import filter as filter_names
from typing import Any, NamedTuple, final

import numpy as np

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import FittedPredictor, MomentumPredictor, make_predictor
from hybrid_predict.functional.kernels import array_library
from hybrid_predict.policy.budget import LONGEST_PERIOD, budget, fitting, shortest_period, turns
from hybrid_predict.policy.confidence import window_length
from hybrid_predict.policy.predicting import Part
from hybrid_predict.tensors.shapes import as_matrix, direction_operations
from hybrid_predict.updates import SpectralUpdate, make_update
from hybrid_predict.updates.base import moving_decay
from hybrid_predict.updates.spectral import seen_every


@final
class Plan(NamedTuple):
    """How one array is treated."""

    name: str
    kind: str
    form: tuple[int, ...]  # its shape
    shape: tuple[int, int]  # rows (outputs) and columns, read as a matrix
    update: SpectralUpdate | None
    predictor: FittedPredictor | MomentumPredictor | None
    turn: int = 0  # full step of a period in which it is corrected

    @property
    def length(self) -> float:
        """Length of a forecast, in drifts."""
        return 1.0 if self.predictor is None else self.predictor.multiple

    def work(self, period: int) -> int:
        """Return the operations of its direction, by the period."""
        if self.update is None:
            return 0
        every = seen_every(period)
        return direction_operations([self.shape], self.update.longest, every, products=False)


@final
class Plans(NamedTuple):
    """How arrays are treated that are corrected or predicted; it can be hashed."""

    arrays: tuple[Plan, ...]  # sorted by name, as a jitted function sees dicts
    trained: int  # number of weights outside embeddings
    library: str  # of the arrays, "numpy" or "jax"
    momentum: float
    outputs_last: bool  # whether matrices are of shape (inputs, outputs)
    period: int = 1  # full steps from one correction of an array to the next

    @property
    def predicted(self) -> list[Plan]:
        """The arrays that have a predictor."""
        return [plan for plan in self.arrays if plan.predictor is not None]

    def parts(self, *, resting: bool) -> list[Part]:
        """Return the predicted arrays as the policy sees them, one part for each kind."""
        found = []
        for kind in dict.fromkeys(plan.kind for plan in self.predicted):
            own = [plan for plan in self.predicted if plan.kind == kind]
            size = sum(math.prod(plan.shape) for plan in own)
            window = window_length(self.momentum)
            decay = max(moving_decay(plan.update, self.period, self.momentum) for plan in own)
            rule: Any = own[0].predictor
            found.append(Part(kind, 0, size, window, decay, rule.gated, rule.fitted, resting))
        return found


def make_plans(
    weights: Mapping[str, Any],
    config: HybridConfig,
    momentum: float = 0.0,
    outputs_last: bool = False,
    step_operations: float | None = None,
) -> Plans:
    """Return which arrays are corrected and predicted, with corrections within their budget."""
    _check_arrays(weights)
    if not isinstance(config, HybridConfig):
        raise ConfigError("config", "a HybridConfig", type(config).__name__)
    if not 0.0 <= momentum < 1.0:
        raise ConfigError("momentum", "a number in [0, 1)", momentum)
    updates, predictors = _methods(config)
    kinds = _kinds(weights, config) if updates or predictors else {}
    arrays = []
    for name, kind in sorted(kinds.items()):
        form = tuple(weights[name].shape)
        shape = as_matrix((*form[-1:], *form[:-1]) if outputs_last else form)
        update = updates.get(kind) if len(form) > 1 else None
        if update or kind in predictors:
            arrays.append(Plan(name, kind, form, shape, update, predictors.get(kind)))
    period = 1
    if step_operations is not None:
        period = _period(arrays, step_operations, config.max_overhead)
        dealt = turns([(0, plan.work(period)) for plan in arrays], period)
        arrays = [plan._replace(turn=turn) for plan, turn in zip(arrays, dealt, strict=True)]
    trained = sum(math.prod(weights[n].shape) for n, kind in kinds.items() if kind != "embedding")
    library = "numpy" if isinstance(next(iter(weights.values())), np.ndarray) else "jax"
    return Plans(tuple(arrays), trained, library, float(momentum), outputs_last, period)


def _check_arrays(weights: Any) -> None:
    """Check that weights are floating-point arrays by name, all of NumPy or all of JAX."""
    if not isinstance(weights, Mapping) or not weights:
        expected = "a mapping of names to arrays, not empty"
        raise ConfigError("weights", expected, type(weights).__name__)
    jax = sys.modules.get("jax")
    libraries = {isinstance(array, np.ndarray) for array in weights.values()}
    for name, array in weights.items():
        known = isinstance(array, np.ndarray) or (jax and isinstance(array, jax.Array))
        real = known and array.size and array_library(array).issubdtype(array.dtype, np.floating)
        if not real or len(libraries) > 1:
            got = f"{type(array).__name__} of {getattr(array, 'dtype', 'no dtype')}"
            raise ConfigError(
                f"weights[{name!r}]",
                "a floating-point array, not empty, all of NumPy or all of JAX",
                got,
                "Name nested arrays by their paths, and use HybridEngine for torch.",
            )


def _period(arrays: list[Plan], step_operations: float, max_overhead: float) -> int:
    def operations(period: int) -> float:
        return sum(plan.work(period) for plan in arrays) / period

    period = shortest_period(operations, budget(step_operations, max_overhead))
    if period is None:
        advice = fitting(operations(LONGEST_PERIOD), step_operations)
        expected = "a share of a full step that allows corrected updates"
        raise ConfigError("max_overhead", expected, max_overhead, f"Set {advice}, or updates={{}}.")
    return period


def _kinds(weights: Mapping[str, Any], config: HybridConfig) -> dict[str, str]:
    """Return the kind of every array, by the first pattern of ``config.kinds`` that matches.

    Arrays show neither modules nor a graph. An array with fewer than two dimensions above size 1 is
    a vector; others are hidden matrices.
    """
    matrices = [n for n, x in weights.items() if sum(size > 1 for size in x.shape) > 1]
    unmatched = [pattern for pattern in config.kinds if not filter_names(weights, pattern)]
    if unmatched or (len(matrices) > 1 and not config.kinds):
        expected = "patterns that name the head and the embeddings, which arrays do not show"
        names = ", ".join(matrices[:6])
        remedy = f"Matrices are {names}; write kinds={{{matrices[-1]!r}: 'head'}} for the last."
        raise ConfigError("kinds", expected, unmatched or {}, remedy)
    found = {name: "hidden" if name in matrices else "vector" for name in weights}
    for pattern, kind in reversed(list(config.kinds.items())):
        found.update(dict.fromkeys(filter_names(weights, pattern), kind))
    return found


def _methods(config: HybridConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    for argument, only in (("shadow", False), ("history_dtype", "float32")):
        if (given := getattr(config, argument)) != only:
            expected = f"{only!r} in the functional form"
            raise ConfigError(argument, expected, given, "Use HybridEngine for others.")
    updates: dict[str, Any] = {k: make_update(u) for k, u in config.active_updates.items()}
    predictors: dict[str, Any] = {k: make_predictor(p) for k, p in config.active_predictors.items()}
    methods = [("updates", x) for x in updates.values()]
    methods += [("predictors", x) for x in predictors.values()]
    for argument, method in methods:
        if type(method) not in (SpectralUpdate, FittedPredictor, MomentumPredictor):
            expected = "the package's own classes"
            got = type(method).__name__
            raise ConfigError(argument, expected, got, "Use HybridEngine for others.")
    return updates, predictors
