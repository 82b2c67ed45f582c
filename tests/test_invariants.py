"""Outside a full step the parameters are base weights, however the loop gets out of it."""

import copy
import gc
import weakref

import pytest
import torch

from cases import MODELS
from hybrid_predict import ConfigError, HybridConfig, HybridEngine, UsageError, Verdict
from hybrid_predict.phases import Phase
from loops import Bench, make_config, same_bits, weights

FORECASTING = 6


@pytest.fixture(params=MODELS)
def bench(request):
    """A run whose next full steps are taken at forecast points."""
    bench = Bench(make_config(), request.param)
    bench.train(FORECASTING)
    return bench


@pytest.fixture
def inside(bench):
    """The same, inside a full step, with the base weights of that step."""
    base = weights(bench.model)
    bench.engine.before_step()
    assert not same_bits(weights(bench.model), base)
    return bench, base


def hooks(bench):
    """How many hooks the engine holds on its model and optimizer."""
    optimizer = bench.optimizer
    found = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return sum(map(len, (*found, bench.model._state_dict_hooks)))


def forget(bench):
    bench.engine = None


WAYS_OUT = {
    "detach": lambda bench: bench.engine.detach(),
    "with": lambda bench: bench.engine.__exit__(None, None, None),
    "del": forget,
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_leaving_a_step_early_restores_base_weights_and_removes_hooks(inside, way):
    bench, base = inside
    bench.loss().backward()
    assert hooks(bench) > 0
    WAYS_OUT[way](bench)
    gc.collect()
    assert same_bits(weights(bench.model), base)
    assert hooks(bench) == 0


def test_breaking_out_of_a_with_block_restores_base_weights():
    bench = Bench(make_config())
    with bench.engine as engine:
        while not engine.done:
            base = weights(bench.model)
            engine.before_step()
            if engine.clock.full_steps == FORECASTING:
                break
            bench.loss().backward()
            bench.optimizer.step()
            bench.optimizer.zero_grad()
            engine.after_step()
    assert same_bits(weights(bench.model), base)
    assert hooks(bench) == 0


def test_function_that_raises_takes_its_engine_with_it():
    outer = Bench(None)
    seen = {}

    def train():
        engine = HybridEngine(outer.model, outer.optimizer, make_config())
        for _ in range(FORECASTING):
            engine.before_step()
            outer.loss().backward()
            outer.optimizer.step()
            outer.optimizer.zero_grad()
            engine.after_step()
        seen["base"] = weights(outer.model)
        engine.before_step()
        seen["moved"] = weights(outer.model)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        train()
    del caught
    gc.collect()
    assert not same_bits(seen["moved"], seen["base"])
    assert same_bits(weights(outer.model), seen["base"])
    assert hooks(outer) == 0


def test_an_engine_that_its_model_can_reach_is_collected_with_it():
    bench = Bench(make_config())
    bench.model.trainer = bench
    engine = weakref.ref(bench.engine)
    del bench
    gc.collect()
    assert engine() is None


def test_detached_engine_leaves_the_loop_plain():
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


def test_exception_in_forward_is_survived_by_the_next_step(bench):
    twin = copy.deepcopy(weights(bench.model))
    bench.engine.before_step()
    moved = weights(bench.model)
    bench.engine.before_step()
    assert same_bits(weights(bench.model), moved)
    assert not same_bits(moved, twin)
    reasons = [event["reason"] for event in bench.engine.ledger.events]
    assert reasons == ["a full step was left before its update"]


def test_step_that_was_left_changes_nothing_about_the_run():
    traces = []
    for leave in (False, True):
        bench = Bench(make_config())
        bench.train(FORECASTING)
        if leave:
            bench.engine.before_step()
        bench.train(4)
        ledger = bench.engine.ledger
        assert ledger.forecasts == ledger.accepted + ledger.shrunk + ledger.rejected
        traces.append(bench.trace())
    assert same_bits(*traces)


def test_base_weights_are_shown_inside_a_step_and_the_forecast_returns(inside):
    bench, base = inside
    moved = weights(bench.model)
    bench.loss().backward()
    with bench.engine.base_weights():
        assert same_bits(weights(bench.model), base)
        with bench.engine.base_weights():
            assert same_bits(weights(bench.model), base)
        assert same_bits(weights(bench.model), base)
    assert same_bits(weights(bench.model), moved)


def test_base_weights_return_to_the_forecast_after_an_exception(inside):
    bench, _ = inside
    moved = weights(bench.model)
    with pytest.raises(ZeroDivisionError), bench.engine.base_weights():
        raise ZeroDivisionError
    assert same_bits(weights(bench.model), moved)


def test_base_weights_change_nothing_outside_a_step(bench):
    base = weights(bench.model)
    with bench.engine.base_weights():
        assert same_bits(weights(bench.model), base)
    assert same_bits(weights(bench.model), base)


def test_state_dict_inside_a_step_holds_base_weights_without_moving_any(inside):
    bench, base = inside
    moved = weights(bench.model)
    saved = {k: v.clone() for k, v in bench.model.state_dict().items()}
    assert all(same_bits(saved[name], value) for name, value in base.items())
    assert same_bits(weights(bench.model), moved)
    if hasattr(bench.model, "embedding"):
        assert same_bits(saved["head.weight"], saved["embedding.weight"])


def test_engine_state_inside_a_step_is_that_of_the_moment_before(bench):
    before = bench.engine.state_dict()
    bench.engine.before_step()
    during = bench.engine.state_dict()
    for state in (before, during):
        state["ledger"] = {k: v for k, v in state["ledger"].items() if not k.endswith("seconds")}
        state["ledger"].pop("overhead_fraction")
        state["ledger"].pop("estimated_seconds_saved")
    assert same_bits(during, before)


def test_accumulated_step_with_interruptions_is_the_same_step():
    traces = []
    for interrupt in (False, True):
        bench = Bench(make_config(), "tied")
        for _ in range(10):
            bench.engine.before_step()
            for _ in range(2):
                (bench.loss() / 2).backward()
                bench.taken += 1
                if interrupt:
                    bench.model.state_dict()
                    with bench.engine.base_weights(), torch.no_grad():
                        bench.loss()
            bench.optimizer.step()
            bench.optimizer.zero_grad()
            bench.engine.after_step()
        traces.append(bench.trace())
    assert same_bits(*traces)


def test_step_without_an_update_ends_at_base_weights_and_rejects_its_forecast(inside):
    bench, base = inside
    record = bench.engine.after_step(bench.loss())
    assert same_bits(weights(bench.model), base)
    assert (record.verdict, record.horizon, record.ticks) == (Verdict.REJECTED, 0, 1)


def test_updates_that_never_follow_a_forecast_hand_over():
    bench = Bench(make_config(patience=4))
    bench.train(5)
    base = weights(bench.model)
    # As in a loop that passes over every batch whose loss is not finite at the forecast point.
    for left in range(3, -1, -1):
        bench.engine.before_step()
        assert not same_bits(weights(bench.model), base)
        bench.engine.after_step(bench.loss())
        assert (bench.engine.clock.phase is Phase.FULL) == (left == 0)
    bench.engine.before_step()
    assert same_bits(weights(bench.model), base)


def test_optimizer_may_forget_gradients_before_the_step_is_closed(inside):
    bench, base = inside
    loss = bench.loss()
    loss.backward()
    bench.optimizer.step()
    bench.optimizer.zero_grad(set_to_none=True)
    record = bench.engine.after_step(loss)
    assert record.alignment is not None
    assert not same_bits(weights(bench.model), base)


def test_after_step_needs_before_step():
    engine = Bench(make_config()).engine
    with pytest.raises(UsageError, match="before_step"):
        engine.after_step()


def test_before_step_after_an_update_needs_after_step(inside):
    bench, _ = inside
    bench.loss().backward()
    bench.optimizer.step()
    with pytest.raises(UsageError, match="after_step"):
        bench.engine.before_step()


@pytest.mark.parametrize(
    ("argument", "value"),
    [("model", "net"), ("config", {"speedup": 2}), ("config", HybridConfig()), ("optimizer", [])],
    ids=["model", "config", "total_steps", "optimizer"],
)
def test_engine_refuses_wrong_arguments(argument, value):
    bench = Bench(None)
    own = {"model": bench.model, "optimizer": bench.optimizer, "config": make_config()}
    with pytest.raises(ConfigError, match="expected"):
        HybridEngine(**{**own, argument: value})
