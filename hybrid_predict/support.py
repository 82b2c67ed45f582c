"""How many equivalent steps a full step with a forecast stands for, by what the forecast adds."""

from __future__ import annotations

import math

LEAST, ENOUGH = 0.55, 0.62
"""Novelty below which a forecast supports nothing, and from which on it supports all it can."""

LONGEST = 1.5
"""Horizon, in optimizer updates, beyond which nothing more is supported."""


def support(horizon: float, novelty: float) -> float:
    r"""The compression that one forecast supports.

    .. math:: 1 + \tfrac12 \, \min(h, 1.5) \, \operatorname{clip}
        \Bigl(\frac{\nu - 0.55}{0.62 - 0.55},\; 0,\; 1\Bigr),
        \qquad \nu = 1 - \cos^2(d, u)

    with d the forecast of a single update, over all matrices whose update u is replaced.

    A forecast that replaces the optimizer's update u and points where u points adds nothing. With
    the forecasts of decision 7, low-rank adapters, whose few singular directions are equally long
    from the start, had the lowest novelty of the benchmark's tasks and gained the least; that is
    where the constants come from (decision 10).

    Args:
        horizon: h of the forecast, in optimizer updates, at least 0.
        novelty: :math:`\nu` in [0, 1]; nan for forecasts made in addition to the update.

    Returns:
        Equivalent steps per full step, in [1, 1.75].
    """
    share = 1.0 if math.isnan(novelty) else (novelty - LEAST) / (ENOUGH - LEAST)
    return 1.0 + 0.5 * min(horizon, LONGEST) * min(1.0, max(0.0, share))
