"""How an optimizer updates a parameter, besides following its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from torch import Tensor


@final
@dataclass(frozen=True)
class UpdateRule:
    """How an optimizer updates a parameter, besides following its gradient.

    Args:
        decay: Fraction of the weights that decoupled weight decay removes in one update, per unit
            of learning rate if ``by_rate``.
        by_rate: Whether ``decay`` is proportional to the learning rate.
        coupled: Multiple of the weights that coupled weight decay adds to the gradient.
        relative: Whether the length of an update is proportional to that of the weights.
        returns: Whether the optimizer moves weights back that other code has moved, because it
            keeps a second copy of them.
        sign: -1 if the optimizer goes along the gradient at a positive learning rate, else 1.
        unknown: What about the optimizer could not be found out, "" if nothing.
        basis: Name and value of each option that ``decay`` and ``coupled`` depend on, and whether
            they are proportional to it.
    """

    decay: float = 0.0
    by_rate: bool = True
    coupled: float = 0.0
    relative: bool = False
    returns: bool = False
    sign: float = 1.0
    unknown: str = ""
    basis: tuple[tuple[str, float, bool], ...] = ()

    @property
    def known(self) -> bool:
        """Whether gradient and weight decay explain the optimizer's updates."""
        return not self.unknown

    def at(self, group: Mapping[str, Any]) -> UpdateRule | None:
        """Return the rule for other values of the options; None if they need another search."""
        found = self
        for place, (name, value, proportional) in enumerate(self.basis):
            now = number(group, name)
            if now == value:
                continue
            if not proportional:
                return None
            ratio, basis = now / value, list(found.basis)
            basis[place] = (name, now, True)
            decay, coupled = ratio * found.decay, ratio * found.coupled
            found = replace(found, decay=decay, coupled=coupled, basis=tuple(basis))
        return found

    def fraction(self, rate: Any) -> Any:
        """Return the fraction of the weights that decoupled decay removes at a learning rate."""
        return self.decay * rate if self.by_rate and self.decay else self.decay


def number(group: Mapping[str, Any], name: str) -> float:
    """Return the value of a group's option, or 0 if it is no number."""
    value = group.get(name)
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return float(value)
    return 0.0  # one on a device is not read, since that waits


def numbers(group: Mapping[str, Any]) -> dict[str, float]:
    """Return the options of a group that are numbers other than 0, without the learning rate."""
    names = [name for name, value in group.items() if not isinstance(value, bool)]
    return {name: number(group, name) for name in names if name != "lr" and number(group, name)}


def settings(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the options of a group that determine its rule, but for the numbers in its basis.

    These are flags and strings. Of a number, only whether it is zero counts.
    """
    found: list[Any] = []
    for name, value in group.items():
        if value is None or isinstance(value, (bool, str)):
            found.append((name, value))
        elif name != "lr" and number(group, name):
            found.append(name)
    return tuple(found)
