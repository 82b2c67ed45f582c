"""Which steps of a run are planned as predicted ones, by arithmetic in 32 bits."""

from __future__ import annotations

from typing import Any

from hybrid_predict.accounts.clock import Clock as Schedule
from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.functional.state import Clock
from hybrid_predict.rules.skill import FIRST
from hybrid_predict.tensors.arrays import beside, namespace

MOST_STEPS = 2**31 - 1
"""Length of the longest run, since JAX counts in 32 bits."""

_BITS = 32
"""Number of residues; those of bits that no position has are 0."""


def schedule(config: HybridConfig, length: int, gated: bool) -> tuple[list[int], dict[str, int]]:
    r"""Return :math:`2^j P \bmod M` for :math:`j = 0, 1, ...`, and the lengths of a run.

    P of its M steps between warm-up and cooldown are predicted.

    Args:
        config: The run's configuration.
        length: Displacements in a window.
        gated: Whether every forecast needs skill.

    Raises:
        ConfigError: If predicted steps are asked for and ``total_steps`` is not known, or it is
            larger than :data:`MOST_STEPS`.
    """
    if config.total_steps is None and config.compression == 1:
        return [0], {"total": MOST_STEPS, "warmup": 1, "cooldown": 0}
    found = Schedule(config, FIRST * length if gated else 0)
    if found.total > MOST_STEPS:
        remedy = "Use HybridEngine for longer runs."
        raise ConfigError("total_steps", f"at most {MOST_STEPS} steps", found.total, remedy)
    residues = [found.planned * 2**j % max(1, found.between) for j in range(_BITS - 1)]
    lengths = {"total": found.total, "warmup": found.warmup, "cooldown": found.cooldown}
    return [*residues, 0], lengths


def due(clock: Clock, config: HybridConfig) -> Any:
    """Return the predicted steps planned right before the next full step, a 0-dim integer.

    It is :attr:`hybrid_predict.accounts.clock.Clock.due`, without numbers of more than 32 bits.

    Args:
        clock: How far the run is.
        config: The run's configuration.
    """
    xp = namespace(clock.residues)
    between = xp.reshape(clock.total - clock.warmup - clock.cooldown, (1,))
    at = xp.reshape(clock.steps - clock.warmup, (1,))
    if config.full_steps is not None and config.predict_steps is not None:
        full = min(config.full_steps, MOST_STEPS)
        period = min(full + config.predict_steps, MOST_STEPS)
        into = at % period
        least = xp.minimum(period - into, between - at)
        count = xp.where(into >= full, least, 0 * at)
    else:
        planned = clock.residues[:1]
        rest = between - planned
        count = _modular_product(xp, at, clock.residues, between) // xp.where(
            rest > 0, rest, 1 + 0 * rest
        )
    return xp.where((at >= 0) & (at < between), count, 0 * count)[0]


def _modular_product(xp: Any, at: Any, residues: Any, between: Any) -> Any:
    """Return i P mod M of shape (1,), from i and the residues of P."""
    powers = xp.asarray(list(range(_BITS)), dtype=residues.dtype, **beside([residues]))
    sums = xp.where((at >> powers) & 1 == 1, residues, 0 * residues)
    while sums.shape[0] > 1:
        left, right = sums[::2], sums[1::2]
        space = between - right  # left + right may need more than 32 bits
        sums = xp.where(left >= space, left - space, left + right)
    return sums
