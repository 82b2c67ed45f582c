"""Set-ups in which the callback cannot work are refused at the start of training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from lightning_models import Net, Ungated, fit

from hybrid_predict import UnsupportedSetupError


@pytest.mark.parametrize(
    ("make", "trainer_kwargs", "words"),
    [
        ("lbfgs", {}, "LBFGS"),
        ("plain", {"max_steps": -1, "max_epochs": -1, "max_time": "00:00:00:10"}, "max_steps"),
    ],
)
def test_setups_that_cannot_work_are_refused(
    make: str, trainer_kwargs: dict[str, Any], words: str
) -> None:
    model = Net("none")
    if make == "lbfgs":
        model.configure_optimizers = lambda: torch.optim.LBFGS(model.parameters())  # type: ignore[method-assign]
    with pytest.raises(UnsupportedSetupError, match=words):
        fit([Ungated()], model, **{"max_steps": 10, **trainer_kwargs})


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (object(), "single device"),
        (FSDPStrategy(), "ModelParallelStrategy"),
        (DeepSpeedStrategy.__new__(DeepSpeedStrategy), "DeepSpeedStrategy"),
    ],
)
def test_strategies_that_cannot_work_are_refused(strategy: Any, words: str) -> None:
    class Fake(L.Trainer):
        def __init__(self) -> None:
            pass

        strategy = None
        callbacks = ()

    trainer = Fake()
    type(trainer).strategy = strategy
    with pytest.raises(UnsupportedSetupError, match=words):
        Ungated().on_train_start(trainer, Net())


def test_a_trainer_of_another_package_is_refused() -> None:
    with pytest.raises(UnsupportedSetupError, match=r"lightning.pytorch or pytorch_lightning"):
        Ungated().on_train_start(SimpleNamespace(), Net())  # type: ignore[arg-type]
