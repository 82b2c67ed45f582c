"""Which optimizers can be followed, and what torch's own do to weights beside their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor
from torch.optim import Optimizer

from hybrid_predict.errors import UnsupportedSetupError

_REFUSED = {
    "LBFGS": "it runs the model several times inside one step",
    "ScheduleFree": "it keeps a second set of weights",
    "Lookahead": "it keeps a second set of weights",
    "ZeroRedundancyOptimizer": "each rank updates its own parameters and overwrites the others",
    "SAM": "it moves the weights itself between two backward passes",
}

_DECOUPLED = ("AdamW", "Adafactor", "ASGD", "Muon")
"""Classes of torch whose weight decay is decoupled without an option that says so."""


@final
@dataclass(frozen=True)
class UpdateRule:
    """How an optimizer updates a parameter, besides following its gradient."""

    decay: float = 0.0  # fraction of the weights that decoupled decay removes in one update
    by_rate: bool = True  # whether that is per unit of learning rate
    coupled: float = 0.0  # multiple of the weights that coupled decay adds to the gradient
    relative: bool = False  # whether updates are as long as a share of the weights
    unknown: str = ""  # what could not be found out about the optimizer
    weight_decay: float = 0.0  # the option of this name with which the rule was found

    def at(self, group: Mapping[str, Any]) -> UpdateRule:
        """Return the rule for the group's ``weight_decay``, to which decay is proportional."""
        now = number(group, "weight_decay")
        if not self.weight_decay or now == self.weight_decay:
            return self
        share = now / self.weight_decay
        return replace(self, decay=share * self.decay, coupled=share * self.coupled)


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


def number(group: Mapping[str, Any], name: str) -> float:
    """Return the value of a group's option, or 0 if it is no number."""
    value = group.get(name)
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return float(value)
    return 0.0  # one on a device is not read, since that waits


def stated_rule(optimizer: Optimizer, group: Mapping[str, Any]) -> UpdateRule | None:
    """Return the rule that the options of torch's own classes state; None for other classes."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return None
    name = type(optimizer).__name__
    decay, more = number(group, "weight_decay"), number(group, "lambd")  # of ASGD
    # Without momentum, what is added to the gradient is subtracted from the weights.
    plain = name == "SGD" and not number(group, "momentum")
    decoupled = group.get("decoupled_weight_decay", plain or name in _DECOUPLED)
    return UpdateRule(
        decay=decay + more if decoupled else more,
        coupled=0.0 if decoupled else decay,
        relative=name == "Adafactor",
    )
