"""Optimizers that cannot be followed."""

from __future__ import annotations

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
    "SAM": "it moves the weights itself between two backward passes",
}


def inner_optimizer(given: Sequence[Any]) -> str:
    """Tell where the torch optimizer is that objects of another class stand for, or ""."""
    for other in given:
        if of_deepspeed(other):
            return DEEPSPEED
        held = getattr(other, "__dict__", {})
        inner = [name for name, value in held.items() if isinstance(value, Optimizer)]
        if inner and not isinstance(other, Optimizer):
            return f"Pass the optimizer that it wraps, its attribute {inner[0]!r}."
    return ""


def check_supported(optimizer: Optimizer) -> None:
    """Raise `UnsupportedSetupError` for a refused class, a wrapper, or a group without a rate."""
    for cls in type(optimizer).__mro__:
        for refused, reason in _REFUSED.items():
            if refused in cls.__name__:
                raise refusal(optimizer, reason)
    held = list(vars(optimizer).values())
    held += [x for each in held if isinstance(each, (list, tuple)) for x in each]
    if any(isinstance(x, Optimizer) and x is not optimizer for x in held):
        remedy = "pass the inner optimizer to the engine, and step the outer one as before"
        raise refusal(optimizer, "it wraps another optimizer", remedy)
    if any(group.get("lr") is None for group in optimizer.param_groups):
        expected = "a learning rate 'lr' in every parameter group"
        remedy = (
            "Set lr to a number; some optimizers also need an option that turns off their "
            "own choice of the learning rate."
        )
        got = type(optimizer).__name__
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
