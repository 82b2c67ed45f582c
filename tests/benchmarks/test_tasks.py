"""What every benchmark task promises, and what is special to some of them."""

import dataclasses
import json
import math
import random
import sys
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.tasks import TASKS
from benchmarks.tasks.autoencoder import AUTOENCODER
from benchmarks.tasks.burgers import PINN, burgers_residual, physics_loss
from benchmarks.tasks.digits import CNN, augment, load_digits
from benchmarks.tasks.lora import LORA, LowRankLinear, base_state, load_reference_text
from benchmarks.tasks.photograph import INR, FourierFeatures, load_photograph, pixel_table
from hybrid_predict import ConfigError
from hybrid_predict.torch.graph import GraphFindings
from hybrid_predict.torch.kinds import classify, matrix_index, resolve


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


def test_the_registry_knows_a_task_by_its_name(task):
    assert TASKS[task.name].name == task.name
    assert type(TASKS[task.name]) is type(task)


def test_the_seed_decides_the_model_and_the_batches(task):
    def drawn(seed):
        return state(task.model(seed)), list(islice(task.batches(seed), 3))

    (model, batches), (model_again, batches_again), (other, other_batches) = map(drawn, (1, 1, 2))
    assert same(model, model_again)
    assert same(batches, batches_again)
    assert not same(model, other)
    assert not same(batches[0], other_batches[0])
    assert not same(batches[0], batches[1])


def test_the_global_random_state_is_neither_read_nor_moved(task):
    def use():
        model = task.model(0)
        batches = list(islice(task.batches(0), 2))
        losses = [task.loss(model, batch).detach() for batch in batches]
        return state(model), batches, losses, torch.tensor(task.final_loss(model))

    def states():
        return torch.get_rng_state(), random.getstate(), np.random.get_state()

    results = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        before = states()
        results.append(use())
        after = states()
        assert torch.equal(before[0], after[0])
        assert before[1] == after[1]
        assert before[2][2:] == after[2][2:]
        assert (before[2][1] == after[2][1]).all()
    assert same(*results)


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


def test_the_metric_follows_the_weights(task):
    model = task.model(0)
    before = task.final_loss(model)
    with torch.no_grad():
        for p in trainable(model):
            p.add_(torch.linspace(0, 0.1, p.numel()).view_as(p))
    assert task.final_loss(model) != before


def test_a_few_steps_lower_the_loss_of_a_fixed_batch(task):
    model, batch = task.model(0), next(task.batches(0))
    first = task.loss(model, batch)
    optimizer = torch.optim.AdamW(trainable(model), lr=task.recipe.rates[0])
    for _ in range(8):
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
    assert loss < first


def test_settings_are_plain_data(task):
    plain = json.loads(json.dumps(task.to_dict()))
    assert plain["name"] == task.name
    assert plain["metric"] == task.metric
    assert plain["recipe"]["rates"] == sorted(set(task.recipe.rates))
    assert hash(task) == hash(dataclasses.replace(task))


def test_a_schedule_needs_steps():
    with pytest.raises(ConfigError, match="steps"):
        dataclasses.replace(CNN, steps=5)


def test_augmentation_moves_whole_images_and_nothing_else():
    images = load_digits().val[:64]
    still = augment(images, 0, 0.0, torch.Generator())
    moved = augment(images, 2, 0.0, torch.Generator().manual_seed(0))
    for image, result in zip(still, moved, strict=True):
        padded = nn.functional.pad(image[0], [2] * 4, value=float(still.min()))
        windows = padded.unfold(0, 8, 1).unfold(1, 8, 1).flatten(0, 1)
        assert (windows == result[0]).flatten(1).all(1).any()
    noisy = augment(images, 0, 0.2, torch.Generator().manual_seed(0))
    ratio = (noisy - still).std() / (still.max() - still.min())
    assert float(ratio) == pytest.approx(0.2, rel=0.05)


def test_held_out_digits_are_not_trained_on():
    digits = load_digits()
    shown = {image.numpy().tobytes() for image in digits.train}
    assert not any(image.numpy().tobytes() in shown for image in digits.val)
    assert len(digits.train) + len(digits.val) == 1797


def test_pixels_sit_where_the_photograph_has_them():
    positions, colours = pixel_table(INR.height, INR.width)
    image = load_photograph("china.jpg")
    rows, columns = image.shape[1:]
    assert positions.min() > 0 and positions.max() < 1
    for k in (0, INR.width - 1, 5000, len(positions) - 1):
        down, right = positions[k].tolist()
        half = rows / INR.height / 2, columns / INR.width / 2
        top, bottom = int(down * rows - half[0]), math.ceil(down * rows + half[0] - 1e-3)
        left, end = int(right * columns - half[1]), math.ceil(right * columns + half[1] - 1e-3)
        mean = image[:, top:bottom, left:end].mean((1, 2))
        torch.testing.assert_close(colours[k], mean, rtol=0, atol=0.02)


def test_batches_of_pixels_come_from_the_table():
    positions, colours = next(INR.batches(0))
    table, values = pixel_table(INR.height, INR.width)
    nearest = torch.cdist(positions, table).argmin(1)
    assert torch.equal(colours, values[nearest])


def test_fourier_features_are_waves():
    features = FourierFeatures(waves=3, scale=2.0)
    with torch.no_grad():
        features.frequencies.copy_(torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.5, 0.0]]))
    waves = features(torch.tensor([[0.25, 0.5]]))
    expected = torch.tensor([[0.0, 0.0, -1.0, 1.0, 1.0, 0.0]])
    torch.testing.assert_close(waves, expected, rtol=0, atol=1e-6)


def test_the_residual_of_a_known_function():
    def wave(points):
        x, t = points[:, :1], points[:, 1:]
        return (math.pi * x).sin() * (-t).exp()

    points = torch.rand(64, 2, dtype=torch.float64)
    x, t = points.unbind(1)
    sine, cosine, decay = (math.pi * x).sin(), (math.pi * x).cos(), (-t).exp()
    expected = -sine * decay + math.pi * sine * cosine * decay**2
    expected = expected + 0.3 * math.pi**2 * sine * decay
    with torch.no_grad():
        residual = burgers_residual(wave, points, viscosity=0.3)
    torch.testing.assert_close(residual.detach(), expected)


def test_an_exact_solution_has_no_residual():
    viscosity = 0.1

    def front(points):
        x, t = points[:, :1], points[:, 1:]
        return 0.5 - 0.5 * ((x - 0.5 * t) / (4 * viscosity)).tanh()

    points = torch.rand(64, 2, dtype=torch.float64)
    residual = burgers_residual(front, points, viscosity).detach()
    torch.testing.assert_close(residual, torch.zeros_like(residual), rtol=0, atol=1e-12)


def test_initial_condition_and_boundary_are_part_of_the_loss():
    def start(points):
        return -(math.pi * points[:, :1]).sin() + 0 * points[:, 1:]

    inside, initial, boundary = next(PINN.batches(0))
    assert (initial[:, 1] == 0).all()
    assert (boundary[:, 0].abs() == 1).all()
    equation = burgers_residual(start, inside, 0.05).square().mean()
    torch.testing.assert_close(physics_loss(start, (inside, initial, boundary), 0.05), equation)
    lifted = physics_loss(lambda p: start(p) + 0.1, (inside, initial, boundary), 0.05)
    moved = burgers_residual(lambda p: start(p) + 0.1, inside, 0.05).square().mean()
    torch.testing.assert_close(lifted - moved, torch.tensor(0.02), rtol=1e-3, atol=1e-5)


def test_adapters_start_at_the_base_model_and_leave_it_frozen():
    task = LORA.tiny()
    model, batch = task.model(0), next(task.batches(0))
    base = task.base().model(1)
    base.load_state_dict(base_state(task.base()))
    assert torch.equal(model(batch[0]), base(batch[0]))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    layers = [name for name, m in model.named_modules() if isinstance(m, LowRankLinear)]
    assert len(layers) == 4 * task.base().layers
    assert trained == {f"{name}.{part}.weight" for name in layers for part in ("down", "up")}

    optimizer = torch.optim.AdamW(trainable(model), lr=0.01)
    task.loss(model, batch).backward()
    optimizer.step()
    assert not torch.equal(model(batch[0]), base(batch[0]))
    frozen = {name.replace(".base.", "."): value for name, value in model.state_dict().items()}
    assert all(torch.equal(frozen[name], value) for name, value in base.state_dict().items())


def test_adapters_are_hidden_matrices():
    model = LORA.tiny().model(0)
    kinds = classify(model)
    assert {kinds[id(p)] for p in trainable(model)} == {"hidden"}


@pytest.mark.parametrize("name", TASKS)
def test_names_and_shapes_say_what_the_graph_shows(name):
    """So that a peer, which knows names and shapes alone, has the same hidden matrices."""
    task = TASKS[name].tiny()
    model = task.model(0)
    loss, seen, about = (
        task.loss(model, next(task.batches(0))),
        GraphFindings(),
        matrix_index(model),
    )
    seen.add(loss, about)
    loss.backward()
    moved = {id(p) for p in model.parameters() if p.grad is not None}
    named = classify(model)
    assert resolve(model, named, seen, about, moved) == (named, [])


def test_reference_text_is_split_by_topic():
    from pydoc_data.topics import topics

    text = load_reference_text()
    train, val = (bytes(part.numpy()) for part in (text.train, text.val))
    assert len(train) + len(val) == sum(len(text.encode()) for text in topics.values())
    for k, name in enumerate(sorted(topics)):
        assert topics[name].encode() in (val if k % 4 == 3 else train)


def test_missing_reference_text_is_a_typed_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ConfigError, match="pydoc_data"):
        load_reference_text.__wrapped__()


def test_the_autoencoder_normalises_batches():
    task = AUTOENCODER.tiny()
    model = task.model(0)
    noisy, clean = next(task.batches(0))
    assert noisy.shape == clean.shape == (task.batch_size, 1, task.patch, task.patch)
    assert float((noisy - clean).std()) == pytest.approx(task.noise, rel=0.05)
    assert model(noisy).shape == clean.shape
    before = task.final_loss(model)
    model(noisy)
    assert task.final_loss(model) != before, "evaluation mode must use the running statistics"
