"""Every field of the configuration is an argument of the callback, from python and from YAML."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from hybrid_predict import HybridConfig, HybridPredict, SpectralUpdate
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import Predictor
from hybrid_predict.updates import AbstractUpdate

OTHERS = {"config", "log_dir", "skip_data"}


def test_the_callback_takes_every_field_of_the_configuration_by_name() -> None:
    parameters = dict(inspect.signature(HybridPredict).parameters)
    names = [f.name for f in fields(HybridConfig)]
    assert [name for name in parameters if name not in OTHERS] == names
    assert parameters.keys() - names == OTHERS
    methods = {"AbstractUpdate": AbstractUpdate, "Predictor": Predictor}
    hints = get_type_hints(HybridPredict.__init__, localns=methods)
    wanted = {
        **get_type_hints(HybridConfig),
        # Lightning's command line makes the objects that a file describes by these types.
        "updates": Mapping[str, str | AbstractUpdate],
        "predictors": Mapping[str, str | Predictor],
    }
    for name in names:
        assert hints[name] == wanted[name] | None
        assert parameters[name].default is None
    assert HybridPredict().config == HybridConfig()


def test_arguments_override_a_configuration() -> None:
    pattern: dict[str, Any] = {"full_steps": 2, "predict_steps": 1}
    config = HybridConfig(speedup=3, shadow=True)
    assert HybridPredict(2.0, config=config).config == HybridConfig(speedup=2.0, shadow=True)
    assert HybridPredict(config=config, **pattern).config == HybridConfig(shadow=True, **pattern)
    assert HybridPredict(2.0, config=pattern).config == HybridConfig(speedup=2.0)
    assert HybridPredict(enabled=True, config={"enabled": False}).config.enabled
    update = SpectralUpdate(share=0.5)
    assert HybridPredict(updates={"hidden": update}).config.updates["hidden"] is update


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"skip_data": "some"}, "skip_data"),
        ({"speedupp": 2}, r"HybridPredict: expected .* got 'speedupp'. Did you mean speedup\?"),
        ({"speedup": 2.0, "full_steps": 2, "predict_steps": 1}, "speedup"),
    ],
    ids=str,
)
def test_bad_arguments_name_themselves(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        HybridPredict(**arguments)
