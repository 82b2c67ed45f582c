"""Configurations and the errors they are refused with."""

import dataclasses
import inspect
import json
import math
from functools import partial

import pytest
from loops import Bench

from hybrid_predict import HybridConfig, HybridEngine, SpectralUpdate
from hybrid_predict.audit import AuditConfig
from hybrid_predict.config import KINDS
from hybrid_predict.errors import ConfigError
from hybrid_predict.integrations.options import configuration

INF, NAN = math.inf, math.nan

BAD = {
    "speedup": [0.5, INF, NAN, "2", None, True],
    "total_steps": [0, 1.5, True],
    "enabled": ["yes", None],
    "shadow": [0],
    "watch_loss": ["no"],
    "updates": [["spectral"], {"bias": "spectral"}],
    "predictors": [["momentum"], {"bias": "momentum"}],
    "kinds": [{"*": "matrix"}, ["hidden"], {1: "hidden"}],
    "warmup_steps": [-0.1, 1.0, NAN, True],
    "cooldown_steps": [-1, None],
    "history_dtype": ["float16", 32],
    "max_overhead": [-0.1, NAN, "low"],
    "full_steps": [0, 1.5],
    "predict_steps": ["1"],
}

AUTO = {"speedup": "auto"}


@pytest.mark.parametrize(
    ("argument", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_bad_value_is_refused_by_name(argument, value):
    with pytest.raises(ConfigError, match=f"^{argument}: expected .*, got ") as caught:
        HybridConfig(**{argument: value})
    assert caught.value.argument == argument


def test_a_mapping_is_told_how_to_write_it():
    with pytest.raises(
        ConfigError, match=r"^updates: .* {\"hidden\": \"spectral\"}, or {} for none"
    ):
        HybridConfig(updates="spectral")


UNKNOWN = [
    ({"predictors": {"hidden": "quadratic"}}, "^predictors: expected one of fitted, momentum, or"),
    ({"predictors": {"hidden": []}}, "^predictors: expected one of fitted, momentum, or"),
    ({"updates": {"hidden": "spectal"}}, "^updates: .* one of spectral.* Did you mean spectral\\?"),
    ({"updates": {"hiden": "spectral"}}, "Did you mean hidden\\?"),
]


def engine(**given):
    bench = Bench()
    return HybridEngine(bench.model, bench.optimizer, HybridConfig(total_steps=10, **given))


@pytest.mark.parametrize(
    "made",
    [engine, partial(configuration, None), lambda **given: AuditConfig(hybrid=given)],
    ids=["engine", "callback", "audit"],
)
@pytest.mark.parametrize(("given", "told"), UNKNOWN)
def test_an_unknown_name_is_refused_with_the_known_ones_or_the_nearest(given, told, made):
    with pytest.raises(ConfigError, match=told):
        made(**given)


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"full_steps": 2}, "predict_steps"),
        ({"predict_steps": 1}, "full_steps"),
        ({"full_steps": 2, "predict_steps": 1, "speedup": 2}, "speedup"),
    ],
)
def test_a_pattern_is_said_whole_and_in_place_of_a_speedup(given, argument):
    with pytest.raises(ConfigError, match=f"^{argument}: expected"):
        HybridConfig(**given)


def test_configuration_becomes_plain_data():
    config = HybridConfig(updates={"hidden": SpectralUpdate(share=0.5), "head": "spectral"})
    plain = json.loads(json.dumps(config.to_dict()))
    assert plain["updates"]["head"] == "spectral"
    assert plain["updates"]["hidden"]["class"] == "SpectralUpdate"
    assert plain["updates"]["hidden"]["share"] == 0.5
    assert plain.keys() == {f.name for f in dataclasses.fields(HybridConfig)}


def test_an_unknown_name_is_told_with_the_nearest_that_is_known():
    with pytest.raises(ConfigError, match=r"got 'speedupp'. Did you mean speedup\?"):
        HybridConfig(speedupp=2)
    with pytest.raises(ConfigError, match="It has cooldown_steps, enabled"):
        HybridConfig(x=2)
    with pytest.raises(TypeError, match="positional"):
        HybridConfig(2)
    assert next(iter(inspect.signature(HybridConfig).parameters)) == "speedup"


@pytest.mark.parametrize(
    ("given", "always", "named"),
    [({}, {"hidden"}, {"head"}), ({"speedup": 3}, {"hidden"}, {"head"}), (AUTO, set(), set())],
)
def test_every_kind_is_predicted_and_some_always_unless_told_otherwise(given, always, named):
    config, only = HybridConfig(**given), {"head": "momentum"}
    assert list(config.active_predictors) == list(KINDS)
    assert config.always_predicted == always
    told = HybridConfig(**given, predictors=only)
    assert told.active_predictors == only
    assert told.always_predicted == named
    assert not HybridConfig(**given, predictors={}).active_predictors
