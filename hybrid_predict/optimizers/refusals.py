"""Optimizers that cannot be followed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks.shards import DEEPSPEED, of_deepspeed

_REFUSED = {
    "LBFGS": "it runs the model several times inside one step",
    "ScheduleFree": "it keeps a second set of weights",
    "Lookahead": "it keeps a second set of weights",
    "ZeroRedundancyOptimizer": "each rank updates its own parameters and overwrites the others",
    "Onebit": "it averages compressed momentum in place of gradients",
    "ZeroOneAdam": "it averages compressed momentum in place of gradients",
    "SAM": "it moves the weights itself between two backward passes",
}


def inner_optimizer(given: Sequence[Any]) -> str:
    """Tell where the torch optimizer is that objects of another class stand for, or ""."""
    for other in given:
        held = getattr(other, "__dict__", {})
        if of_deepspeed(other):
            return DEEPSPEED
        inner = [name for name, value in held.items() if isinstance(value, Optimizer)]
        if inner and not isinstance(other, Optimizer):
            return f"Pass the optimizer that it wraps, its attribute {inner[0]!r}."
        if type(other).__module__.startswith("fastai."):
            return (
                "fastai's own optimizers are not torch optimizers: set Learner(opt_func=partial("
                "OptimWrapper, opt=torch.optim.AdamW)), and pass learn.opt.opt."
            )
    return ""


def check_supported(optimizer: Optimizer) -> None:
    """Check that an optimizer has one set of weights, one pass per step, and learning rates.

    Raises:
        UnsupportedSetupError: If it is of a refused class, wraps another optimizer, or has a
            parameter group without a learning rate.
    """
    for cls in type(optimizer).__mro__:
        for refused, reason in _REFUSED.items():
            if refused in cls.__name__:
                raise refusal(optimizer, reason)
    if _wraps_another(optimizer):
        remedy = "pass the inner optimizer to the engine, and step the outer one as before"
        raise refusal(optimizer, "it wraps another optimizer", remedy)
    if any(group.get("lr") is None for group in optimizer.param_groups):
        expected = "a learning rate 'lr' in every parameter group"
        got = type(optimizer).__name__
        remedy = (
            "Set lr to a number; some optimizers also need an option that turns off their "
            "own choice of the learning rate."
        )
        raise UnsupportedSetupError("optimizer", expected, got, remedy)


def refusal(
    optimizer: Optimizer,
    reason: str,
    remedy: str = "use SGD, Adam, AdamW or another plain optimizer",
) -> UnsupportedSetupError:
    """Return the error for an unsupported optimizer."""
    expected = "an optimizer with one set of weights and one pass per step"
    remedy = f"It cannot be used because {reason}; {remedy}."
    return UnsupportedSetupError("optimizer", expected, type(optimizer).__name__, remedy)


def _wraps_another(optimizer: Optimizer) -> bool:
    """Return whether an optimizer holds another optimizer, which its copies would share."""
    held = list(vars(optimizer).values())
    held += [v for x in held if isinstance(x, (list, tuple)) for v in x]
    held += [v for x in held if isinstance(x, dict) for v in x.values()]
    if any(isinstance(x, Optimizer) and x is not optimizer for x in held):
        return True
    known = [inspect.getattr_static(type(optimizer), n, None) for n in ("param_groups", "state")]
    return any(isinstance(x, property) for x in known)
