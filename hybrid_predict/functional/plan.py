"""Which arrays are corrected, which are predicted, and by what rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, final

import numpy as np

from hybrid_predict.config import HybridConfig, check_history
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import FittedPredictor, MomentumPredictor, make_predictor
from hybrid_predict.functional.kernels import array_library
from hybrid_predict.policy.budget import budget, shortest_period, turns
from hybrid_predict.policy.confidence import window_length
from hybrid_predict.policy.policy import Part
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
    def group(self) -> tuple[str, bool]:
        """What it has in common with the arrays that are treated alike."""
        return self.kind, self.update is not None

    @property
    def length(self) -> float:
        """Length of a forecast, in drifts."""
        predictor = self.predictor
        return predictor.coefficient if isinstance(predictor, MomentumPredictor) else 1.0

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
    history: str  # type in which averages are stored
    momentum: float
    outputs_last: bool  # whether matrices are of shape (inputs, outputs)
    step_operations: float | None
    max_overhead: float
    period: int | None = 1  # full steps from one correction of an array to the next; None for none

    @property
    def predicted(self) -> list[Plan]:
        """The arrays that have a predictor."""
        return [plan for plan in self.arrays if plan.predictor is not None]

    @property
    def window(self) -> int:
        """Number of displacements in a window."""
        return window_length(self.momentum)

    def parts(self, *, resting: bool) -> dict[tuple[str, bool], Part]:
        """Return the predicted arrays as the policy sees them, by `Plan.group`."""
        found: dict[tuple[str, bool], Part] = {}
        for plan in self.predicted:
            assert plan.predictor is not None
            size = math.prod(plan.shape) + (found[plan.group].size if plan.group in found else 0)
            found[plan.group] = Part(
                plan.kind,
                0,
                size,
                self.window,
                moving_decay(plan.update, self.period, self.momentum),
                plan.predictor.gated,
                plan.predictor.fitted,
                resting,
            )
        return found

    def operations(self, period: int) -> float:
        """Return the operations that correcting adds to an average full step, by the period."""
        return sum(plan.work(period) for plan in self.arrays) / period


def kinds(weights: Mapping[str, Any], config: HybridConfig) -> dict[str, str]:
    """Return the kind of every array.

    Arrays show neither modules nor a graph. An array with fewer than two dimensions above size 1 is
    a vector; others are hidden matrices unless a pattern of ``config.kinds`` says otherwise.

    Args:
        weights: Arrays by name.
        config: Its ``kinds`` count; the first pattern that matches wins.

    Raises:
        ConfigError: If there are several matrices and no pattern, or a pattern matches nothing.
    """
    matrices = [n for n, x in weights.items() if sum(size > 1 for size in x.shape) > 1]
    for pattern in config.kinds:
        if not any(fnmatchcase(name, pattern) for name in weights):
            expected = "patterns that match a name"
            remedy = f"Names are {_some(weights)}."
            raise ConfigError("kinds", expected, pattern, remedy)
    if len(matrices) > 1 and not config.kinds:
        expected = "patterns that name the head and the embeddings, which arrays do not show"
        remedy = f"Matrices are {_some(matrices)}: write kinds={{{matrices[-1]!r}: 'head'}}."
        raise ConfigError("kinds", expected, {}, remedy)

    def kind(name: str) -> str:
        matching = (k for pattern, k in config.kinds.items() if fnmatchcase(name, pattern))
        return next(matching, "hidden" if name in matrices else "vector")

    return {name: kind(name) for name in weights}


def make_plans(
    weights: Mapping[str, Any],
    config: HybridConfig,
    momentum: float = 0.0,
    outputs_last: bool = False,
    step_operations: float | None = None,
) -> Plans:
    """Return which arrays are corrected and predicted, with corrections within their budget."""
    if not isinstance(config, HybridConfig):
        raise ConfigError("config", "a HybridConfig", type(config).__name__)
    if not (isinstance(momentum, (int, float)) and 0.0 <= momentum < 1.0):
        raise ConfigError("momentum", "a number in [0, 1)", momentum)
    if not isinstance(outputs_last, bool):
        raise ConfigError("outputs_last", "True or False", outputs_last)
    number = isinstance(step_operations, (int, float)) and 0.0 < step_operations < math.inf
    if step_operations is not None and not number:
        raise ConfigError("step_operations", "a finite number above 0, or None", step_operations)
    updates, predictors = _methods(config)
    found = kinds(weights, config) if updates or predictors else {}
    arrays = []
    for name, kind in sorted(found.items()):
        form = tuple(weights[name].shape)
        shape = as_matrix((*form[-1:], *form[:-1]) if outputs_last else form)
        update = updates.get(kind) if len(form) > 1 else None
        update = update if update is not None and update.share > 0 else None
        if (update or kind in predictors) and 0 not in form:
            arrays.append(Plan(name, kind, form, shape, update, predictors.get(kind)))
    trained = sum(math.prod(weights[n].shape) for n, kind in found.items() if kind != "embedding")
    library = "numpy" if array_library(*weights.values()) is np else "jax"
    plans = Plans(
        tuple(arrays),
        trained,
        library,
        config.history_dtype,
        float(momentum),
        outputs_last,
        step_operations,
        config.max_overhead,
    )
    if step_operations is None:
        return plans
    allowed = budget(step_operations, config.max_overhead)
    period = shortest_period(plans.operations, allowed)
    dealt = turns([(0, plan.work(period or 1)) for plan in arrays], period or 1)
    turned = [plan._replace(turn=turn) for plan, turn in zip(arrays, dealt, strict=True)]
    return plans._replace(arrays=tuple(turned), period=period)


def _methods(config: HybridConfig) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The updates and predictors by kind."""
    if config.shadow:
        remedy = "Use HybridEngine to shadow a run."
        raise ConfigError("shadow", "False in the functional form", True, remedy)
    updates: dict[str, Any] = {k: make_update(u) for k, u in config.active_updates.items()}
    predictors: dict[str, Any] = {k: make_predictor(p) for k, p in config.active_predictors.items()}
    known = SpectralUpdate, FittedPredictor, MomentumPredictor
    methods = ("updates", updates), ("predictors", predictors)
    for argument, method in ((each, x) for each, found in methods for x in found.values()):
        if type(method) not in known:
            expected = "one of " + ", ".join(each.__name__ for each in known)
            remedy = "Use HybridEngine for others."
            raise ConfigError(argument, expected, type(method).__name__, remedy)
        check_history(method.decay, config.history_dtype)
    return updates, predictors


def _some(names: Any) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")
