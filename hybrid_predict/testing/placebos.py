"""Placebo forecasts without information, and a check that they gain no skill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from hybrid_predict.config import HybridConfig
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import (
    PREDICTORS,
    AbstractPredictor,
    MomentumPredictor,
    PredictorState,
)
from hybrid_predict.testing.contract import expect, require
from hybrid_predict.torch.deltas import WeightDelta
from hybrid_predict.torch.lists import upcast


@dataclass(frozen=True, kw_only=True)
class _Wrapped(AbstractPredictor):
    """A predictor with the history and the forecasts of ``inner``, which subclasses change."""

    inner: AbstractPredictor = field(default_factory=MomentumPredictor)
    gated: bool = True

    def init(self, names: Sequence[str], like: Sequence[Tensor], history: str) -> PredictorState:
        return self.inner.init(names, like, history)

    def observe(self, state: PredictorState, displacement: Sequence[Tensor]) -> None:
        self.inner.observe(state, displacement)

    def forecast(self, state: PredictorState, rates: Sequence[float | Tensor]) -> WeightDelta:
        delta = self.inner.forecast(state, rates)
        directions = self._changed(delta.directions, state)
        return WeightDelta(delta.names, tuple(directions), delta.factors)

    def _changed(self, directions: Sequence[Tensor], state: PredictorState) -> Sequence[Tensor]:
        return directions


@final
@dataclass(frozen=True, kw_only=True)
class RandomForecast(_Wrapped):
    r"""Forecasts with the length of another predictor, in a random direction per tensor.

    .. math:: \hat d = \|d\| \, \frac{r}{\|r\|}, \qquad r \sim \mathcal N(0, I)

    A direction lasts for ``hold`` displacements. It depends only on the seed and on the number of
    displacements, so a resumed run makes the same forecasts.

    Args:
        seed: Seed of the random directions, at least 0.
        hold: Number of displacements for which a direction lasts, at least 1.

    Raises:
        ConfigError: If ``seed`` or ``hold`` is out of range.
    """

    seed: int = 0
    hold: int = 16

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("hold", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(name, f"an integer, at least {least}", value)

    def _changed(self, directions: Sequence[Tensor], state: PredictorState) -> Sequence[Tensor]:
        mixed = np.random.SeedSequence([self.seed, state.count // self.hold])
        seed = int(mixed.generate_state(1, np.uint64)[0])
        generators = {d.device: torch.Generator(d.device) for d in directions}
        for generator in generators.values():
            generator.manual_seed(seed)
        drawn = (torch.empty_like(d).normal_(generator=generators[d.device]) for d in directions)
        return list(map(_as_long, drawn, directions))


@final
@dataclass(frozen=True, kw_only=True)
class NegatedForecast(_Wrapped):
    """Forecasts the opposite of another predictor."""

    def _changed(self, directions: Sequence[Tensor], state: PredictorState) -> Sequence[Tensor]:
        return [-d for d in directions]


@final
@dataclass(frozen=True, kw_only=True)
class ShuffledForecast(_Wrapped):
    r"""Forecasts each tensor's length with the direction of the next tensor.

    .. math:: \hat d_k = \|d_k\| \, \frac{R(d_{k+1})}{\|R(d_{k+1})\|}

    with R the entries of a tensor, from its middle on, in the shape of another tensor.
    """

    def _changed(self, directions: Sequence[Tensor], state: PredictorState) -> Sequence[Tensor]:
        return list(map(_read_as, directions, [*directions[1:], directions[0]]))


@final
@dataclass(frozen=True, kw_only=True)
class StaleForecast(_Wrapped):
    """Forecasts what another predictor forecast early in the run.

    Args:
        until: Number of displacements that ``inner`` observes, at least 1.
    """

    until: int = 20

    def observe(self, state: PredictorState, displacement: Sequence[Tensor]) -> None:
        """Add a displacement to the history of ``inner``, if it is one of the first."""
        if state.count < self.until:
            self.inner.observe(state, displacement)
        else:
            state.count += 1


PLACEBOS: dict[str, type[_Wrapped]] = {
    "random": RandomForecast,
    "negated": NegatedForecast,
    "shuffled": ShuffledForecast,
}
"""Placebos by name; their forecasts explain nothing of the following movement."""


def check_placebos(predictor: AbstractPredictor, steps: int = 400) -> None:
    """Check that a predictor has skill, and that its placebos have none.

    A small network is trained on noisy targets with the predictor and with each placebo of it,
    gated and not. So a predictor that cannot be told from its own placebos fails. This takes a few
    seconds. The caller's random generators are not changed.

    Args:
        predictor: The predictor; placebos have its lengths.
        steps: Number of steps of each training, at least 100: skill needs several windows of 20.

    Raises:
        ConfigError: If an argument is of another kind, or there are too few steps.
        ContractError: If the lower bound of the predictor's own skill ends at 0 or below, a gated
            placebo makes a predicted step, the lower bound of a placebo's skill exceeds 0, or stale
            forecasts have as much skill as fresh ones.

    Example:
        >>> from hybrid_predict import MomentumPredictor
        >>> check_placebos(MomentumPredictor(), steps=100)
    """
    expect("predictor", predictor, AbstractPredictor, PREDICTORS)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 100:
        raise ConfigError("steps", "an integer, at least 100", steps, "Skill needs windows.")
    fresh = _trained(_Wrapped(inner=predictor, gated=False), steps)
    promise = "skill of its own, which placebos do not have: a lower bound above 0"
    require(fresh.lower > 0, predictor, promise, fresh.lower)
    for name, placebo in PLACEBOS.items():
        made = _trained(placebo(inner=predictor), steps).made
        require(not made, predictor, f"no predicted step by its {name} placebo", made)
        bound = _trained(placebo(inner=predictor, gated=False), steps).highest
        promise = f"a lower bound of skill of its {name} placebo that is never above 0"
        require(bound <= 0, predictor, promise, bound)
    stale = _trained(StaleForecast(inner=predictor, gated=False), steps)
    skills = [fresh.skill, stale.skill]
    require(stale.skill < fresh.skill, predictor, "more skill than stale forecasts have", skills)


@final
class _Skill(NamedTuple):
    """Predicted steps of a run, its last skill, and the last and highest lower bound of skill."""

    made: int
    skill: float
    lower: float
    highest: float


def _trained(predictor: AbstractPredictor, steps: int) -> _Skill:
    """Train on noisy targets."""
    # Imported late, because the engine needs seconds to import.
    from hybrid_predict.engine import HybridEngine

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 48)
        model = nn.Sequential(*layers, nn.Tanh(), nn.Linear(48, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        predictors = {"hidden": predictor}
        config = HybridConfig(max_overhead=1e9, predictors=predictors).with_length(steps)
        engine, lower, highest = HybridEngine(model, optimizer, config), -1.0, -1.0
        while not engine.done:
            engine.before_step()
            inputs = torch.randn(32, 16)
            targets = inputs.sum(1, keepdim=True).sin() + 0.3 * torch.randn(32, 1)
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step(loss)
            lower = engine.ledger.skills.get("hidden", {"lower": -1.0})["lower"]
            highest = max(highest, lower)
        engine.detach()
    return _Skill(engine.ledger.predicted_steps, engine.ledger.skill or 0.0, lower, highest)


def _read_as(direction: Tensor, other: Tensor) -> Tensor:
    """Return the entries of another tensor in the shape and length of ``direction``."""
    entries = upcast(other).flatten().roll(other.numel() // 2)
    copies = -(-direction.numel() // max(1, entries.numel()))
    taken = entries.repeat(copies)[: direction.numel()].reshape(direction.shape)
    return _as_long(taken.to(direction.dtype), direction)


def _as_long(direction: Tensor, wanted: Tensor) -> Tensor:
    """Scale a direction in place to the length of another."""
    tiny = torch.finfo(direction.dtype).tiny
    length = torch.linalg.vector_norm(wanted)
    return direction.mul_(length / torch.linalg.vector_norm(direction).clamp_min(tiny))
