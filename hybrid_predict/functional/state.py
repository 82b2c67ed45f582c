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
    """What forecasts of a group of T tensors are made of, and the window that compares them.

    Args:
        drift: Running averages of displacements per unit of the learning rate, by name.
        count: Displacements so far, 0-dim integer.
        factors: Lengths of forecasts in drifts, shape (T,).
        sums: Least squares, see :func:`hybrid_predict.rules.skill.add_squares`, shape (T, 2).
        average: Averages of displacements on samples of at most 65,536 entries per tensor, by name.
        moved: Summed displacements since the window was opened, likewise.
        direction: Drifts when it was opened, likewise.
        multiples: ``factors`` when it was opened.
        squares: Squared lengths of ``average`` when it was opened, shape (T,).
        latest: What the last closed window has measured, of 0-dim arrays.
        before: The forecast that it compared, on samples, by name; empty unless
            ``speedup="auto"``.
    """

    drift: dict[str, Any]
    count: Any
    factors: Any
    sums: Any
    average: dict[str, Any]
    moved: dict[str, Any]
    direction: dict[str, Any]
    multiples: Any
    squares: Any
    latest: Pooled
    before: dict[str, Any]


@final
class Correction(NamedTuple):
    """Memory of the corrected updates of a group.

    Args:
        rows: Second moments of rows, shape (rows,), by name.
        longest: Length of the longest updates so far, 0-dim.
        steps: Gradients so far, 0-dim integer.
        covariances: Those of rows, shape (m, m), and of columns, shape (n, n), by name, as far as
            they are whitened.
        roots: Inverse fourth roots of the covariances, likewise.
    """

    rows: dict[str, Any]
    longest: Any
    steps: Any
    covariances: tuple[dict[str, Any], ...]
    roots: tuple[dict[str, Any], ...]


@final
class Group(NamedTuple):
    """What is known of the tensors of one kind that are treated alike.

    Args:
        average: Averaged gradients by name.
        correction: None if updates are not corrected.
        history: None if nothing is predicted.
    """

    average: dict[str, Any]
    correction: Correction | None
    history: History | None


@final
class Clock(NamedTuple):
    """How far the run is, 0-dim arrays.

    Args:
        length: Displacements in a window.
        steps: Steps done.
        full_steps: Full steps done.
        undone_steps: Predicted steps that were undone.
        ticks: Steps that the last full step has brought.
        plain: Whether the rest is left to the optimizer, a bool.
    """

    length: Any
    steps: Any = 0
    full_steps: Any = 0
    undone_steps: Any = 0
    ticks: Any = 0
    plain: Any = False


@final
class Pacing(NamedTuple):
    """How many predicted steps follow each full step with ``speedup="auto"``.

    Args:
        paces: How far predicted steps move each kind, of 0-dim arrays, by kind; empty unless
            ``speedup="auto"``.
        credit: Predicted steps that are due, 0-dim.
        momentum: That of the optimizer, 0-dim.
    """

    paces: dict[str, Pace]
    credit: Any
    momentum: Any


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
        pacing: How many predicted steps follow each full step.
        blocks: Numbers of rows that corrections could treat together, down to the chosen one, shape
            (B,); 0 for all. A jitted function reads the choice from its length.
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
    blocks: Any
