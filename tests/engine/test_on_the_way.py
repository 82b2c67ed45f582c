"""What user code may change on the way: memory of weights, rates, shapes, predictors, counts."""

import math

import torch
from loops import Bench, Run, make_config, net, same_bits, weights
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine, Verdict


def predicted(bench):
    """Open a verifying step, and return the weights before its predicted steps."""
    while True:
        before = weights(bench.model)
        bench.engine.before_step()
        if bench.engine._step.predicted:
            return before
        bench.engine.abandon()
        bench.step()


def test_an_undo_reaches_weights_that_were_given_other_memory_inside_the_step():
    bench = Bench(make_config())
    before = predicted(bench)
    for p in bench.model.parameters():
        p.data = p.data.clone()
    assert not same_bits(weights(bench.model), before)
    bench.engine.abandon()
    assert same_bits(weights(bench.model), before)


def test_a_learning_rate_in_a_tensor_stays_the_same_tensor_after_an_undone_verdict():
    rate = torch.tensor(1e-3)
    model = net(6, 8, 8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, foreach=False)

    def loss(model, k):
        found = model(torch.ones(4, 6)).square().mean()
        return found * math.nan if k % 4 == 3 else found

    run = Run(model, optimizer, make_config(), loss)
    records = run.train(24).records
    assert any(record.verdict is Verdict.UNDONE for record in records)
    assert optimizer.param_groups[0]["lr"] is rate


def test_a_layer_of_another_size_under_the_same_name_is_corrected_and_learnt_anew():
    model = net(6, 8, 8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = HybridEngine(model, optimizer, make_config(total_steps=60))

    def steps(count):
        for _ in range(count):
            engine.before_step()
            loss = model(torch.ones(4, 6)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step(loss)

    steps(10)
    model[0], model[2] = nn.Linear(6, 12), nn.Linear(12, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine.replace_optimizer(optimizer)
    steps(10)
    assert not engine.ledger.fell_back
    assert engine.ledger.corrected_steps == engine.ledger.full_steps


class Ascending(torch.optim.Optimizer):
    """Goes along the gradient without saying so."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=group["lr"])


def test_an_optimizer_that_goes_uphill_is_left_to_itself():
    def trained(updates):
        model = net(6, 8, 8, 3)
        config = HybridConfig(total_steps=20, speedup=1, updates=updates, max_overhead=1e9)
        batch = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
        optimizer = Ascending(model.parameters())
        run = Run(model, optimizer, config, lambda model, k: model(batch).sin().mean())
        return weights(run.finish().model)

    assert same_bits(trained({"hidden": "spectral"}), trained({}))


def test_windows_of_one_kind_that_close_apart_do_not_measure_persistence():
    config = make_config(total_steps=200, speedup="auto", kinds={"0.bias": "hidden"})
    bench = Bench(config)
    bench.model[0].bias.requires_grad_(False)
    bench.train(33)
    bench.model[0].bias.requires_grad_(True)
    before = bench.engine._policy.confidences["hidden", 0]
    measured, windows = before.measured, before.skill.windows
    bench.train(60)
    after = bench.engine._policy.confidences["hidden", 0]
    assert after.measured == measured and after.skill.windows > windows
