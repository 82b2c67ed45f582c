"""Configurations and the errors they are refused with."""

import dataclasses
import json
import math

import pytest

from hybrid_predict import (
    AlignmentHorizon,
    CheckpointError,
    ConfigError,
    HybridConfig,
    HybridEngine,
    HybridPredictError,
    MissingExtraError,
    SpectralPredictor,
    UnsupportedSetupError,
    UsageError,
)
from loops import Bench

INF, NAN = math.inf, math.nan

BAD = {
    "speedup": [0.5, 0, -1, INF, NAN, "2", None, True],
    "total_steps": [0, -3, 1.5, "many", True],
    "enabled": ["yes", 1, None],
    "shadow": ["no", 0],
    "count_flops": [1],
    "predictors": [["spectral"], "spectral", {"bias": "linear"}, None],
    "kinds": [{"*": "matrix"}, ["hidden"], None],
    "warmup_fraction": [-0.1, 1.1, NAN, "0"],
    "cooldown_fraction": [-0.1, 1.1, NAN],
    "period": [0, 1.0, "1", True],
    "correct_steps": [-1, 0.5],
    "policy": ["reset", None, 1],
    "history_dtype": ["float16", None, 32],
    "long_horizon": [-1.0, NAN, INF],
    "sample_every": [0, 2.5],
    "lag": [-1, 0.5, True],
    "patience": [0, INF],
    "loss_tolerance": [-0.1, NAN, "low"],
    "loss_check_every": [0],
}


@pytest.mark.parametrize(
    ("argument", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_bad_value_is_refused_by_name(argument, value):
    with pytest.raises(ConfigError, match=f"^{argument}: expected .*, got ") as caught:
        HybridConfig(**{argument: value})
    assert caught.value.argument == argument


def test_bad_values_are_tried_for_every_argument_that_can_be_checked_alone():
    names = {f.name for f in dataclasses.fields(HybridConfig)}
    assert names - BAD.keys() == {"horizon"}


@pytest.mark.parametrize(
    ("argument", "value", "known"),
    [
        ("predictors", {"hidden": "quadratic"}, "linear, momentum, spectral"),
        ("horizon", "adaptive", "alignment, fixed"),
    ],
)
def test_unknown_name_is_refused_with_the_known_ones(argument, value, known):
    bench = Bench()
    config = HybridConfig(total_steps=10, **{argument: value})
    with pytest.raises(ConfigError, match=f"^{argument}: expected one of {known}"):
        HybridEngine(bench.model, bench.optimizer, config)


def test_extremes_are_accepted():
    config = HybridConfig(
        speedup=1, total_steps=1, warmup_fraction=0.5, cooldown_fraction=0.5, lag=0
    )
    assert config.speedup == 1


def test_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        HybridConfig().speedup = 2


def test_configuration_becomes_plain_data():
    config = HybridConfig(
        predictors={"hidden": SpectralPredictor(), "head": "linear"},
        horizon=AlignmentHorizon(longest=7.0),
    )
    plain = json.loads(json.dumps(config.to_dict()))
    assert plain["predictors"]["head"] == "linear"
    assert plain["predictors"]["hidden"]["class"] == "SpectralPredictor"
    assert plain["horizon"]["longest"] == 7.0
    assert plain.keys() == {f.name for f in dataclasses.fields(HybridConfig)}


@pytest.mark.parametrize("cls", [ConfigError, UnsupportedSetupError])
def test_message_names_argument_expectation_finding_and_remedy(cls):
    error = cls("horizon", "a positive number", -1, "Raise it.")
    assert str(error) == "horizon: expected a positive number, got -1. Raise it."
    assert str(cls("horizon", "a positive number", -1)).endswith("got -1.")


def test_missing_extra_says_how_to_install_it():
    error = MissingExtraError("A figure", "cli")
    assert 'pip install "hybrid-predict[cli]"' in str(error)
    assert error.extra == "cli"


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (ConfigError, ValueError),
        (CheckpointError, ValueError),
        (UsageError, RuntimeError),
        (UnsupportedSetupError, RuntimeError),
        (MissingExtraError, ImportError),
    ],
)
def test_errors_can_be_caught_as_the_package_s_or_as_the_language_s(cls, builtin):
    assert issubclass(cls, HybridPredictError)
    assert issubclass(cls, builtin)
