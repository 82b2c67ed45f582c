"""What is known between two calls: plain nested tuples and dicts of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from hybrid_predict.tensors.arrays import namespace
from hybrid_predict.verify.descent import Evidence


@final
class Window(NamedTuple):
    """A window of full steps, on samples of at most 65,536 entries per tensor.

    Args:
        drift: Running average of displacements, by name.
        moved: Displacements since the window was opened, summed, by name.
        frozen: The forecast at its start, then the fitted directions, each by name.
        squares: Squared lengths of the drift at its start, shape (T,).
        seen: Displacements so far, 0-dim integer.
        count: Displacements in the window, 0-dim integer.
    """

    drift: dict[str, Any]
    moved: dict[str, Any]
    frozen: tuple[dict[str, Any], ...]
    squares: Any
    seen: Any
    count: Any


@final
class History(NamedTuple):
    """What forecasts are made of.

    Args:
        directions: Drifts, and the last displacement if it is asked for, by name, per unit of the
            learning rate.
        count: Displacements so far, 0-dim integer.
        factors: Coefficients of the directions, shape (T, J).
        sums: Their Gram matrices, with the targets as last column, shape (T, J, J + 1).
        window: How forecasts are compared with what followed.
    """

    directions: tuple[dict[str, Any], ...]
    count: Any
    factors: Any
    sums: Any
    window: Window


@final
class Group(NamedTuple):
    """The arrays of one kind that are treated alike.

    Args:
        average: Averaged gradients by name.
        arrays: Arrays of the corrected update by name; empty where updates are not corrected.
        numbers: Its 0-dim arrays by name.
        history: None where nothing is predicted.
    """

    average: dict[str, Any]
    arrays: dict[str, list[Any]]
    numbers: dict[str, Any]
    history: History | None


@final
class Skill(NamedTuple):
    """Running means over windows, 0-dim arrays; see `hybrid_predict.rules.skill.Skill`."""

    windows: Any
    mean: Any
    square: Any
    chance: Any
    length: Any
    fitted: Any
    error: Any


@final
class Baseline(NamedTuple):
    """Running mean and mean square of one number, 0-dim arrays, and how many there were."""

    mean: Any
    square: Any
    count: Any


@final
class Monitor(NamedTuple):
    """Baselines and alarms, 0-dim arrays; see `hybrid_predict.verify.monitor.Monitor`.

    Args:
        loss: Of the loss.
        norm: Of the logarithm of the gradient norm.
        start: Mean loss at the end of the warm-up.
        mean: Mean loss now; both are nan before there is one.
        until: No predicted steps before this full step has passed.
        pauses: Alarms that have paused them.
        calm: Full steps since the last alarm.
        above: Full steps in a row with a loss far above that of the warm-up.
    """

    loss: Baseline
    norm: Baseline
    start: Any
    mean: Any
    until: Any
    pauses: Any
    calm: Any
    above: Any


@final
class Clock(NamedTuple):
    """How far the run is, 0-dim integers.

    Args:
        residues: 2^j P mod M for j = 0, 1, ...: P of the M steps between warm-up and cooldown are
            planned as predicted ones.
        total: N, the run's length in steps.
        warmup: Its steps at the start without predicted steps.
        cooldown: Its steps at the end that are left to the optimizer.
        length: Displacements in a window.
        steps: Steps done.
        full_steps: Full steps done.
        undone_steps: Predicted steps that were undone.
        ticks: Steps that the last full step has brought.
        plain: Whether the rest is left to the optimizer.
    """

    residues: Any
    total: Any
    warmup: Any
    cooldown: Any
    length: Any
    steps: Any
    full_steps: Any
    undone_steps: Any
    ticks: Any
    plain: Any


@final
class HybridState(NamedTuple):
    """Everything that the next call depends on; a pytree of arrays.

    Args:
        groups: By kind, vectors of a corrected kind apart.
        skills: Skill of the forecasts by kind.
        monitor: What losses and gradient norms are judged by.
        clock: How far the run is.
        kept: Weights before the predicted steps under way, by name.
        predicted: Predicted steps under way, 0-dim integer.
        sound: Whether these were finite, 0-dim bool.
        stands: Whether the coming update happens and they stand, 0-dim bool; only a verdict lets
            predicted steps stand.
        evidence: Against predicted steps, 0-dim arrays.
        blocks: Numbers of rows that corrections could treat together, down to the chosen one, shape
            (B,); 0 for all. A jitted function reads the choice from its length.
    """

    groups: dict[str, Group]
    skills: dict[str, Skill]
    monitor: Monitor
    clock: Clock
    kept: dict[str, Any]
    predicted: Any
    sound: Any
    stands: Any
    evidence: Evidence
    blocks: Any


def select(condition: Any, new: Any, old: Any) -> Any:
    """The first of two trees of arrays where a condition holds, else the second; no array is read.

    Args:
        condition: A 0-dim bool array.
        new: Nested dicts, lists, tuples and named tuples of arrays, and None.
        old: A tree of the same form.

    Example:
        >>> import numpy as np
        >>> select(np.asarray(True), {"a": np.ones(2)}, {"a": np.zeros(2)})["a"].tolist()
        [1.0, 1.0]
    """
    if isinstance(new, Mapping):
        return {name: select(condition, value, old[name]) for name, value in new.items()}
    if isinstance(new, (list, tuple)):
        parts = [select(condition, a, b) for a, b in zip(new, old, strict=True)]
        if hasattr(new, "_fields"):
            return type(new)(*parts)
        return type(new)(parts)
    if new is None:
        return None
    return namespace(new).where(condition, new, old)
