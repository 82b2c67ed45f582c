"""When the kinds of parameters are decided, and by which losses."""

import copy

import pytest
import torch
from kind_cases import CountDecoder, mlp, rows, square
from loops import make_config, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine

SHOWN = {"px_r", "px_scale_decoder.0.weight"}
NAMED = {"px_dropout_decoder.weight"}
"""What names and shapes take for the heads of the decoder: layers that are not used."""
HEADS = SHOWN | NAMED


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def heads(engine):
    pairs = zip(engine.mapper.names, engine.mapper.kinds, strict=True)
    return {name for name, kind in pairs if kind == "head"}


class Loop:
    """A plain loop around a decoder whose heads names and shapes do not tell."""

    def __init__(self, config=None, tell=lambda loss: loss, model=CountDecoder):
        torch.manual_seed(0)
        self.model = model()
        self.optimizer = sgd(self.model.parameters())
        self.tell = tell
        self.engine = HybridEngine(self.model, self.optimizer, config) if config else None

    def step(self, before=lambda engine, loss: None):
        if self.engine:
            self.engine.before_step()
        loss = square(self.model)
        before(self.engine, loss)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.engine.after_step(self.tell(loss)) if self.engine else None


def corrected(**how):
    """The heads after the first full step, and which weights did not get the plain update."""
    plain, loop = Loop(), Loop(HybridConfig(total_steps=9, speedup=1))
    plain.step()
    loop.step(**how)
    ours, theirs = weights(loop.model), weights(plain.model)
    return heads(loop.engine), {name for name in ours if not torch.equal(ours[name], theirs[name])}


INNER = {"px_decoder.0.weight", "px_decoder.2.weight"}


def test_a_plain_loop_shows_the_loss_when_the_first_full_step_ends():
    found, moved = corrected()
    assert found == HEADS
    assert moved == {*INNER, *SHOWN}  # by names and shapes for one full step


@pytest.mark.parametrize("call", ["observe_loss", "observe_graph"])
def test_a_loss_that_is_shown_earlier_decides_before_the_first_correction(call):
    found, moved = corrected(before=lambda engine, loss: getattr(engine, call)(loss))
    assert found == HEADS
    assert moved == INNER


@pytest.mark.parametrize("tell", [torch.Tensor.item, lambda loss: None])
def test_without_a_loss_names_and_shapes_decide_and_the_run_says_so(tell):
    loop = Loop(make_config(total_steps=9), tell)
    for _ in range(3):
        loop.step()
    assert heads(loop.engine) == NAMED
    (event,) = loop.engine.ledger.events
    assert "px_decoder.2.weight and 1 more: decided by names and shapes" in event["reason"]
    assert event["count"] == 1


def test_kinds_are_kept_when_a_run_resumes_and_not_decided_again():
    config = make_config(total_steps=24)
    loop = Loop(config)
    for _ in range(6):
        loop.step()
    saved = copy.deepcopy((loop.model.state_dict(), loop.engine.state_dict()))
    resumed = Loop(config, torch.Tensor.item)  # shows no loss any more
    resumed.model.load_state_dict(saved[0])
    resumed.engine.load_state_dict(saved[1])
    assert heads(resumed.engine) == HEADS
    for _ in range(6):
        loop.step()
        resumed.step()
    assert same_bits(weights(resumed.model), weights(loop.model))
    assert heads(resumed.engine) == HEADS
    assert not any("to tell" in event["reason"] for event in resumed.engine.ledger.events)


class Adversaries:
    """A generator that is trained through its discriminator, with an optimizer each."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.ModuleDict({"made": mlp(6, 8, 8)[:-1], "judge": mlp(8, 8, 1)[:-1]})
        parts = self.model["made"], self.model["judge"]
        self.optimizers = [sgd(part.parameters()) for part in parts]
        config = make_config(total_steps=99, speedup=1)
        self.engine = HybridEngine(self.model, self.optimizers, config)

    def turn(self, index, loss):
        """One update, which shows its own loss."""
        loss = loss()
        self.engine.observe_graph(loss)
        self.model.zero_grad()
        loss.backward()
        self.optimizers[index].step()

    def step(self):
        made, judge = self.model["made"], self.model["judge"]
        self.engine.before_step()
        self.turn(1, lambda: judge(made(rows()).detach()).mean() - judge(rows(8, 8)).mean())
        judge.requires_grad_(False)
        self.turn(0, lambda: judge(made(rows())).square().mean())
        judge.requires_grad_(True)
        self.engine.after_step()


def test_every_optimizer_s_own_loss_shows_its_part_although_the_rest_is_frozen_meanwhile():
    run = Adversaries()
    run.step()
    assert heads(run.engine) == {"made.2.weight", "judge.2.weight"}
    assert run.engine.ledger.events == []
