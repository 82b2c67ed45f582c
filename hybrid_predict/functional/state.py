"""What is known between two calls: named tuples and dicts of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, final

from hybrid_predict.rules.limits import Limits
from hybrid_predict.rules.pace import Pace
from hybrid_predict.rules.schedule import Schedule
from hybrid_predict.rules.skill import Pooled, Skill
from hybrid_predict.rules.verdict import Evidence


@final
class History(NamedTuple):
    """What forecasts of a group of T tensors are made of, and the window that compares them."""

    drift: dict[str, Any]  # averages of displacements per unit of the learning rate, by name
    count: Any  # displacements so far, 0-dim integer
    factors: Any  # lengths of forecasts in drifts, shape (T,)
    sums: Any  # least squares, see `rules.skill.add_squares`, shape (T, 2)
    average: dict[str, Any]  # averages on samples of at most 65,536 entries per tensor, by name
    moved: dict[str, Any]  # summed displacements since the window was opened, likewise
    rates: Any  # summed learning rates since then, the largest one of each full step, 0-dim
    direction: dict[str, Any]  # drifts when it was opened, likewise
    multiples: Any  # `factors` when it was opened
    squares: Any  # squared lengths of `average` when it was opened, shape (T,)
    latest: Pooled  # what the last closed window has measured
    before: dict[str, Any]  # the forecast that it compared, likewise


@final
class Memory(NamedTuple):
    """Memory of the corrected updates of a matrix."""

    energies: Any  # shares of rows and columns, shape (rows + columns,)
    levels: Any  # second moments of the rows of factors, shape (rows,)
    steps: Any  # corrections so far, 0-dim integer
    covariance: Any = None  # of the shorter side; None if it is too long
    root: Any = None  # its inverse square root


@final
class Group(NamedTuple):
    """What is known of the tensors of one kind that are treated alike."""

    average: dict[str, Any]  # averaged gradients by name
    corrections: dict[str, Memory] | None  # by name; None if updates are not corrected
    history: History | None  # None if nothing is predicted
    seen: Any  # updates so far, 0-dim integer
    peaks: dict[str, Any]  # largest learning rates in these, 0-dim, by name


@final
class Clock(NamedTuple):
    """How far the run is, 0-dim arrays."""

    length: Any  # displacements in a window
    steps: Any = 0  # steps done
    full_steps: Any = 0  # full steps done
    undone_steps: Any = 0  # predicted steps that were undone
    ticks: Any = 0  # steps that the last full step has brought
    plain: Any = False  # whether the rest is left to the optimizer


@final
class Pacing(NamedTuple):
    """How far predicted steps move, and how many are due, 0-dim arrays."""

    paces: dict[str, Pace]  # by kind; empty if the configuration chose one forecast
    credit: Any  # predicted steps that are due; None unless ``speedup="auto"``
    momentum: Any  # that of the optimizer


@final
class HybridState(NamedTuple):
    """Everything that the next call depends on; a pytree of arrays.

    Args:
        groups: By kind; tensors of a kind whose updates are not corrected apart.
        skills: Skill of the forecasts by kind.
        limits: Limits of loss and gradient norm, of 0-dim arrays.
        schedule: Which steps are planned as predicted steps, of 0-dim integers.
        clock: How far the run is.
        kept: Weights before the predicted steps under way, by name.
        predicted: Predicted steps under way, 0-dim integer.
        sound: Whether these were finite, 0-dim bool.
        stands: Whether the coming update happens and they stand, 0-dim bool; only a verdict lets
            predicted steps stand.
        gated: Whether all forecasts need skill, 0-dim bool.
        evidence: Evidence against predicted steps, of 0-dim arrays.
        pacing: How far predicted steps move, and how many are due.
    """

    groups: dict[str, Group]
    skills: dict[str, Skill]
    limits: Limits
    schedule: Schedule
    clock: Clock
    kept: dict[str, Any]
    predicted: Any
    sound: Any
    stands: Any
    gated: Any
    evidence: Evidence
    pacing: Pacing
