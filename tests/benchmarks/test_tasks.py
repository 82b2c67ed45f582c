"""What every benchmark task promises, and what is special to some of them."""

import dataclasses
import json
import math
from itertools import islice

import pytest
import torch
from kind_cases import resolved
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils import _pytree as pytree

from benchmarks.tasks import TASKS, Recipe
from benchmarks.tasks.base import trained_state
from benchmarks.tasks.burgers import burgers_residual
from benchmarks.tasks.control import LIMIT, PPO, advantages, pushed
from benchmarks.tasks.digits import CNN, load_digits
from benchmarks.tasks.encoder import ENCODER
from benchmarks.tasks.lora import LORA, LowRankLinear
from benchmarks.tasks.photograph import (
    COORDINATES,
    INR,
    FourierFeatures,
    Octaves,
    load_photograph,
)
from benchmarks.tasks.schedules import SCHEDULES
from benchmarks.tasks.text import GRU
from hybrid_predict.errors import ConfigError
from hybrid_predict.model.kinds import classify


@pytest.fixture(params=TASKS, scope="module")
def task(request):
    return TASKS[request.param].tiny()


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(left, right):
    ours, theirs = pytree.tree_leaves(left), pytree.tree_leaves(right)
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def test_the_seed_decides_the_model_and_the_batches(task):
    def drawn(seed):
        return state(task.model(seed)), list(islice(task.batches(seed), 3))

    (model, batches), (model_again, batches_again), (other, other_batches) = map(drawn, (1, 1, 2))
    assert same(model, model_again)
    assert same(batches, batches_again)
    assert not same(model, other)
    assert not same(batches[0], other_batches[0])
    assert not same(batches[0], batches[1])


def test_the_global_random_state_is_neither_read_nor_moved(task, after_seeds):
    def use():
        model = task.model(0)
        batches = list(islice(task.batches(0), 2))
        losses = [task.loss(model, batch).detach() for batch in batches]
        return state(model), batches, losses, torch.tensor(task.final_loss(model))

    assert same(*after_seeds(use))


def test_the_loss_reaches_every_trainable_parameter(task):
    model = task.model(0)
    assert model.training
    loss = task.loss(model, next(task.batches(0)))
    assert loss.dim() == 0
    assert loss.isfinite()
    loss.backward()
    for name, p in model.named_parameters():
        assert (p.grad is not None) == p.requires_grad, name
        assert p.grad is None or p.grad.isfinite().all(), name


@pytest.mark.parametrize("training", [True, False])
def test_the_metric_leaves_the_model_as_it_was(task, training):
    model = task.model(0).train(training)
    task.loss(model, next(task.batches(0))).backward()
    before, grads = state(model), [p.grad.clone() for p in trainable(model)]
    metric = task.final_loss(model)
    assert isinstance(metric, float)
    assert math.isfinite(metric)
    assert metric == task.final_loss(model)
    assert same(before, state(model))
    assert same(grads, [p.grad for p in trainable(model)])
    assert all(module.training is training for module in model.modules())


def test_a_few_steps_lower_the_loss_of_a_fixed_batch(task):
    model, batch = task.model(0), next(task.batches(0))
    optimizer = torch.optim.AdamW(trainable(model), lr=task.recipe.rates[0])
    losses = [task.full_step(model, batch, optimizer) for _ in range(8)]
    assert losses[-1] < losses[0]


def test_settings_are_plain_data(task):
    plain = json.loads(json.dumps(task.to_dict()))
    assert plain["name"] == task.name
    assert plain["metric"] == task.metric
    assert plain["recipe"]["rates"] == sorted(set(task.recipe.rates))
    assert hash(task) == hash(dataclasses.replace(task))


def test_held_out_digits_are_not_trained_on():
    shown, held = ({image.numpy().tobytes() for image in part} for part, _ in load_digits())
    assert not shown & held
    assert len(shown) + len(held) == 1797


def test_positions_become_waves():
    features = FourierFeatures(waves=3, scale=2.0)
    with torch.no_grad():
        features.frequencies.copy_(torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.5, 0.0]]))
    expected = torch.tensor([[0.0, 0.0, -1.0, 1.0, 1.0, 0.0]])
    found = features(torch.tensor([[0.25, 0.5]]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    expected = torch.tensor([[0.0, -1.0, -1.0, 1.0, 1.0, 0.0, 0.0, 0.0]])
    found = Octaves(2)(torch.tensor([[0.5, 1.0]]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("task", [INR, COORDINATES])
def test_all_pixels_are_those_of_the_photograph(task):
    positions, colours = task.judged()
    assert len(positions.unique(dim=0)) == task.height * task.width
    image = load_photograph("china.jpg" if task is INR else "flower.jpg")
    torch.testing.assert_close(colours.mean(0), image.mean((1, 2)), rtol=0, atol=1e-3)
    inputs, targets = next(task.batches(0))
    assert torch.equal(targets, colours[torch.cdist(inputs, positions).argmin(1)])


def test_an_exact_solution_has_no_residual():
    viscosity = 0.1

    def front(points):
        x, t = points[:, :1], points[:, 1:]
        return 0.5 - 0.5 * ((x - 0.5 * t) / (4 * viscosity)).tanh()

    points = torch.rand(64, 2, dtype=torch.float64)
    residual = burgers_residual(front, points, viscosity).detach()
    torch.testing.assert_close(residual, torch.zeros_like(residual), rtol=0, atol=1e-12)


def test_adapters_start_at_the_base_model_and_leave_it_frozen():
    task = LORA.tiny()
    model, batch = task.model(0), next(task.batches(0))
    base = task.base().model(1)
    base.load_state_dict(trained_state(task.base()))
    assert torch.equal(model(batch[0]), base(batch[0]))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    layers = [name for name, m in model.named_modules() if isinstance(m, LowRankLinear)]
    assert len(layers) == 4 * task.base().layers
    assert trained == {f"{name}.{part}.weight" for name in layers for part in ("down", "up")}

    task.full_step(model, batch, torch.optim.AdamW(trainable(model), lr=0.01))
    assert not torch.equal(model(batch[0]), base(batch[0]))
    frozen = {name.replace(".base.", "."): value for name, value in model.state_dict().items()}
    assert all(torch.equal(frozen[name], value) for name, value in base.state_dict().items())


def test_names_and_shapes_say_what_the_loss_shows(task):
    """So that a peer, which knows names and shapes alone, has the same hidden matrices."""
    model, batch = task.model(0), next(task.batches(0))
    kinds = classify(model)
    named = {n: kinds[id(p)] for n, p in model.named_parameters() if p.requires_grad}
    matrices = {name: kind for name, kind in named.items() if kind != "vector"}
    assert resolved(model, lambda net: task.loss(net, batch)) == (matrices, [])


def test_the_recurrent_net_sees_no_byte_ahead():
    model = GRU.model(0)
    tokens = torch.arange(20).view(2, 10)
    changed = tokens.clone()
    changed[:, 6:] = 99
    first, second = model(tokens), model(changed)
    torch.testing.assert_close(first[:, :6], second[:, :6])
    assert not torch.equal(first[:, 6:], second[:, 6:])


def test_fine_tuning_starts_from_the_pretrained_encoder():
    task = ENCODER.tiny()
    model, other = task.model(0), task.model(1)
    known = task.base_state()
    state = model.state_dict()
    assert set(state) - set(known) == {"head.weight", "head.bias"}
    assert all(torch.equal(state[name], value) for name, value in known.items())
    assert not torch.equal(model.head.weight, other.head.weight)
    assert all(p.requires_grad for p in model.parameters())


def test_a_cart_follows_its_equations():
    """Of two rigid bodies: forces on the cart and torques on the pole are in balance."""
    state = torch.tensor([[0.1, -0.3, 0.15, 0.7], [0.0, 0.2, -0.1, -0.4]], dtype=torch.float64)
    right = torch.tensor([True, False])
    wind = torch.tensor([0.5, -1.0], dtype=torch.float64)
    change = (pushed(state, right, wind) - state) / 0.02
    torch.testing.assert_close(change[:, ::2], state[:, 1::2])
    x, turn = change[:, 1], change[:, 3]
    angle, spin = state[:, 2], state[:, 3]
    force = torch.tensor([10.0 + 6.0, -10.0 - 12.0], dtype=torch.float64)
    cart = 1.1 * x + 0.05 * (turn * angle.cos() - spin**2 * angle.sin())
    torch.testing.assert_close(cart, force)
    pole = 4 / 3 * 0.5 * turn + x * angle.cos() - 9.8 * angle.sin()
    torch.testing.assert_close(pole, torch.zeros_like(pole), rtol=0, atol=1e-12)


def test_advantages_end_with_the_episode():
    """By the definition: a sum of what surprised, up to the end of each episode."""
    generator = torch.Generator().manual_seed(0)
    rewards, values, after = torch.rand(3, 6, 2, generator=generator, dtype=torch.float64)
    fell, ended = torch.zeros_like(rewards), torch.zeros_like(rewards)
    fell[2, 0] = ended[2, 0] = ended[3, 1] = 1  # one pole falls, one episode is stopped
    found = advantages(rewards, values, after, fell, ended, 0.9, 0.8)
    for cart in range(2):
        for t in range(6):
            total, weight = 0.0, 1.0
            for k in range(t, 6):
                bootstrap = 0.9 * (1 - fell[k, cart]) * after[k, cart]
                total += weight * (rewards[k, cart] + bootstrap - values[k, cart])
                weight *= 0.9 * 0.8
                if ended[k, cart]:
                    break
            assert float(found[t, cart]) == pytest.approx(float(total))


def test_a_rollout_is_made_once_by_the_policy_that_meets_it_first():
    model, batches = PPO.model(0), PPO.batches(0)
    first, second = next(batches), next(batches)
    assert first[0] is second[0]
    loss = PPO.loss(model, first).detach()
    known = {name: x.clone() for name, x in first[0]["rows"].items()}
    last = first[0]["carts"]["state"]
    missed = (known["returns"] - model(known["states"])[1].detach()).square().mean()
    # Before an update the ratio is 1, and normalised advantages have the mean 0.
    assert float(loss) == pytest.approx(0.5 * float(missed), abs=1e-4)
    with torch.no_grad():
        model.policy[-1].weight.add_(torch.linspace(-1, 1, 128).view(2, 64))
    PPO.loss(model, second)
    assert all(torch.equal(x, known[name]) for name, x in first[0]["rows"].items())
    later = next(islice(batches, PPO.epochs - 2, None))
    assert later[0] is not first[0]
    assert "rows" not in later[0]
    PPO.loss(model, later)
    went_on = later[0]["rows"]["states"].view(PPO.horizon, PPO.carts, 4)[0]
    assert torch.equal(went_on, last)


def test_the_metric_of_control_is_how_long_poles_stand(monkeypatch):
    class Balance(type(PPO.model(0))):
        def acts(self, states, noise):
            return states @ torch.tensor([0.5, 1.0, 10.0, 2.0]) > 0

    class Fall(Balance):
        def acts(self, states, noise):
            return noise >= 0

    assert -LIMIT < PPO.evaluate(Balance((4,))) < -LIMIT / 3
    assert -12 < PPO.evaluate(Fall((4,))) < -8
    monkeypatch.setattr("benchmarks.tasks.control._WIND", 0.0)
    assert PPO.evaluate(Balance((4,))) == -LIMIT


def factors(name, total, warmup):
    factor = SCHEDULES[name](total, warmup)
    return [factor(step) for step in range(total)]


@pytest.mark.parametrize(("total", "warmup"), [(12, 0.0), (400, 0.05), (400, 0.3)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_rises_to_one_and_never_above(name, warmup, total):
    found = factors(name, total, warmup)
    top = found.index(max(found))
    assert found[top] == pytest.approx(1.0, abs=0.01)
    assert min(found) > 0
    assert found[: top + 1] == sorted(found[: top + 1])
    assert found[top:] == sorted(found[top:], reverse=True)
    assert top <= max(1, warmup * total)
    after = SCHEDULES[name](total, warmup)(total)
    assert 0 <= after <= found[-1]


def test_one_cycle_is_torchs():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = OneCycleLR(optimizer, 1.0, total_steps=50, pct_start=0.3, cycle_momentum=False)
    rates = []
    for _ in range(50):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert factors("one-cycle", 50, 0.3) == pytest.approx(rates, abs=1e-12)


def test_too_few_steps_and_unknown_schedules_are_refused():
    with pytest.raises(ConfigError, match="steps"):
        dataclasses.replace(CNN, steps=5)
    with pytest.raises(ConfigError, match=r"schedule.*warmup-stable-decay.*'cubic'"):
        Recipe(learning_rate=1.0, rates=(1.0,), schedule="cubic")
