"""What a record says about gradients, against a reference computed by hand."""

import pytest
import torch
from loops import Bench, Run, make_config, weights
from torch import nn

from hybrid_predict import GradientInfo, TorchModel
from hybrid_predict.ranks.shards import dense_gradient


def watched(bench, clip):
    """One full step; its record, its gradients, and how far the predicted steps moved weights."""
    base = weights(bench.model)
    bench.engine.before_step()
    opened = weights(bench.model)
    loss = bench.loss()
    loss.backward()
    if clip:
        nn.utils.clip_grad_norm_(bench.model.parameters(), 0.1)
    named = [(n, p) for n, p in bench.model.named_parameters() if p.grad is not None]
    gradients = {name: p.grad.clone() for name, p in named}
    bench.optimizer.step()
    bench.optimizer.zero_grad()
    bench.taken += 1
    moved = {name: opened[name] - base[name] for name in opened}
    return bench.engine.after_step(loss), gradients, moved, loss.item()


def cosine(left, right):
    """Of the angle between two tensors, in 64 bits."""
    x, y = left.double().flatten(), right.double().flatten()
    return (x @ y / (x.norm() * y.norm())).item()


@pytest.mark.parametrize(("model", "clip"), [("tied", True), ("partly-trained", False)])
def test_norms_and_alignments_are_those_of_the_gradients_that_are_applied(model, clip):
    bench = Bench(make_config(), model)
    bench.train(5)
    for _ in range(3):
        record, gradients, moved, loss = watched(bench, clip)
        info = record.gradients
        assert info.loss == record.loss == pytest.approx(loss)
        norms = {name: g.norm().item() for name, g in gradients.items()}
        assert info.norms == pytest.approx(norms, rel=1e-5)
        total = torch.tensor(list(norms.values())).norm().item()
        assert info.total_norm == pytest.approx(total, rel=1e-5)
        moves = {name: g for name, g in gradients.items() if moved[name].any()}
        cosines = {name: -cosine(g, moved[name]) for name, g in moves.items()}
        assert bool(cosines) == bool(record.predicted)
        assert info.alignments == pytest.approx(cosines, abs=2e-4)


@pytest.mark.parametrize("maximize", [False, True])
def test_a_forecast_along_a_steady_slope_is_aligned_whichever_way_the_optimizer_goes(maximize):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=maximize)
    config, slope = make_config(updates={}), lambda model, k: model.weight.sum() + model.bias.sum()
    *_, record = Run(model, optimizer, config, slope).train(6).records
    assert record.predicted
    assert record.gradients.alignments == pytest.approx({"weight": 1.0, "bias": 1.0})


def test_sparse_gradients_are_measured_as_dense_ones():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert dense_gradient(table.weight).norm().item() == pytest.approx((2 * 4 + 2 * 1) ** 0.5)


def test_a_model_s_backward_tells_its_gradients_as_tensors_on_the_device():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[1].bias.requires_grad_(False)
    model = TorchModel(net, lambda module, batch: module(batch).square().mean())
    loss = model.forward(torch.ones(5, 3))
    info = model.backward(loss)
    assert isinstance(info, GradientInfo)
    assert info.alignments == {}
    gradients = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    assert info.norms.keys() == gradients.keys() == {"0.weight", "0.bias", "1.weight"}
    for name, gradient in gradients.items():
        torch.testing.assert_close(info.norms[name], gradient.norm())
    wanted = torch.cat([g.flatten() for g in gradients.values()]).norm()
    torch.testing.assert_close(info.total_norm, wanted)
    assert torch.equal(info.loss, loss.detach())
    tensors = [info.loss, info.total_norm, *info.norms.values()]
    assert {(t.dim(), t.requires_grad) for t in tensors} == {(0, False)}
