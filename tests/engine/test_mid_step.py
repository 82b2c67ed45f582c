"""Whoever reads, saves or loads the model inside a full step finds verified weights."""

import copy

import pytest
import torch
from loops import Bench, make_config, same_bits, weights

from hybrid_predict import HybridEngine, Verdict
from hybrid_predict.policy.verdict import READ
from hybrid_predict.tensors.random_states import random_states, set_random_states

PLACES = ("before the forward pass", "before the backward pass", "before the update")


def half(bench):
    """The bench with a model in bfloat16, whose rounding errors are carried along."""
    bench.model.to(torch.bfloat16)
    bench.loss = lambda: (
        bench.model(torch.randn(4, 6, dtype=torch.bfloat16)).float().square().mean()
    )
    return bench


def made(model):
    """A run of few steps, without an engine; of bfloat16 if the model is "half"."""
    return half(Bench(None, "mlp")) if model == "half" else Bench(None, model)


def start(bench, **changes):
    bench.engine = HybridEngine(bench.model, bench.optimizer, make_config(**changes))
    return bench


def verifying(model="conv", **changes):
    """A run at the start of a verifying step."""
    bench = start(made(model), **changes)
    bench.train(6)
    return bench


def parts(bench):
    return [bench.model.state_dict(), bench.optimizer.state_dict(), bench.engine.state_dict()]


def at(bench, place):
    """Go on to a place in the next full step; what is left of the step is returned."""
    bench.engine.before_step()
    loss = bench.loss() if place != PLACES[0] else None
    if place == PLACES[2]:
        loss.backward()

    def finish():
        found = bench.loss() if loss is None else loss
        if place != PLACES[2]:
            found.backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad()
        bench.taken += 1
        return bench.engine.after_step(found)

    return finish


@pytest.mark.parametrize(
    ("model", "place"), [*zip(("conv", "tied", "half"), PLACES, strict=True), ("half", PLACES[0])]
)
def test_a_run_saved_inside_a_verifying_step_resumes_as_if_before_it(place, model):
    bench, whole = verifying(model), verifying(model)
    random, between = random_states(), copy.deepcopy(parts(bench))
    finish = at(bench, place)
    assert not same_bits(dict(bench.trace()["model"]), dict(between[0]))
    saved = copy.deepcopy(parts(bench))
    assert same_bits(saved, between)
    taken = bench.taken
    record = finish()
    assert (record.verdict, record.ticks) == (Verdict.UNDONE, 1)
    assert same_bits(parts(bench)[:2], between[:2])
    assert f"predicted steps were undone: {READ}" in bench.reasons
    bench.finish()
    again = made(model)
    again.model.load_state_dict(saved[0])
    again.optimizer.load_state_dict(saved[1])
    start(again).engine.load_state_dict(saved[2])
    again.taken = taken
    for run in (again, whole):
        set_random_states(random)
        run.finish()
    assert same_bits(again.trace(), whole.trace())


def test_after_the_update_the_new_weights_are_read_and_a_saved_state_tells_what_it_lacks():
    bench = verifying()
    bench.engine.before_step()
    bench.loss().backward()
    bench.optimizer.step()
    assert same_bits(dict(bench.model.state_dict()), bench.trace()["model"])
    state = bench.engine.state_dict()
    assert state["ledger"]["full_steps"] == 6
    assert any("between an update and after_step()" in reason for reason in bench.reasons)
    bench.model.load_state_dict(bench.model.state_dict())
    assert bench.engine.after_step().verdict is Verdict.STANDS


def test_weights_that_are_loaded_inside_a_step_stay():
    bench = verifying("mlp")
    wanted = {name: p + 1.0 for name, p in weights(bench.model).items()}
    finish = at(bench, PLACES[2])
    bench.model.load_state_dict(wanted)
    record = finish()
    assert (record.verdict, record.ticks) == (Verdict.UNDONE, 1)
    assert same_bits(weights(bench.model), wanted)
    bench.finish()
    assert bench.engine.ledger.steps == 30
