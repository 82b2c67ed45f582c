"""Where the engine must not change training, it changes no bit of it."""

import pytest

from cases import MODELS, OPTIMIZERS
from loops import NAN, Bench, make_config, same_bits, spoil_with

PASSIVE = {"disabled": {"enabled": False}, "shadow": {"shadow": True}}


@pytest.mark.parametrize("mode", PASSIVE)
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("mlp", name) for name in OPTIMIZERS] + [(name, "adamw") for name in MODELS if name != "mlp"],
)
def test_passive_engine_leaves_weights_state_and_randomness_alone(mode, model, optimizer):
    plain = Bench(None, model, optimizer)
    plain.train(12)
    expected = plain.trace()
    watched = Bench(make_config(**PASSIVE[mode]), model, optimizer)
    records = watched.train(12)
    assert same_bits(watched.trace(), expected)
    assert {record.ticks for record in records} == {1}


def test_shadow_forecasts_and_scores_without_moving_weights():
    bench = Bench(make_config(shadow=True))
    records = bench.train(20)
    assert bench.engine.ledger.forecasts == 18
    assert any(record.residual is not None for record in records)
    assert any(record.alignment is not None for record in records)


def test_disabled_engine_forecasts_nothing_and_registers_no_hook():
    bench = Bench(make_config(enabled=False))
    bench.train(5)
    assert bench.engine.ledger.forecasts == 0
    assert not bench.optimizer._optimizer_step_pre_hooks
    assert not bench.model._state_dict_hooks


@pytest.mark.parametrize("mode", PASSIVE)
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_passive_engine_lets_a_non_finite_loss_through(mode, steps):
    traces = []
    for config in (None, make_config(**PASSIVE[mode])):
        bench = Bench(config)
        bench.train(steps)
        bench.step(spoil_with(factor=NAN))
        bench.train(2)
        traces.append(bench.trace())
    assert same_bits(*traces)


@pytest.mark.parametrize(
    ("changes", "same"), [({"predictors": {}}, True), ({}, False)], ids=["idle", "forecasting"]
)
def test_active_engine_differs_from_a_plain_loop_only_by_its_forecasts(changes, same):
    traces = []
    for config in (None, make_config(**changes)):
        bench = Bench(config)
        bench.train(15)
        traces.append(bench.trace())
    assert same_bits(*traces) is same
