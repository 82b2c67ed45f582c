"""Which engines of DeepSpeed are unwrapped, and what is said of the others, with stand-ins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine, UnsupportedSetupError

CONFIG = HybridConfig(total_steps=30)


class DeepSpeedEngine(nn.Module):
    """As the engine of DeepSpeed, of which other engines are subclasses."""

    def __init__(self, optimizer: Any, stage: int = 0) -> None:
        super().__init__()
        self.module, self.optimizer, self.stage = nn.Linear(2, 2), optimizer, stage

    def zero_optimization_stage(self) -> int:
        return self.stage


class PipelineEngine(DeepSpeedEngine):
    pass


class ZeroOptimizer:
    """As the optimizers of DeepSpeed, which are no torch optimizers."""


def test_the_model_inside_an_engine_of_stage_0_is_followed() -> None:
    model = DeepSpeedEngine(None)
    model.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = HybridEngine(model, model.optimizer, CONFIG)
    assert engine.mapper.names == ("weight", "bias")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (DeepSpeedEngine(ZeroOptimizer()), "stage 0 with ZeroOptimizer.*set torch_autocast"),
        (DeepSpeedEngine(ZeroOptimizer(), 1), "stage 1.*copies.*Use DistributedDataParallel"),
        (DeepSpeedEngine(ZeroOptimizer(), 2), "stage 2.*copies.*fully_shard.*ModelParallel"),
        (DeepSpeedEngine(ZeroOptimizer(), 3), "stage 3.*copies.*fully_shard.*ModelParallel"),
        (PipelineEngine(None), "PipelineEngine.*layers of its own.*fully_shard"),
    ],
)
def test_other_engines_are_refused_with_the_nearest_that_works(model: Any, words: str) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedSetupError, match=f"model: expected ZeRO stage 0 .*{words}"):
        HybridEngine(model, optimizer, CONFIG)


@pytest.mark.parametrize("mark", ["ds_id", "_hp_mapping"])
def test_a_model_taken_out_of_its_engine_is_refused_too(mark: str) -> None:
    net = nn.Linear(2, 2)
    setattr(net.weight, mark, 0)
    with pytest.raises(UnsupportedSetupError, match=r"got .weight..*copies.*fully_shard"):
        HybridEngine(net, torch.optim.SGD(net.parameters(), lr=0.1), CONFIG)
