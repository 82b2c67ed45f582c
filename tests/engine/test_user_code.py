"""Whatever user code does to weights outside the update counts as in plain training."""

import pytest
import torch
from cases import UNGATED
from loops import Run, normal, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine

STEPS = 40
BASIS = normal(99, 8, 8)
MASK = (torch.arange(24 * 24).reshape(24, 24) % 5 > 0).float()


def autoencoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Linear(24, 8))


def adamw(ps):
    return torch.optim.AdamW(ps, lr=3e-3, weight_decay=0.0)


def loss(model, k):
    x = normal(k, 32, 8) @ BASIS
    return (model(x) - x).square().mean()


def run_of(model, loss, plugged=True):
    config = HybridConfig(total_steps=STEPS * 3 // 2, predictors=UNGATED) if plugged else None
    return Run(model, adamw(model.parameters()), config, loss)


@torch.no_grad()
def normalise(weight):
    weight.div_(weight.norm(dim=0, keepdim=True))


@torch.no_grad()
def clamp(weight):
    weight.clamp_(-0.1, 0.1)


def mask(weight):
    weight.data *= MASK


class Edited(nn.Linear):
    """A layer that writes to its own weight in its forward pass."""

    edit = None

    def forward(self, x):
        type(self).edit(self.weight)
        return super().forward(x)


@pytest.mark.parametrize(("edit", "inside"), [(normalise, True), (clamp, False)])
def test_weights_edited_before_the_update_train_as_in_plain_training(edit, inside, monkeypatch):
    monkeypatch.setattr(Edited, "edit", staticmethod(edit))

    def editing(model, k):
        if not inside:
            edit(model[2].weight)
        result = loss(model, k)
        losses.append(result.detach())
        return result

    means, ends = [], []
    for plugged in (False, True):
        model, losses = autoencoder(), []
        model[2].__class__ = Edited if inside else nn.Linear
        run_of(model, editing, plugged).train(STEPS)
        means.append(sum(losses[-12:]))
        ends.append(max(float(p.detach().abs().max()) for p in model.parameters()))
    assert means[1] < 1.5 * means[0]
    assert ends[1] < 2.5 * ends[0]


@pytest.mark.parametrize(("edit", "hook"), [(mask, False), (clamp, True)])
def test_weights_edited_after_the_update_stay_edited(edit, hook):
    model = autoencoder()
    optimizer = adamw(model.parameters())
    if hook:
        optimizer.register_step_post_hook(lambda *_: edit(model[2].weight))
    engine = HybridEngine(model, optimizer, HybridConfig(total_steps=20, speedup=1))
    while not engine.done:
        engine.before_step()
        result = loss(model, engine.ledger.full_steps)
        result.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not hook:
            edit(model[2].weight)
        edited = model[2].weight.detach().clone()
        engine.after_step(result)
        assert torch.equal(model[2].weight, edited)
        if edit is clamp:
            assert float(model[2].weight.detach().abs().max()) <= 0.1 + 1e-7


PLACES = ("before the engine", "in the first step", "around the closure")


@pytest.mark.parametrize("place", PLACES)
def test_gradients_are_read_as_the_optimizer_sees_them(place):
    """A hook of the optimizer masks them, wherever it was registered."""
    model = autoencoder()
    mask(model[2].weight)
    optimizer = adamw(model.parameters())

    def masking(*_):
        model[2].weight.grad.mul_(MASK)

    def masking_later(_, args, kwargs):
        def masked():
            result = args[1]()
            masking()
            return result

        return (args[0], masked), kwargs

    def closure():
        optimizer.zero_grad()
        result = loss(model, 0)
        result.backward()
        return result

    if place == "before the engine":
        optimizer.register_step_pre_hook(masking)
    engine = HybridEngine(model, optimizer, HybridConfig(total_steps=30, predictors=UNGATED))
    if place == "around the closure":
        optimizer.register_step_pre_hook(masking_later)
    while not engine.done:
        engine.before_step()
        if place == "around the closure":
            result = optimizer.step(closure)
        else:
            result = closure()
            if place == "in the first step" and not engine.ledger.full_steps:
                optimizer.register_step_pre_hook(masking)
            optimizer.step()
        engine.after_step(result)
    assert engine.ledger.corrected_steps > 10
    assert not (model[2].weight[MASK == 0] != 0).any()
    assert (model[2].weight[MASK == 1] != 0).any()


def test_an_optimizer_has_one_engine_at_a_time():
    model = autoencoder()
    optimizer, config = adamw(model.parameters()), HybridConfig(total_steps=9)
    first = HybridEngine(model, optimizer, config)
    with pytest.raises(RuntimeError, match="optimizer: expected an optimizer that no other"):
        HybridEngine(model, optimizer, config)
    first.detach()
    second = HybridEngine(model, optimizer, config)
    del second
    HybridEngine(model, optimizer, HybridConfig(total_steps=9, enabled=False))
    HybridEngine(model, optimizer, config)


class Strict(torch.Tensor):
    """A tensor with meta data of a batch, which refuses to be sliced, as MONAI's may."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            raise ValueError("Inconsistent batched metadata")
        return super().__torch_function__(func, types, args, kwargs)


def test_a_loss_of_a_class_of_its_own_trains_as_a_plain_one():
    ends = []
    for cls in (torch.Tensor, Strict):
        run = run_of(model := autoencoder(), lambda m, k, c=cls: loss(m, k).as_subclass(c))
        run.train(STEPS)
        assert run.engine.ledger.predicted_steps and not run.engine.ledger.events
        ends.append(weights(model))
    assert same_bits(*ends)


def test_an_optimizer_that_steps_inside_of_autocast_trains_as_outside():
    ends = []
    for inside in (False, True):
        model = autoencoder()
        optimizer = adamw(model.parameters())
        engine = HybridEngine(model, optimizer, HybridConfig(total_steps=STEPS, predictors=UNGATED))
        while not engine.done:
            engine.before_step()
            with torch.autocast("cpu", torch.bfloat16):
                value = loss(model, engine.position)
                value.backward()
                if inside:
                    optimizer.step()
            if not inside:
                optimizer.step()
            optimizer.zero_grad()
            engine.after_step(value)
        assert engine.ledger.corrected_steps > 0
        assert engine.ledger.predicted_steps > 0
        ends.append(weights(model))
    assert same_bits(*ends)
