"""Every field of the configuration is an argument of the callback, from python and from YAML."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from hybrid_predict import HybridConfig, HybridPredict, SpectralUpdate
from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import AbstractPredictor
from hybrid_predict.updates import AbstractUpdate

OTHERS = {"config", "log_dir", "skip_data"}


def test_the_callback_takes_every_field_of_the_configuration_by_name() -> None:
    parameters = dict(inspect.signature(HybridPredict).parameters)
    names = [f.name for f in fields(HybridConfig)]
    assert [name for name in parameters if name not in OTHERS] == names
    assert parameters.keys() - names == OTHERS
    methods = {"AbstractUpdate": AbstractUpdate, "AbstractPredictor": AbstractPredictor}
    hints = get_type_hints(HybridPredict.__init__, localns=methods)
    wanted = {
        **get_type_hints(HybridConfig),
        # Lightning's command line makes the objects that a file describes by these types.
        "updates": Mapping[str, str | AbstractUpdate],
        "predictors": Mapping[str, str | AbstractPredictor],
    }
    for name in names:
        assert hints[name] == wanted[name] | None
        assert parameters[name].default is None
    assert HybridPredict().config == HybridConfig()


GIVEN: dict[str, Any] = {
    "speedup": 2.0, "warmup_steps": 7, "cooldown_steps": 0.1, "total_steps": 50, "enabled": False,
    "shadow": True, "updates": {}, "predictors": {"head": "momentum"}, "kinds": {"net.*": "head"},
    "watch_loss": False, "max_overhead": 0.3, "history_dtype": "bfloat16",
}  # fmt: skip
PATTERN = {"full_steps": 2, "predict_steps": 1}


@pytest.mark.parametrize("given", [GIVEN, PATTERN], ids=["fields", "pattern"])
def test_fields_come_by_name_as_a_dict_or_in_a_configuration(given: dict[str, Any]) -> None:
    config = HybridConfig(**given)
    for callback in (
        HybridPredict(**given), HybridPredict(config=given), HybridPredict(config=config),
        HybridPredict(config=HybridConfig(speedup=3), **given),
    ):  # fmt: skip
        assert callback.config == config


def test_a_folder_that_is_no_path_is_refused() -> None:
    assert HybridPredict(log_dir=Path("here")).log_dir == "here"  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="log_dir: expected a path"):
        HybridPredict(log_dir=3)  # type: ignore[arg-type]


def test_arguments_override_a_configuration() -> None:
    config = HybridConfig(speedup=3, shadow=True)
    assert HybridPredict(2.0, config=config).config == HybridConfig(speedup=2.0, shadow=True)
    assert HybridPredict(config=config, **PATTERN).config == HybridConfig(shadow=True, **PATTERN)
    assert HybridPredict(2.0, config=PATTERN).config == HybridConfig(speedup=2.0)
    assert HybridPredict(enabled=True, config={"enabled": False}).config.enabled
    update = SpectralUpdate(share=0.5)
    assert HybridPredict(updates={"hidden": update}).config.updates["hidden"] is update


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"skip_data": "some"}, "skip_data"),
        ({"speedupp": 2}, r"HybridPredict: expected .* got 'speedupp'. Did you mean speedup\?"),
        ({"speedup": 2.0, "full_steps": 2, "predict_steps": 1}, "speedup"),
        ({"config": {"spedup": 2.0}}, r"config: expected .* got 'spedup'. Did you mean speedup\?"),
    ],
    ids=str,
)
def test_bad_arguments_name_themselves(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        HybridPredict(**arguments)
