"""What is read, saved and loaded between predicted steps and the update that verifies them."""

import copy

import pytest
import torch
from loops import Bench, make_config, same_bits, weights
from torch import nn

from hybrid_predict import HybridEngine, Verdict
from hybrid_predict.torch.random_states import random_states, set_random_states

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


def start(bench):
    bench.engine = HybridEngine(bench.model, bench.optimizer, make_config())
    return bench


def verifying(model="conv"):
    """A run at the start of a verifying step."""
    bench = start(made(model))
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


@pytest.mark.parametrize("model", ["mlp", "conv", "tied", "half"])
@pytest.mark.parametrize("place", PLACES)
def test_a_run_saved_inside_a_verifying_step_resumes_bit_for_bit(place, model):
    bench = verifying(model)
    random, between = random_states(), copy.deepcopy(parts(bench))
    finish = at(bench, place)
    present = bench.trace()
    saved = copy.deepcopy(parts(bench))
    assert same_bits(saved, between)
    assert same_bits(bench.trace(), present)
    assert not same_bits(dict(present["model"]), dict(saved[0]))
    taken = bench.taken
    finish()
    bench.finish()
    again = made(model)
    again.model.load_state_dict(saved[0])
    again.optimizer.load_state_dict(saved[1])
    start(again).engine.load_state_dict(saved[2])
    set_random_states(random)
    again.taken = taken
    again.finish()
    assert same_bits(again.trace(), bench.trace())


def test_a_part_of_the_model_is_read_alike_and_the_parameters_are_the_present_ones():
    bench = verifying()
    before = copy.deepcopy(bench.model.state_dict())
    finish = at(bench, PLACES[2])
    for prefix, module in bench.model.named_children():
        own = {f"{prefix}.{name}": value for name, value in module.state_dict().items()}
        assert same_bits(own, {name: before[name] for name in own})
    live = bench.model.state_dict(keep_vars=True)
    assert all(live[name] is p for name, p in bench.model.named_parameters())
    finish()


def test_weights_that_the_step_has_edited_are_read_without_the_movement():
    bench = verifying("mlp")
    before = weights(bench.model)
    finish = at(bench, PLACES[0])
    with torch.no_grad():
        for p in bench.model.parameters():
            p.add_(1.0)
    read = bench.model.state_dict()
    for name, value in before.items():
        torch.testing.assert_close(read[name], value + 1.0, rtol=0, atol=1e-6)
    finish()


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


def test_what_an_undone_step_leaves_is_what_was_read_in_it():
    bench = verifying()
    at(bench, PLACES[2])
    read = copy.deepcopy(dict(bench.model.state_dict()))
    bench.engine.abandon()
    assert same_bits(dict(bench.trace()["model"]), read)


def test_a_copy_of_the_model_is_its_own():
    bench = verifying()
    finish = at(bench, PLACES[2])
    twin = copy.deepcopy(bench.model)
    with torch.no_grad():
        for p in twin.parameters():
            p.fill_(3.0)
    assert all((value == 3.0).all() for name, value in twin.state_dict().items()
               if name in dict(twin.named_parameters()))  # fmt: skip
    twin.load_state_dict(twin.state_dict())
    assert finish().verdict is Verdict.STANDS


@pytest.mark.parametrize("place", [PLACES[0], PLACES[2]])
def test_loading_weights_inside_a_step_undoes_its_predicted_steps_first(place):
    bench = verifying("mlp")
    before = weights(bench.model)
    finish = at(bench, place)
    bench.model.load_state_dict(bench.model.state_dict())
    assert same_bits(weights(bench.model), before)
    record = finish()
    assert (record.verdict, record.ticks) == (Verdict.UNDONE, 1)
    assert not same_bits(weights(bench.model), before)
    assert "predicted steps were undone: weights were loaded in a verifying step" in bench.reasons
    bench.finish()
    assert bench.engine.ledger.steps == 30


def test_loading_a_part_of_the_model_undoes_the_movement_of_all():
    bench = verifying("mlp")
    before = weights(bench.model)
    finish = at(bench, PLACES[0])
    last = bench.model[-1]
    assert isinstance(last, nn.Linear)
    last.load_state_dict({name: torch.zeros_like(p) for name, p in last.named_parameters()})
    assert not last.weight.any()
    others = weights(bench.model[:-1])
    assert same_bits(others, {name: before[name] for name in others})
    finish()
