"""Saved states: copied when taken, checked before they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from hybrid_predict import distributed
from hybrid_predict.errors import CheckpointError
from hybrid_predict.ledger import SavingsLedger

STATE_VERSION = 6

logger = distributed.rank_zero_logger(__name__)

_ENTRIES = frozenset(
    {
        "version",
        "names",
        "bound",
        "lag",
        "ranks",
        "clock",
        "ledger",
        "forecaster",
        "verifier",
        "scorer",
        "rounding",
    }
)


def check_state(state: dict[str, Any], names: Sequence[str]) -> None:
    """Check that an engine's saved state fits.

    Args:
        state: What ``HybridEngine.state_dict`` gave.
        names: Parameter names of the engine that is to continue it.

    Raises:
        CheckpointError: If the state belongs to another model or version.
    """
    if not isinstance(state, dict) or _ENTRIES - state.keys():
        raise CheckpointError(
            "state: expected what HybridEngine.state_dict() gave. "
            "Resume from a checkpoint that the plug-in has written."
        )
    expected = {
        "version": (STATE_VERSION, state["version"]),
    }
    for name, (own, saved) in expected.items():
        if own != saved:
            raise CheckpointError(
                f"state: expected {name} {own!r}, got {saved!r}. "
                "Resume with the version and configuration of the saved run."
            )
    unknown = sorted(set(state["names"]) - set(names))
    if unknown:
        raise CheckpointError(
            f"state: expected parameters of this model, got {unknown[:3]}. "
            "The checkpoint belongs to another model."
        )


def note_changes(state: dict[str, Any], total: int, ledger: SavingsLedger) -> None:
    """Tell what a resumed run does not have in common with the saved one.

    Args:
        state: The saved state.
        total: Length of the resumed run in equivalent steps.
        ledger: Where it is noted.
    """
    step = state["clock"]["full_steps"]
    if state["clock"]["total"] != total:
        change = f"from {state['clock']['total']} to {total} equivalent steps"
        ledger.record(step, f"the run's length changed {change}")
        logger.info("Resumed with the run's length changed %s.", change)
    before, now = whole("ranks", state["ranks"], 1), distributed.size()
    if before != now:
        ledger.record(step, f"the number of ranks changed from {before} to {now}")
        logger.warning(
            "Resumed on %d ranks instead of %d: training goes on with the forecast history, but "
            "not bit for bit.",
            now,
            before,
        )


@contextmanager
def all_or_nothing(*parts: Any) -> Iterator[None]:
    """Let a state be loaded as a whole or not at all.

    Args:
        parts: Objects that loading gives new attributes to; they get their old ones back.

    Raises:
        CheckpointError: Whatever goes wrong in the block.
    """
    kept = [(part, dict(vars(part))) for part in parts]
    try:
        yield
    except BaseException as error:
        for part, attributes in kept:
            vars(part).clear()
            vars(part).update(attributes)
        if isinstance(error, CheckpointError) or not isinstance(error, Exception):
            raise
        raise CheckpointError(
            f"state: expected a whole, unaltered state, got one whose reading failed with "
            f"{error!r}. Resume from another checkpoint."
        ) from error


def whole(name: str, value: Any, least: int = 0) -> int:
    """A saved count.

    Raises:
        CheckpointError: If it is no integer, or below ``least``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CheckpointError(
            f"state: expected {name} to be an integer, at least {least}, got {value!r}. "
            "Resume from another checkpoint."
        )
    return value


def detached(value: Any) -> Any:
    """A copy of nested containers in which every tensor is new."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {k: detached(v) for k, v in value.items()}
    return [detached(v) for v in value] if isinstance(value, (list, tuple)) else value
