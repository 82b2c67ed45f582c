"""The checks for third parties pass for what is registered, and find every broken promise."""

import random

import pytest
import torch
from cases import PREDICTOR_CASES, UPDATE_CASES

from hybrid_predict import (
    ConfigError,
    ContractError,
    MomentumPredictor,
    PredictorError,
    SpectralUpdate,
    WeightDelta,
)
from hybrid_predict.config import HISTORY_DTYPES
from hybrid_predict.forecast.predictors import PREDICTORS
from hybrid_predict.testing import check_placebos, check_predictor, check_update
from hybrid_predict.updates import UPDATES


def test_every_registered_class_has_a_case():
    assert {name: type(case) for name, case in PREDICTOR_CASES.items()} == PREDICTORS
    assert {name: type(case) for name, case in UPDATE_CASES.items()} == UPDATES


KNOWN = (
    *((check_predictor, PREDICTORS[name], case) for name, case in PREDICTOR_CASES.items()),
    *((check_update, UPDATES[name], case) for name, case in UPDATE_CASES.items()),
)


@pytest.mark.parametrize("history", HISTORY_DTYPES)
@pytest.mark.parametrize(("check", "kind", "case"), KNOWN)
def test_what_is_registered_keeps_its_contract(check, kind, case, history):
    check(case, history)
    check(kind(), history)


class MutablePredictor(MomentumPredictor):
    __dataclass_params__ = None


class Eager(MomentumPredictor):
    def forecast(self, state, rates):
        ones = tuple(torch.ones_like(x) for x in state.arrays["drift"])
        return WeightDelta(state.names, ones, tuple(rates))


class Uncounted(MomentumPredictor):
    def observe(self, state, displacement):
        super().observe(state, displacement)
        state.count = 1


class Impure(MomentumPredictor):
    def forecast(self, state, rates):
        state.count += 1
        return super().forecast(state, rates)


class Infinite(MomentumPredictor):
    def forecast(self, state, rates):
        delta = super().forecast(state, rates)
        return delta.scaled(float("inf")) if state.count else delta


class Blind(MomentumPredictor):
    def forecast(self, state, rates):
        return super().forecast(state, [1.0 for _ in rates])


class Secretive(MomentumPredictor):
    """What it knows is not in the arrays of its history."""

    def observe(self, state, displacement):
        super().observe(state, displacement)
        state.hidden = [x.clone() for x in state.arrays["drift"]]

    def forecast(self, state, rates):
        known = getattr(state, "hidden", [0.0 * x for x in state.arrays["drift"]])
        return WeightDelta(state.names, tuple(known), tuple(rates))


class Summarising(MomentumPredictor):
    def observe(self, state, displacement):
        super().observe(state, displacement)
        state.arrays["length"] = [displacement[0].norm()]


class FlatForecast(MomentumPredictor):
    def forecast(self, state, rates):
        flat = tuple(x.reshape(-1) for x in state.arrays["drift"])
        return WeightDelta(state.names, flat, (0.0,) * len(flat))


class MutableUpdate(SpectralUpdate):
    __dataclass_params__ = None


class Overshooting(SpectralUpdate):
    share = 1.5

    def __init__(self):
        object.__setattr__(self, "share", 1.5)


class Uphill(SpectralUpdate):
    def direction(self, *args):
        return [-x for x in super().direction(*args)]


class Long(SpectralUpdate):
    def direction(self, *args):
        return [2 * x for x in super().direction(*args)]


class Short(SpectralUpdate):
    def direction(self, *args):
        return super().direction(*args)[1:]


class Undefined(SpectralUpdate):
    def direction(self, *args):
        return [x / x.norm() for x in super().direction(*args)]


class Meddling(SpectralUpdate):
    def direction(self, state, *rest):
        for row in state.arrays["levels"]:
            row.mul_(0.5)
        return super().direction(state, *rest)


class Dice(SpectralUpdate):
    def direction(self, state, members, matrices):
        matrices = [x + 0.01 * random.random() for x in matrices]
        return super().direction(state, members, matrices)


class Remembering(SpectralUpdate):
    """What it knows is not in the arrays of its state."""

    def direction(self, state, members, matrices):
        known = state.__dict__.setdefault("hidden", {})
        mixed = [x + 0.5 * known.get(k, 0.0) for k, x in zip(members, matrices, strict=True)]
        known.update({k: x.clone() for k, x in zip(members, matrices, strict=True)})
        return super().direction(state, members, mixed)


class Shrinking(SpectralUpdate):
    def __post_init__(self):
        object.__setattr__(self, "bound", 0.5)


BROKEN = {
    MutablePredictor: (ContractError, "frozen dataclass"),
    Eager: (ContractError, "zero before any step"),
    Uncounted: (ContractError, "counts its displacements"),
    Impure: (ContractError, "counts its displacements|changes nothing"),
    Infinite: (ContractError, "finite"),
    Blind: (ContractError, "learning rate is 0"),
    Secretive: (ContractError, "survives being saved"),
    Summarising: (ContractError, "one array shaped like each parameter"),
    FlatForecast: (PredictorError, "shape"),
    MutableUpdate: (ContractError, "frozen dataclass"),
    Overshooting: (ContractError, "share in"),
    Uphill: (ContractError, "down the gradient"),
    Long: (ContractError, "unit length"),
    Short: (PredictorError, "4 directions"),
    Undefined: (ContractError, "finite directions"),
    Meddling: (ContractError, "without a gradient"),
    Dice: (ContractError, "survives being saved"),
    Remembering: (ContractError, "survives being saved"),
    Shrinking: (ContractError, "a bound of at least 1"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_promises_are_found(broken):
    error, words = BROKEN[broken]
    check = check_update if issubclass(broken, SpectralUpdate) else check_predictor
    with pytest.raises(error, match=f"^{broken.__name__}.*({words})"):
        check(broken())


CHECKS = {"predictor": check_predictor, "update": check_update}


@pytest.mark.parametrize("wrong", [None, "no such name", MomentumPredictor, torch.nn.Linear(2, 2)])
@pytest.mark.parametrize("argument", CHECKS)
def test_wrong_arguments_are_named(argument, wrong):
    with pytest.raises(ConfigError, match=f"^{argument}: expected an object of .*, got "):
        CHECKS[argument](wrong)


def test_the_remedy_says_what_to_write():
    for wrong, words in ((MomentumPredictor, "MomentumPredictor"), ("fitted", "FittedPredictor")):
        for check in (check_predictor, check_placebos):
            with pytest.raises(ConfigError, match=rf"Make one.*{words}\("):
                check(wrong)
    with pytest.raises(ConfigError, match="Derive its class from AbstractUpdate"):
        check_update(MomentumPredictor())
    with pytest.raises(ConfigError, match="history: expected one of float32, bfloat16"):
        check_predictor(MomentumPredictor(), "float16")


@pytest.mark.parametrize("steps", [None, 99, 1.5, True, "400"])
def test_placebos_need_steps_enough_to_tell(steps):
    with pytest.raises(ConfigError, match=r"^steps: expected an integer, at least 100"):
        check_placebos(MomentumPredictor(), steps)
