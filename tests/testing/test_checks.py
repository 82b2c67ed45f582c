"""The checks for third parties pass for what is registered, and find every broken promise."""

import random
from dataclasses import dataclass, replace

import pytest
import torch
from cases import BACKEND_CASES, HISTORY_CASES, PREDICTOR_CASES, UPDATE_CASES

from hybrid_predict import (
    ConfigError,
    ContractError,
    MomentumPredictor,
    PredictorError,
    SpectralUpdate,
    WeightDelta,
)
from hybrid_predict.forecast.predictors import PREDICTORS
from hybrid_predict.tensors import BACKENDS, TorchBackend
from hybrid_predict.testing import check_backend, check_placebos, check_predictor, check_update
from hybrid_predict.testing.backends import TORCH
from hybrid_predict.testing.predictors import PREDICTOR_CHECKS
from hybrid_predict.testing.updates import UPDATE_CHECKS
from hybrid_predict.updates import UPDATES


def test_every_registered_class_has_a_case():
    assert {name: type(case) for name, case in PREDICTOR_CASES.items()} == PREDICTORS
    assert {name: type(case) for name, case in UPDATE_CASES.items()} == UPDATES
    assert {name: type(case.backend) for name, case in BACKEND_CASES.items()} == BACKENDS


@pytest.mark.parametrize("backend", HISTORY_CASES)
@pytest.mark.parametrize("check", PREDICTOR_CHECKS)
@pytest.mark.parametrize("name", PREDICTORS)
def test_predictors_keep_their_contract(name, check, backend):
    for predictor in (PREDICTOR_CASES[name], PREDICTORS[name]()):
        PREDICTOR_CHECKS[check](predictor, HISTORY_CASES[backend])


@pytest.mark.parametrize("backend", HISTORY_CASES)
@pytest.mark.parametrize("check", UPDATE_CHECKS)
@pytest.mark.parametrize("name", UPDATES)
def test_updates_keep_their_contract(name, check, backend):
    for update in (UPDATE_CASES[name], UPDATES[name]()):
        UPDATE_CHECKS[check](update, HISTORY_CASES[backend])


@pytest.mark.parametrize("name", HISTORY_CASES)
def test_backends_keep_their_contract(name):
    check_backend(HISTORY_CASES[name])


class MutablePredictor(MomentumPredictor):
    __dataclass_params__ = None


class Eager(MomentumPredictor):
    def forecast(self, state, rates):
        ones = tuple(torch.ones_like(x) for x in state.arrays["drift"])
        return WeightDelta(state.names, ones, tuple(rates))


class Uncounted(MomentumPredictor):
    def observe(self, state, displacement, backend):
        super().observe(state, displacement, backend)
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

    def observe(self, state, displacement, backend):
        super().observe(state, displacement, backend)
        state.hidden = [x.clone() for x in state.arrays["drift"]]

    def forecast(self, state, rates):
        known = getattr(state, "hidden", [0.0 * x for x in state.arrays["drift"]])
        return WeightDelta(state.names, tuple(known), tuple(rates))


class Summarising(MomentumPredictor):
    def observe(self, state, displacement, backend):
        super().observe(state, displacement, backend)
        state.arrays["length"] = [backend.norms(displacement)]


class FlatForecast(MomentumPredictor):
    def forecast(self, state, rates):
        flat = tuple(x.reshape(-1) for x in state.arrays["drift"])
        return WeightDelta(state.names, flat, (0.0,) * len(flat))


BROKEN_PREDICTORS = [
    (MutablePredictor(), ContractError, "frozen dataclass"),
    (Eager(), ContractError, "zero before any step"),
    (Uncounted(), ContractError, "counts its displacements"),
    (Impure(), ContractError, "counts its displacements|changes nothing"),
    (Infinite(), ContractError, "finite"),
    (Blind(), ContractError, "learning rate is 0"),
    (Secretive(), ContractError, "survives being saved"),
    (Summarising(), ContractError, "one array shaped like each parameter"),
    (FlatForecast(), PredictorError, "shape"),
]


def class_name(value):
    return type(value).__name__ if isinstance(value, (MomentumPredictor, SpectralUpdate)) else ""


@pytest.mark.parametrize(("predictor", "error", "words"), BROKEN_PREDICTORS, ids=class_name)
def test_broken_predictors_are_found(predictor, error, words):
    with pytest.raises(error, match=f"^{type(predictor).__name__}.*({words})"):
        check_predictor(predictor)


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


class Careless(SpectralUpdate):
    def direction(self, state, members, average, gradients, cosines, backend):
        found = super().direction(state, members, average, gradients, cosines, backend)
        gradients[0].zero_()
        return found


class Undefined(SpectralUpdate):
    def direction(self, *args):
        return [x / x.norm() for x in super().direction(*args)]


class Restless(SpectralUpdate):
    def lengths(self, state, members, own):
        return super().lengths(state, members, own) + 1.0


class Meddling(SpectralUpdate):
    def direction(self, state, members, *rest):
        for row in state.arrays["rows"]:
            row.mul_(0.5)
        return super().direction(state, members, *rest)


class Dice(SpectralUpdate):
    def lengths(self, state, members, own):
        return super().lengths(state, members, own) * random.random()


BROKEN_UPDATES = [
    (MutableUpdate(), "frozen dataclass"),
    (Overshooting(), "share in"),
    (Uphill(), "down the gradient"),
    (Long(), "unit length"),
    (Short(), "4 directions"),
    (Careless(), "does not change gradients"),
    (Undefined(), "finite directions"),
    (Restless(), "a length of 0"),
    (Meddling(), "without a gradient"),
    (Dice(), "survives being saved"),
]


@pytest.mark.parametrize(("update", "words"), BROKEN_UPDATES, ids=class_name)
def test_broken_updates_are_found(update, words):
    with pytest.raises(ContractError, match=f"^{type(update).__name__}.*{words}"):
        check_update(update)


@dataclass
class Broken(TorchBackend):
    """One kernel of the torch backend gives something else."""

    kernel: str = ""

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        if name == "kernel" or name != object.__getattribute__(self, "kernel"):
            return value
        return lambda *args: [1.5 * x + 1 for x in value(*args)]


KERNELS = ["zeros", "constants", "copy", "average", "norms", "distances", "dots"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_broken_backends_are_found(kernel):
    with pytest.raises(ContractError, match=f"^Broken.*{kernel}"):
        check_backend(replace(TORCH, backend=Broken(kernel)))


class Deaf(TorchBackend):
    """Stores every history as its own type, whatever is asked for."""

    def zeros(self, like, history=None):
        return super().zeros(like)


def test_a_backend_that_ignores_the_history_asked_for_is_found():
    with pytest.raises(ContractError, match="zeros, float32"):
        check_backend(replace(TORCH, backend=Deaf("bfloat16")))


WRONG = [
    None,
    3,
    "fitted",
    "spectral",
    "no such name",
    MomentumPredictor,
    SpectralUpdate,
    torch.nn.Linear(2, 2),
    {},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize(
    ("argument", "check"),
    [
        ("predictor", check_predictor),
        ("predictor", check_placebos),
        ("update", check_update),
        ("case", check_backend),
        ("case", lambda x: check_predictor(MomentumPredictor(), x)),
        ("case", lambda x: check_update(SpectralUpdate(), x)),
        ("backend", lambda x: replace(TORCH, backend=x)),
        ("load", lambda x: replace(TORCH, load=None if callable(x) else x)),
        ("dtypes", lambda x: replace(TORCH, dtypes=x)),
    ],
)
def test_wrong_arguments_are_named(argument, check, wrong):
    with pytest.raises(ConfigError, match=f"^{argument}: expected (an? |names ).*, got "):
        check(wrong)


def test_a_class_in_place_of_an_object_and_a_name_are_told_what_to_write():
    for given, words in ((MomentumPredictor, "MomentumPredictor"), ("fitted", "FittedPredictor")):
        with pytest.raises(ConfigError, match=rf"Make one.*{words}\("):
            check_predictor(given)
    with pytest.raises(ConfigError, match=r"Make one: BackendUnderTest\("):
        check_backend(TorchBackend())
    with pytest.raises(ConfigError, match="Derive its class from AbstractUpdate"):
        check_update(MomentumPredictor())


@pytest.mark.parametrize("steps", [None, 0, 10, 99, 1.5, True, "400"])
def test_placebos_need_steps_enough_to_tell(steps):
    with pytest.raises(ConfigError, match=r"^steps: expected an integer, at least 100"):
        check_placebos(MomentumPredictor(), steps)
