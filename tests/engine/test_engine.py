"""The order of calls, what records say, and the ways out of a full step."""

import gc

import pytest
import torch
from loops import Bench, Run, make_config, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine
from hybrid_predict.errors import ConfigError

PREDICTING = 7
"""Full steps after which the next one verifies a predicted step."""


def hooks(bench):
    """How many hooks the engine holds on its model and optimizer."""
    optimizer = bench.optimizer
    found = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    modules = list(bench.model.modules())
    reading = [m._state_dict_hooks for m in modules]
    loading = [m._load_state_dict_pre_hooks for m in modules]
    return sum(map(len, (*found, *reading, *loading)))


def forget(bench):
    bench.engine = None


WAYS_OUT = {
    "detach": lambda bench: bench.engine.detach(),
    "with": lambda bench: bench.engine.__exit__(None, None, None),
    "del": forget,
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_leaving_a_step_early_undoes_its_predicted_steps_and_removes_hooks(way):
    bench = Bench(make_config(), "partly-trained")
    bench.train(PREDICTING)
    base = weights(bench.model)
    assert hooks(bench) == 2  # those of the optimizer
    bench.engine.before_step()
    assert not same_bits(weights(bench.model), base)
    bench.model.trainer = bench  # the engine is in a cycle with its model
    bench.loss().backward()
    assert hooks(bench) > 2
    WAYS_OUT[way](bench)
    gc.collect()
    assert same_bits(weights(bench.model), base)
    assert hooks(bench) == 0


def test_a_detached_engine_leaves_the_loop_plain():
    traces = []
    for config in (None, make_config()):
        bench = Bench(None)
        if config:
            bench.engine = HybridEngine(bench.model, bench.optimizer, config)
            bench.engine.detach()
        records = bench.train(8)
        traces.append(bench.trace())
    assert same_bits(*traces)
    assert {record.ticks for record in records} == {1}


def test_a_loss_may_be_a_tensor_a_number_or_missing():
    bench = Bench(make_config())
    found = []
    for loss in (torch.tensor([1.0, 3.0]), 2.5, None, torch.tensor(float("nan"))):
        bench.engine.before_step()
        bench.loss().backward()
        bench.optimizer.step()
        found.append(bench.engine.after_step(loss).loss)
    assert found[:3] == [2.0, 2.5, None]
    assert found[3] != found[3]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("model", "net"),
        ("config", {"speedup": 2}),
        ("config", HybridConfig()),
        ("optimizer", []),
        ("optimizer", torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)),
    ],
    ids=["model", "config", "total_steps", "no optimizer", "another model's"],
)
def test_an_engine_refuses_wrong_arguments(argument, value):
    bench = Bench(None)
    own = {"model": bench.model, "optimizer": bench.optimizer, "config": make_config()}
    with pytest.raises(ConfigError, match="expected"):
        HybridEngine(**{**own, argument: value})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, r"^config: .+, got 'NoneType'. Pass config=HybridConfig\(total_steps=...\)"),
        ({"speedup": 2}, "^HybridEngine: .+, got 'speedup'. Pass config=HybridConfig.speedup="),
    ],
)
def test_an_engine_without_a_configuration_is_told_how_to_get_one(given, told):
    bench = Bench(None)
    with pytest.raises(ConfigError, match=told):
        HybridEngine(bench.model, bench.optimizer, **given)


def test_a_model_without_hidden_matrices_trains_plainly_and_says_so(caplog):
    traces = []
    for plugged in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.LayerNorm(8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = HybridConfig(total_steps=12) if plugged else None
        run = Run(model, optimizer, config, lambda m, _: m(torch.tensor([[0, 1]])).square().sum())
        traces.append(weights(run.train(12).model))
    assert same_bits(*traces)
    assert "there is nothing to predict" in caplog.text
    assert run.engine.ledger.full_steps == run.engine.ledger.steps == 12
    (event,) = run.engine.ledger.events
    assert event["count"] > 1  # also where predicted steps were due
