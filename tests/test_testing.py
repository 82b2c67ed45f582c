"""The checks for third parties pass for what is registered and find every broken promise."""

import random
from dataclasses import dataclass, replace

import pytest
import torch

from cases import BACKEND_CASES, HORIZON_CASES, PREDICTOR_CASES
from hybrid_predict import (
    ContractError,
    FixedHorizon,
    MomentumPredictor,
    PredictorError,
    WeightDelta,
)
from hybrid_predict.backends import TorchBackend
from hybrid_predict.testing import check_backend, check_horizon, check_predictor
from hybrid_predict.testing.backends import TORCH


@pytest.mark.parametrize("name", PREDICTOR_CASES)
def test_registered_predictors_pass(name):
    check_predictor(PREDICTOR_CASES[name].predictor)


@pytest.mark.parametrize("name", HORIZON_CASES)
def test_registered_horizon_rules_pass(name):
    check_horizon(HORIZON_CASES[name].rule)


@pytest.mark.parametrize("name", BACKEND_CASES)
def test_registered_backends_pass(name):
    check_backend(BACKEND_CASES[name])


class Mutable(MomentumPredictor):
    """Not a value: it counts in itself."""

    __dataclass_params__ = None


class Eager(MomentumPredictor):
    def forecast(self, state, horizons, *, closed_loop=True):
        ones = tuple(torch.ones_like(x) for x in state.direction)
        return WeightDelta(state.names, ones, tuple(horizons))


class Impure(MomentumPredictor):
    def forecast(self, state, horizons, *, closed_loop=True):
        state.count += 1
        return super().forecast(state, horizons, closed_loop=closed_loop)


class Infinite(MomentumPredictor):
    def forecast(self, state, horizons, *, closed_loop=True):
        delta = super().forecast(state, horizons, closed_loop=closed_loop)
        return delta.scaled(1e300 * 1e300) if state.count else delta


class Blind(MomentumPredictor):
    def forecast(self, state, horizons, *, closed_loop=True):
        return super().forecast(state, [1.0 for _ in horizons], closed_loop=closed_loop)


class Forgetful(MomentumPredictor):
    def init(self, names, like, backend):
        state = super().init(names, like, backend)
        state.load_state_dict = lambda saved, backend: None
        return state


class Secretive(MomentumPredictor):
    def init(self, names, like, backend):
        state = super().init(names, like, backend)
        plain = state.state_dict
        state.state_dict = lambda: {**plain(), "source": random.Random()}
        return state


class Flat(MomentumPredictor):
    def forecast(self, state, horizons, *, closed_loop=True):
        flat = tuple(x.reshape(-1) for x in state.direction)
        return WeightDelta(state.names, flat, (0.0,) * len(flat))


@pytest.mark.parametrize(
    ("predictor", "error", "words"),
    [
        (Mutable(), ContractError, "frozen dataclass"),
        (Eager(), ContractError, "zero before any step"),
        (Impure(), ContractError, "changes nothing"),
        (Infinite(), ContractError, "finite"),
        (Blind(), ContractError, "horizon 0"),
        (Forgetful(), ContractError, "survives being saved"),
        (Secretive(), ContractError, "weights_only"),
        (Flat(), PredictorError, "shape"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, MomentumPredictor) else "",
)
def test_broken_predictors_are_found(predictor, error, words):
    with pytest.raises(error, match=f"^{type(predictor).__name__}.*{words}"):
        check_predictor(predictor)


class Dice(FixedHorizon):
    def update(self, state, alignments, kinds):
        return [random.random() for _ in state]


class InPlace(FixedHorizon):
    def reject(self, state, kinds):
        state[:] = [s / 2 for s in state]
        return state


class Negative(FixedHorizon):
    def horizons(self, state):
        return [-1.0 for _ in state]


class Stubborn(FixedHorizon):
    def reject(self, state, kinds):
        return [s + 1 for s in state]


class Contrary(FixedHorizon):
    def update(self, state, alignments, kinds):
        return [max(0.0, 1.0 - c) for c in alignments]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Dice(), "same states"),
        (InPlace(), "arguments"),
        (Negative(), "at least 0"),
        (Stubborn(), "after a rejection"),
        (Contrary(), "better alignment"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, FixedHorizon) else "",
)
def test_broken_horizon_rules_are_found(rule, words):
    with pytest.raises(ContractError, match=f"^{type(rule).__name__}.*{words}"):
        check_horizon(rule)


@dataclass
class Broken(TorchBackend):
    """One kernel of the torch backend gives something else."""

    kernel: str = ""

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        if name == "kernel" or name != object.__getattribute__(self, "kernel"):
            return value
        return lambda *args: [1.5 * x + 1 for x in value(*args)]


@pytest.mark.parametrize("kernel", ["zeros", "copy", "difference", "average", "norms", "dots"])
def test_broken_backends_are_found(kernel):
    with pytest.raises(ContractError, match=f"^Broken.*{kernel}"):
        check_backend(replace(TORCH, backend=Broken(kernel)))
