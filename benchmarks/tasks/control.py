"""Proximal policy optimization on Barto, Sutton and Anderson's cart with a pole (1983), in wind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.tasks.base import Recipe, Task, grid, perceptron

Batch = tuple[dict[str, Any], Tensor]
"""A rollout, filled in when it is first trained on, and the rows of it that are trained on."""

_POLE = 0.1
_HALF = 0.5
_TOTAL = 1.0 + _POLE
_SPREAD = 0.05

LIMIT = 500  # steps after which an episode is stopped though the pole stands


def pushed(state: Tensor, right: Tensor, wind: Tensor) -> Tensor:
    r"""The state 0.02 s later, by Euler's method.

    .. math::
        a = \frac{F + m l \dot\theta^2 \sin\theta}{M + m}, \qquad
        \ddot\theta = \frac{g \sin\theta - a \cos\theta}
            {l (4/3 - m \cos^2\theta / (M + m))}, \qquad
        \ddot x = a - \frac{m l \ddot\theta \cos\theta}{M + m}

    States, [N, 4]: x (m), its velocity (m/s), angle from upright (rad), its velocity (rad/s). The
    push to the right or left is of 10 N, wind in units of 12 N, both of shape [N].
    """
    _, speed, angle, spin = state.unbind(1)
    force = (2.0 * right - 1) * 10.0 + 12.0 * wind
    sine = angle.sin()
    cosine = angle.cos()
    pull = (force + _POLE * _HALF * spin.square() * sine) / _TOTAL
    turn = (9.8 * sine - pull * cosine) / (_HALF * (4 / 3 - _POLE * cosine.square() / _TOTAL))
    change = (speed, pull - _POLE * _HALF * turn * cosine / _TOTAL, spin, turn)
    return state + 0.02 * torch.stack(change, dim=1)


def fallen(state: Tensor) -> Tensor:
    """Whether the cart is 2.4 m away or the pole leans by 12 degrees, shape [N]."""
    return (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > math.radians(12))


def placed(noise: Tensor) -> Tensor:
    """Return first states near the middle, at rest, from numbers in [0, 1], shape [..., 4]."""
    return _SPREAD * (2 * noise - 1)


class ActorCritic(nn.Module):
    """A policy and a value, nets of their own with tanh."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.policy = self._net(widths, 2, 0.01)
        self.value = self._net(widths, 1, 1.0)

    @staticmethod
    def _net(widths: tuple[int, ...], outputs: int, gain: float) -> nn.Sequential:
        start = partial(nn.init.orthogonal_, gain=2**0.5)
        net = nn.Sequential(*perceptron(4, *widths, outputs, activation=nn.Tanh, start=start))
        nn.init.orthogonal_(net[-1].get_parameter("weight"), gain)
        for layer in list(net)[::2]:
            nn.init.zeros_(layer.get_parameter("bias"))
        return net

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of both pushes, [N, 2], and values, [N], of states, [N, 4]."""
        return F.log_softmax(self.policy(states), dim=1), self.value(states).squeeze(1)

    def acts(self, states: Tensor, noise: Tensor) -> Tensor:
        """Whether to push right, drawn by uniform numbers of shape [N]."""
        return noise < F.softmax(self.policy(states), dim=1)[:, 1]


def advantages(surprise: Tensor, ended: Tensor, decay: float) -> Tensor:
    r"""Generalised advantage estimates (Schulman et al., 2016).

    .. math:: A_t = \delta_t + \gamma \lambda (1 - e_t) A_{t+1}

    Both of shape [T, N]: surprises, and whether the episode ended, as 0 or 1.
    """
    gains = torch.zeros_like(surprise)
    running = torch.zeros_like(surprise[0])
    for t in reversed(range(len(surprise))):
        running = surprise[t] + decay * (1 - ended[t]) * running
        gains[t] = running
    return gains


@dataclass(frozen=True, kw_only=True)
class ControlTask(Task):
    """Keep poles upright with proximal policy optimization (Schulman et al., 2017).

    A rollout of ``horizon`` steps of ``carts`` is made with the weights before its first full step,
    by random numbers drawn before, and trained on ``epochs`` times.
    """

    metric = "negative mean return over one episode"
    small: ClassVar = {"epochs": 2}
    kinds: ClassVar = {"policy.4.weight": "head"}

    steps: int = 2000
    recipe: Recipe = Recipe(
        learning_rate=3e-4,
        rates=grid(0.0003, 5),
        betas=(0.9, 0.999),
        weight_decay=0.0,
        gradient_clip=0.5,
        schedule="constant",
        warmup_fraction=0.0,
    )
    widths: tuple[int, ...] = (64, 64)
    carts: int = 8
    horizon: int = 32
    epochs: int = 20
    batch_size: int = 256
    discount: float = 0.98
    trace: float = 0.8
    clip: float = 0.2
    value_weight: float = 0.5
    judged: int = 128

    def net(self) -> nn.Module:
        return ActorCritic(self.widths)

    def batches(self, seed: int) -> Iterator[Batch]:
        """Rows of one rollout after the other, each rollout several times in a new order."""
        generator = torch.Generator().manual_seed(seed)
        state = placed(torch.rand(self.carts, 4, generator=generator))
        carts = {"state": state, "age": torch.zeros(self.carts)}
        shape = (self.horizon, self.carts)
        while True:
            noise = torch.rand(shape, generator=generator)
            wind = torch.randn(shape, generator=generator)
            starts = placed(torch.rand(*shape, 4, generator=generator))
            rollout = {"carts": carts, "drawn": (noise, wind, starts)}
            for _ in range(self.epochs):
                order = torch.randperm(self.horizon * self.carts, generator=generator)
                for rows in order.split(self.batch_size):
                    yield rollout, rows

    @torch.no_grad()
    def _roll(self, model: ActorCritic, rollout: dict[str, Any]) -> None:
        carts = rollout["carts"]
        seen = []
        state = carts["state"]
        age = carts["age"]
        for noise, wind, starts in zip(*rollout["drawn"], strict=True):
            right = model.acts(state, noise)
            then = pushed(state, right, wind)
            age = age + 1
            fell = fallen(then)
            ended = fell | (age >= LIMIT)
            seen.append((state, right.long(), then, fell.float(), ended.float()))
            state = torch.where(ended[:, None], starts, then)
            age = age.masked_fill(ended, 0.0)
        carts.update(state=state, age=age)
        states, actions, thens, fell, ended = (torch.stack(x) for x in zip(*seen, strict=True))
        actions = actions.flatten()
        states = states.flatten(0, 1)
        chances, values = model(states)
        after = model(thens.flatten(0, 1))[1].view_as(fell)
        surprise = 1.0 + self.discount * (1 - fell) * after - values.view_as(fell)
        gains = advantages(surprise, ended, self.discount * self.trace).flatten()
        taken = chances.gather(1, actions[:, None])[:, 0]
        rollout["rows"] = (states, actions, taken, gains, gains + values)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        rollout, rows = batch
        if "rows" not in rollout:
            self._roll(model, rollout)  # type: ignore[arg-type]
        states, actions, before, gains, returns = (x[rows] for x in rollout["rows"])
        chances, values = model(states)
        ratio = (chances.gather(1, actions[:, None])[:, 0] - before).exp()
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        clipped = ratio.clamp(1 - self.clip, 1 + self.clip)
        policy = -torch.minimum(ratio * gains, clipped * gains).mean()
        return policy + self.value_weight * F.mse_loss(values, returns)

    def evaluate(self, model: nn.Module) -> float:
        assert isinstance(model, ActorCritic)
        generator = torch.Generator().manual_seed(0)
        state = placed(torch.rand(self.judged, 4, generator=generator))
        standing = torch.ones(self.judged, dtype=torch.bool)
        steps = torch.zeros(self.judged)
        for _ in range(LIMIT):
            right = model.acts(state, torch.rand(self.judged, generator=generator))
            state = pushed(state, right, torch.randn(self.judged, generator=generator))
            steps += standing
            standing &= ~fallen(state)
            if not standing.any():
                break
        return -float(steps.mean())


PPO = ControlTask("ppo", "proximal policy optimization on a cart with a pole, in the wind")
