"""What optimizers that are not torch's own do to weights, by updates of a scratch copy."""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hybrid_predict.errors import raise_interrupt, summary
from hybrid_predict.optimizers.rules import UpdateRule, number, refusal
from hybrid_predict.tensors.random_states import random_states, set_random_states

_PLACE = ((1.0, -2.0), (3.0, 0.5))
_GRADIENT = ((0.3, 0.2), (-0.1, 0.4))

_RATE = 0.01
"""Learning rate of trials; with the user's own, rounding might hide the decay."""

_UPDATES, _LONG = 12, 64
"""Updates of a trial, and of one in which a second copy of the weights may come back."""

_CLOSE = 1e-3
"""Relative difference of numbers that count as equal."""

DECAY = "whose weight decay could not be found out"


def found_rule(optimizer: Optimizer, group: Mapping[str, Any]) -> UpdateRule:
    """Find the rule of a parameter group by updates of a scratch copy of the optimizer.

    With a zero gradient, decoupled decay removes the same fraction of every weight in each update.
    Coupled decay of c, which has to be called ``weight_decay``, has the same effect as a gradient
    of c times the weights, so a gradient of -c times the weights stops the updates. Updates are
    relative if they grow with the weights although the gradient stays the same. Weights that are
    moved between two updates stay moved, unless the optimizer keeps a second copy of them.

    Variables of a function that an optimizer holds are shared with the copy.

    Raises:
        UnsupportedSetupError: If the optimizer keeps a second copy of the weights.
    """
    states = random_states()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rule = replace(_decay(optimizer, group), relative=_is_relative(optimizer, group))
            returns = _returns(optimizer, group)
    except Exception as error:  # the optimizer may require other parameters than the trial's
        raise_interrupt(error)
        return UpdateRule(unknown=f"{DECAY} with a copy of it ({summary(error)})")
    finally:
        set_random_states(states)
    if returns:
        reason = "it moves weights back, as with a second copy of the weights"
        raise refusal(optimizer, reason)
    return rule


def _decay(optimizer: Optimizer, group: Mapping[str, Any]) -> UpdateRule:
    moves = _moves(optimizer, group, torch.zeros_like)
    if not any(bool(move.any()) for _, move in moves):
        return UpdateRule()
    weight_decay = number(group, "weight_decay")
    shares = [-move / place for place, move in moves]
    if all(_is_close(share, shares[-1].mean()) for share in shares):
        full = float(shares[-1].mean())
        place, move = _moves(optimizer, group, torch.zeros_like, lr=_RATE / 2)[-1]
        left = float((-move / place).mean()) / full
        by_rate = abs(left - 0.5) < 0.1
        if (by_rate or abs(left - 1.0) < 0.1) and 0.0 < full < 0.5:
            return UpdateRule(full / _RATE if by_rate else full, by_rate, weight_decay=weight_decay)
        return UpdateRule(unknown=DECAY)
    most = _CLOSE * max(float(move.abs().max()) for _, move in moves)
    stopped = _moves(optimizer, group, partial(torch.mul, -weight_decay))
    if all(bool(move.abs().max() <= most) for _, move in stopped):
        return UpdateRule(coupled=weight_decay, weight_decay=weight_decay)
    return UpdateRule(unknown=DECAY)


def _is_relative(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    lengths = []
    for scale in (0.25, 2.0):
        ((_, move),) = _moves(optimizer, group, _constant, scales=(scale, scale))
        lengths.append(move.norm())
    return bool(lengths[1] > 3.0 * lengths[0] > 0)


def _constant(place: Tensor) -> Tensor:
    return torch.tensor(_GRADIENT, dtype=place.dtype)


def _returns(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    """Return whether most of a manual movement after the first update is gone later."""
    own = group["params"][0].dtype  # some optimizers keep a second copy only of 16-bit weights
    without = {"weight_decay": 0.0} if group.get("weight_decay") else {}
    ends = []
    for nudge in (0.0, 0.1):
        twin, p = _scratch(optimizer, group, torch.tensor(_PLACE, dtype=own), lr=1e-6, **without)
        for k in range(_LONG):
            _update(twin, p, (-1.0) ** k * _constant(p))
            if k == 0:
                p.detach().add_(nudge)
        ends.append(p.detach().double())
    return not float((ends[1] - ends[0]).mean()) > 0.07


def _moves(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    gradient: Callable[[Tensor], Tensor],
    scales: Sequence[float] = (1.0, -0.5, 2.0, -1.5) * (_UPDATES // 4),
    **options: Any,
) -> list[tuple[Tensor, Tensor]]:
    """Return places to which the weights are moved, with the update from each, but the first one.

    In the first update of all, some optimizers only initialise their state. They are made in 64
    bits, because rounding can look like decay.
    """
    first = torch.tensor(_PLACE, dtype=torch.float64)
    twin, p = _scratch(optimizer, group, first, **options)
    moves = []
    for scale in scales:
        place = scale * first
        p.detach().copy_(place)
        _update(twin, p, gradient(place))
        moves.append((place, p.detach() - place))
    return moves[1:]


def _update(twin: Any, p: nn.Parameter, gradient: Tensor) -> None:
    p.grad = gradient.clone()
    # A scheduler replaces the method of the optimizer, and torch's hooks wrap that of its class.
    step = getattr(type(twin).step, "__wrapped__", type(twin).step)
    with torch.enable_grad():
        step(twin)


def _scratch(
    optimizer: Optimizer, group: Mapping[str, Any], weights: Tensor, **options: Any
) -> tuple[Any, nn.Parameter]:
    """Return a copy of an optimizer that updates other weights alone, and these.

    It has the options of the group, and what the optimizer holds except its state. Of all other
    parameters it has only the shape.
    """
    first = group["params"][0]
    p = nn.Parameter(weights.clone())
    twin = object.__new__(type(optimizer))
    chosen = {name: value for name, value in group.items() if name != "params"}
    # The plain implementation gives the same updates, and works on every tensor.
    plain = {"fused", "capturable", "foreach", "maximize"} & chosen.keys()
    given = {"lr": _RATE, **dict.fromkeys(plain, False), **options}
    if isinstance(chosen["lr"], Tensor):
        given["lr"] = torch.tensor(given["lr"])
    alone: dict[str, Any] = {"params": [p]}
    # Flags in its state may tell how a parameter is treated.
    known = optimizer.state.get(first, {}).items()
    flags = {name: value for name, value in known if isinstance(value, (bool, str))}
    memo: dict[int, Any] = {
        id(q): nn.Parameter(torch.empty_like(q, device="meta"), q.requires_grad)
        for each in optimizer.param_groups
        for q in each["params"]
    }
    held = {name: value for name, value in vars(optimizer).items() if name != "step"}
    for name, value in held.items():
        keyed = isinstance(value, dict) and any(id(key) in memo for key in value)
        if keyed or isinstance(value, defaultdict) or "hooks" in name:
            memo[id(value)] = copy.copy(value)
            memo[id(value)].clear()
    memo |= {id(each): alone for each in optimizer.param_groups}
    memo |= {id(first): p, id(optimizer): twin, id(optimizer.param_groups): [alone]}
    memo[id(optimizer.state)] = defaultdict(dict, {p: flags} if flags else {})
    held, own = copy.deepcopy((held, chosen), memo)
    alone.update(own | given)
    vars(twin).update(held)
    return twin, p


def _is_close(left: Tensor, right: Tensor) -> bool:
    return bool((left - right).abs().max() <= _CLOSE * right.mean().abs())
