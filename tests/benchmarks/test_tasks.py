"""What every benchmark task promises, and what is special to some of them."""

import math
from itertools import islice

import pytest
import torch
from kind_cases import resolved
from torch.utils import _pytree as pytree

from benchmarks.optimizers import known_kinds
from benchmarks.tasks import TASKS
from benchmarks.tasks.burgers import burgers_residual
from benchmarks.tasks.digits import load_digits


@pytest.fixture(params=TASKS, scope="module")
def task(request):
    return TASKS[request.param].tiny()


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(left, right):
    ours = pytree.tree_leaves(left)
    theirs = pytree.tree_leaves(right)
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


def test_the_metric_leaves_the_model_as_it_was(task):
    model = task.model(0)
    task.loss(model, next(task.batches(0))).backward()
    before = state(model)
    grads = [p.grad.clone() for p in trainable(model)]
    metric = task.final_loss(model)
    assert math.isfinite(metric) and metric == task.final_loss(model)
    assert same(before, state(model))
    assert same(grads, [p.grad for p in trainable(model)])
    assert all(module.training for module in model.modules())


def test_a_few_steps_lower_the_loss_of_a_fixed_batch(task):
    model = task.model(0)
    batch = next(task.batches(0))
    optimizer = torch.optim.AdamW(trainable(model), lr=task.recipe.rates[0])
    losses = [task.full_step(model, batch, optimizer) for _ in range(8)]
    assert losses[-1] < losses[0]


def test_held_out_digits_are_not_trained_on():
    shown, held = ({image.numpy().tobytes() for image in part} for part, _ in load_digits())
    assert not shown & held
    assert len(shown) + len(held) == 1797


def test_an_exact_solution_has_no_residual():
    viscosity = 0.1

    def front(points):
        x = points[:, :1]
        t = points[:, 1:]
        return 0.5 - 0.5 * ((x - 0.5 * t) / (4 * viscosity)).tanh()

    points = torch.rand(64, 2, dtype=torch.float64)
    residual = burgers_residual(front, points, viscosity).detach()
    torch.testing.assert_close(residual, torch.zeros_like(residual), rtol=0, atol=1e-12)


def test_names_and_shapes_say_what_the_loss_shows(task):
    """So that a peer, which knows names and shapes alone, has the same hidden matrices."""
    model = task.model(0)
    batch = next(task.batches(0))
    kinds = known_kinds(model)
    named = {n: kinds[n] for n, p in model.named_parameters() if p.requires_grad}
    matrices = {name: kind for name, kind in named.items() if kind != "vector"}
    assert resolved(model, lambda net: task.loss(net, batch)) == (matrices, [])
