"""What is special to the tasks that nothing is tuned on."""

import math
from itertools import islice

import pytest
import torch

from benchmarks.plan import SUITES
from benchmarks.tasks import FRESH
from benchmarks.tasks.cart_pole import LIMIT, fallen, placed, pushed
from benchmarks.tasks.control import PPO, advantages
from benchmarks.tasks.coordinates import COORDINATES, Octaves, flower
from benchmarks.tasks.encoder import ENCODER, pretrained
from benchmarks.tasks.photograph import load_photograph
from benchmarks.tasks.recurrent import GRU
from benchmarks.tasks.residual import RESNET, ResidualBlock
from benchmarks.tasks.tabular import TABULAR, friedman, load_table
from hybrid_predict.torch.kinds import classify


def rows(task):
    """Rows of a batch."""
    first, second = next(task.tiny().batches(0))
    return len(second if isinstance(first, dict) else first)


def test_batches_and_schedules_vary():
    sizes = [rows(task) for task in FRESH]
    assert min(sizes) <= 8
    assert rows(COORDINATES) == COORDINATES.height * COORDINATES.width
    wanted = {"linear", "constant", "one-cycle", "warmup-stable-decay"}
    assert {task.recipe.schedule for task in FRESH} == wanted


def test_the_suite_fresh_holds_them_all():
    assert SUITES["fresh"].tasks == tuple(task.name for task in FRESH)
    assert set(SUITES["fresh"].arms) == {"tuned"}
    assert not {task.name for task in FRESH} & {*SUITES["core"].tasks, *SUITES["wide"].tasks}


def test_a_residual_block_adds_to_its_shortcut():
    block = ResidualBlock(4, 4).eval()
    with torch.no_grad():
        block.second.weight.zero_()
        x = torch.rand(2, 4, 8, 8)
        torch.testing.assert_close(block(x), x)
    assert ResidualBlock(4, 6)(torch.rand(2, 4, 8, 8)).shape == (2, 6, 4, 4)
    assert RESNET.model(0)(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_the_recurrent_net_sees_no_byte_ahead():
    model = GRU.model(0)
    tokens = torch.arange(20).view(2, 10)
    changed = tokens.clone()
    changed[:, 6:] = 99
    first, second = model(tokens), model(changed)
    torch.testing.assert_close(first[:, :6], second[:, :6])
    assert not torch.equal(first[:, 6:], second[:, 6:])


def test_all_matrices_of_the_recurrent_layer_are_hidden():
    model = GRU.model(0)
    kinds = classify(model)
    found = {name: kinds[id(p)] for name, p in model.named_parameters() if p.dim() > 1}
    assert found == {
        "embedding.weight": "embedding",
        "recurrent.weight_ih_l0": "hidden",
        "recurrent.weight_hh_l0": "hidden",
        "head.weight": "head",
    }


def test_octaves_double():
    found = Octaves(2)(torch.tensor([[0.5, 1.0]]))
    wanted = torch.tensor([[0.0, -1.0, -1.0, 1.0, 1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_a_full_batch_holds_every_pixel_once():
    positions, colours = next(COORDINATES.batches(0))
    table, values = flower(COORDINATES.height, COORDINATES.width)
    place = torch.cdist(positions, table).argmin(1)
    assert torch.equal(place.sort().values, torch.arange(len(table)))
    assert torch.equal(colours, values[place])
    image = load_photograph("flower.jpg")
    torch.testing.assert_close(values.mean(0), image.mean((1, 2)), rtol=0, atol=1e-3)
    assert (table.abs() < 1).all()


def test_the_function_of_the_table():
    corner = torch.tensor([[0.5, 1.0, 0.0, 1.0, 1.0, 0.3], [0.0, 0.7, 0.5, 0.5, 0.0, 0.9]])
    torch.testing.assert_close(friedman(corner), torch.tensor([30.0, 5.0]))


def test_the_table_is_standardised_and_noise_is_for_training_alone():
    for (values, targets), noise in zip(load_table(8192, 20), (1.0, 0.0), strict=True):
        assert values.shape == (8192, 20)
        assert float(values.mean()) == pytest.approx(0, abs=0.01)
        assert float(values.std()) == pytest.approx(1, abs=0.01)
        assert float(targets.mean()) == pytest.approx(0, abs=0.03)
        known = (friedman(values / math.sqrt(12) + 0.5) - 14.4) / 4.9
        spread = (targets[:, 0] - known).std() * 4.9
        assert float(spread) == pytest.approx(noise, abs=0.03)
    assert TABULAR.model(0)(torch.rand(3, 20)).shape == (3, 1)


def test_fine_tuning_starts_from_the_pretrained_encoder():
    task = ENCODER.tiny()
    model, other = task.model(0), task.model(1)
    known = pretrained(task)
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


def test_a_cart_is_done_when_it_is_far_or_its_pole_leans():
    state = torch.zeros(5, 4)
    state[1, 0], state[2, 0], state[3, 2], state[4, 2] = 2.3, -2.5, 0.2, -0.22
    assert fallen(state).tolist() == [False, False, True, False, True]
    assert placed(torch.tensor([0.0, 0.5, 1.0])).tolist() == pytest.approx([-0.05, 0.0, 0.05])


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


def test_the_clip_takes_the_gradient_from_what_has_moved_far():
    model, batches = PPO.model(0), PPO.batches(0)
    batch = next(batches)
    PPO.loss(model, batch)
    seen = batch[0]["rows"]
    seen["chances"] = seen["chances"] - torch.where(seen["gains"] > seen["gains"].mean(), 1.0, -1.0)
    PPO.loss(model, batch).backward()
    assert all(float(p.grad.abs().max()) == 0 for p in model.policy.parameters())
    assert any(float(p.grad.abs().max()) > 0 for p in model.value.parameters())


def test_the_metric_of_control_is_how_long_poles_stand(monkeypatch):
    class Balance(type(PPO.model(0))):
        def acts(self, states, noise):
            return states @ torch.tensor([0.5, 1.0, 10.0, 2.0]) > 0

    class Fall(Balance):
        def acts(self, states, noise):
            return noise >= 0

    assert -LIMIT < PPO.evaluate(Balance((4,))) < -LIMIT / 3
    assert -12 < PPO.evaluate(Fall((4,))) < -8
    monkeypatch.setattr("benchmarks.tasks.cart_pole._WIND", 0.0)
    assert PPO.evaluate(Balance((4,))) == -LIMIT
