"""Poles on many carts in the wind: Barto, Sutton and Anderson's control problem (1983), in torch.

Because of the wind, no policy keeps every pole upright.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GRAVITY, _CART, _POLE, _HALF = 9.8, 1.0, 0.1, 0.5
_FORCE, _SECONDS, _WIND = 10.0, 0.02, 12.0
_FAR, _STEEP = 2.4, math.radians(12)
_SPREAD = 0.05

LIMIT = 500
"""Steps after which an episode is stopped though the pole stands."""


def pushed(state: Tensor, right: Tensor, wind: Tensor) -> Tensor:
    r"""The state 0.02 s later, by Euler's method.

    .. math::
        a = \frac{F + m l \dot\theta^2 \sin\theta}{M + m}, \qquad
        \ddot\theta = \frac{g \sin\theta - a \cos\theta}
            {l (4/3 - m \cos^2\theta / (M + m))}, \qquad
        \ddot x = a - \frac{m l \ddot\theta \cos\theta}{M + m}

    Args:
        state: Position x (m), its velocity (m/s), angle of the pole from upright (rad), and its
            velocity (rad/s), shape [N, 4].
        right: Whether the cart is pushed to the right, or to the left, with 10 N; shape [N].
        wind: Force of the wind, in units of 12 N, shape [N].

    Returns:
        States of shape [N, 4].
    """
    _, speed, angle, spin = state.unbind(1)
    force = (2.0 * right - 1) * _FORCE + _WIND * wind
    sine, cosine, total = angle.sin(), angle.cos(), _CART + _POLE
    pull = (force + _POLE * _HALF * spin.square() * sine) / total
    turn = (_GRAVITY * sine - pull * cosine) / (_HALF * (4 / 3 - _POLE * cosine.square() / total))
    change = (speed, pull - _POLE * _HALF * turn * cosine / total, spin, turn)
    return state + _SECONDS * torch.stack(change, dim=1)


def fallen(state: Tensor) -> Tensor:
    """Whether the cart is 2.4 m away or the pole leans by 12 degrees, shape [N]."""
    return (state[:, 0].abs() > _FAR) | (state[:, 2].abs() > _STEEP)


def placed(noise: Tensor) -> Tensor:
    """First states, from numbers between 0 and 1, shape [..., 4]: all near the middle, at rest."""
    return _SPREAD * (2 * noise - 1)
