"""Whatever user code does to weights outside the update counts as in plain training."""

from itertools import pairwise

import pytest
import torch
from cases import UNGATED
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine

STEPS = 80


def autoencoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Linear(24, 8))


def batch(k):
    return torch.randn(32, 8, generator=torch.Generator().manual_seed(k)) @ BASIS


BASIS = torch.randn(8, 8, generator=torch.Generator().manual_seed(99))


class Masked(nn.Module):
    """A layer that writes to its own weight in its forward pass.

    Args:
        edit: What it does to the weight.
    """

    def __init__(self, edit):
        super().__init__()
        self.inner, self.edit = nn.Linear(24, 24), edit

    def forward(self, x):
        self.edit(self.inner.weight)
        return self.inner(x)


def normalise(weight):
    with torch.no_grad():
        weight.div_(weight.norm(dim=0, keepdim=True))


def clamp(weight):
    with torch.no_grad():
        weight.clamp_(-0.1, 0.1)


def mask(weight):
    weight.data *= MASK


MASK = (torch.arange(24 * 24).reshape(24, 24) % 5 > 0).float()

EDITS = {"normalised columns": normalise, "clamped": clamp, "masked": mask}


def train(model, plugged, before=None, make=None, config=None, seen=None):
    """Losses of a run; with the plug-in if asked for, of as many full steps."""
    make = make or (lambda ps: torch.optim.AdamW(ps, lr=3e-3))
    optimizer = make(model.parameters())
    engine = None
    if plugged:
        engine = HybridEngine(
            model, optimizer, config or HybridConfig(total_steps=STEPS * 3 // 2, predictors=UNGATED)
        )
    losses = []
    for k in range(STEPS):
        if engine:
            engine.before_step()
        if before:
            before(model)
        loss = (model(batch(k)) - batch(k)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if engine:
            engine.after_step(loss)
        losses.append(loss.item())
        if seen is not None:
            seen.append([p.detach().clone() for p in model.parameters()])
    return losses


def compare(build, before=None):
    """Mean losses over the last tenth, plain and with the plug-in, and both models."""
    models = build(), build()
    runs = [train(m, bool(k), before) for k, m in enumerate(models)]
    return *(sum(losses[-12:]) / 12 for losses in runs), *models


@pytest.mark.parametrize("where", ["before the forward pass", "in the forward pass"])
@pytest.mark.parametrize("edit", EDITS)
def test_weights_edited_before_the_update_train_as_in_plain_training(edit, where):
    inside = where.startswith("in")

    def build():
        model = autoencoder()
        if inside:
            masked = Masked(EDITS[edit])
            masked.inner.load_state_dict(model[2].state_dict())
            model[2] = masked
        return model

    before = None if inside else (lambda model: EDITS[edit](model[2].weight))
    plain, hybrid, model, other = compare(build, before=before)
    assert hybrid < 1.5 * plain
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert q.abs().max().item() < 2.5 * p.abs().max().item()


def test_weights_edited_after_the_update_stay_edited():
    for edit in EDITS.values():
        model = autoencoder()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        engine = HybridEngine(model, optimizer, HybridConfig(total_steps=40, predictors=UNGATED))
        while not engine.done:
            engine.before_step()
            loss = (model(batch(0)) - batch(0)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            edit(model[2].weight)
            edited = model[2].weight.detach().clone()
            engine.after_step(loss)
            assert torch.equal(model[2].weight, edited)


class Tied(nn.Module):
    """An autoencoder whose decoder reads the memory of its encoder, transposed."""

    def __init__(self):
        super().__init__()
        self.stem, self.encoder = nn.Linear(8, 16), nn.Linear(16, 12)
        self.decoder, self.head = nn.Linear(12, 16), nn.Linear(16, 8)
        self.decoder.weight.data = self.encoder.weight.data.t()

    def forward(self, x):
        return self.head(self.decoder(self.encoder(self.stem(x).tanh()).tanh()).tanh())


def tied():
    torch.manual_seed(0)
    return Tied()


def test_parameters_that_share_memory_train_as_in_plain_training():
    plain, hybrid, model, other = compare(tied)
    assert hybrid < 1.2 * plain
    assert other.encoder.weight.norm().item() < 1.2 * model.encoder.weight.norm().item()
    assert torch.equal(other.encoder.weight, other.decoder.weight.t())


def test_parameters_that_share_memory_are_left_to_the_optimizer():
    traces = []
    for plugged in (False, True):
        seen, model = [], tied()
        config = HybridConfig(total_steps=STEPS * 2, kinds={"stem*": "vector"}, predictors=UNGATED)
        train(model, plugged, seen=seen, config=config)
        traces.append(seen)
    assert all(torch.equal(p, q) for p, q in zip(traces[0][-1], traces[1][-1], strict=True))


@pytest.mark.parametrize("name", ["sgd", "adamw", "rmsprop"])
def test_entries_that_a_gradient_hook_keeps_still_never_move(name):
    makers = {
        "sgd": lambda ps: torch.optim.SGD(ps, lr=0.02, momentum=0.9),
        "adamw": lambda ps: torch.optim.AdamW(ps, lr=3e-3, weight_decay=0.0),
        "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-3),
    }
    model = autoencoder()
    with torch.no_grad():
        model[2].weight.mul_(MASK)
    model[2].weight.register_hook(lambda gradient: gradient * MASK)
    train(model, True, make=makers[name])
    assert int((model[2].weight[MASK == 0] != 0).sum()) == 0
    assert int((model[2].weight[MASK == 1] != 0).sum()) > 0


def keep_masked(model, optimizer, when):
    """Mask the gradient of a weight in a hook of the optimizer, or in that of its closure."""

    def masking(*_):
        model[2].weight.grad.mul_(MASK)

    def masking_later(_, args, kwargs):
        def masked():
            loss = args[1]()
            masking()
            return loss

        return (args[0], masked), kwargs

    optimizer.register_step_pre_hook(masking_later if when == "around the closure" else masking)


@pytest.mark.parametrize("when", ["before the engine", "after the engine", "in the first step",
                                  "around the closure"])  # fmt: skip
def test_gradients_are_read_as_the_optimizer_sees_them(when):
    model = autoencoder()
    with torch.no_grad():
        model[2].weight.mul_(MASK)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    if when == "before the engine":
        keep_masked(model, optimizer, when)
    engine = HybridEngine(model, optimizer, HybridConfig(total_steps=30, predictors=UNGATED))
    if when in ("after the engine", "around the closure"):
        keep_masked(model, optimizer, when)

    def closure():
        optimizer.zero_grad()
        loss = (model(batch(0)) - batch(0)).square().mean()
        loss.backward()
        if when == "in the first step" and not engine.ledger.full_steps:
            keep_masked(model, optimizer, when)
        return loss

    while not engine.done:
        engine.before_step()
        if when == "around the closure":
            loss = optimizer.step(closure)
        else:
            loss = closure()
            optimizer.step()
        engine.after_step(loss)
    assert engine.ledger.corrected_steps > 10
    assert int((model[2].weight[MASK == 0] != 0).sum()) == 0
    assert int((model[2].weight[MASK == 1] != 0).sum()) > 0


def test_weights_edited_in_an_older_hook_after_the_update_stay_edited():
    model = autoencoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    optimizer.register_step_post_hook(lambda *_: clamp(model[2].weight))
    engine = HybridEngine(model, optimizer, HybridConfig(total_steps=20, speedup=1))
    while not engine.done:
        engine.before_step()
        loss = (model(batch(0)) - batch(0)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        engine.after_step(loss)
        assert model[2].weight.abs().max().item() <= 0.1 + 1e-7


class Freeing(torch.optim.Optimizer):
    """Plain gradient descent that takes the gradients away in its update."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"])
                p.grad = None


class FreeingToo(torch.optim.SGD):
    """The same by way of its base class, whose hooks are called inside those of its own."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None


def test_an_optimizer_that_frees_its_gradients_trains_alike():
    runs = []
    for cls in (torch.optim.SGD, Freeing, FreeingToo):
        model, seen = autoencoder(), []
        train(model, True, make=lambda ps, cls=cls: cls(ps, lr=0.01), seen=seen)
        runs.append(seen)
    for steps in zip(*runs, strict=True):
        for p, *others in zip(*steps, strict=True):
            assert all(torch.equal(p, q) for q in others)
    for run in runs:
        assert min((b[2] - a[2]).norm().item() for a, b in pairwise(run)) > 0


def test_a_model_has_one_engine_at_a_time():
    model = autoencoder()
    optimizer = torch.optim.AdamW(model.parameters())
    first = HybridEngine(model, optimizer, HybridConfig(total_steps=9))
    with pytest.raises(RuntimeError, match="model: expected parameters that no other engine has"):
        HybridEngine(model, optimizer, HybridConfig(total_steps=9))
    part = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="Call detach"):
        HybridEngine(model, part, HybridConfig(total_steps=9))
    first.detach()
    second = HybridEngine(model, optimizer, HybridConfig(total_steps=9))
    del second
    HybridEngine(model, optimizer, HybridConfig(total_steps=9, enabled=False))
    HybridEngine(model, optimizer, HybridConfig(total_steps=9))
