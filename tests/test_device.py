"""What only an accelerator shows: undoing without the host, and no waiting."""

import pytest
import torch

from cases import OPTIMIZERS
from hybrid_predict import Verdict
from loops import SPOILERS, Bench, make_config, same_bits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("spoiler", SPOILERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_spoiled_forecast_leaves_no_trace_on_the_device(optimizer, spoiler):
    bench = Bench(make_config(lag=0), "conv", optimizer, "cuda")
    bench.train(5)
    before = bench.trace()
    record = bench.step(SPOILERS[spoiler])
    after = bench.trace()
    assert record.verdict is Verdict.REJECTED
    assert same_bits(before["model"], after["model"])
    assert same_bits(before["optimizer"], after["optimizer"])


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-fused", "sgd"])
def test_host_side_counts_are_right_once_the_verdict_is_read(optimizer):
    config = make_config(lag=4, total_steps=60)
    bench = Bench(config, "mlp", optimizer, "cuda")
    for k in range(20):
        bench.step(SPOILERS["nan-loss"] if k in (8, 9) else None)
    counts = {float(s["step"]) for s in bench.optimizer.state.values() if "step" in s}
    assert counts <= {18.0}
    assert all(torch.isfinite(p).all() for p in bench.model.parameters())


def test_steady_state_never_waits_for_the_device():
    bench = Bench(make_config(total_steps=100), "mlp", "adamw-fused", "cuda")
    bench.train(12)
    batches = [tuple(x.cuda() for x in bench.case.batch(k)) for k in range(10)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            bench.engine.before_step()
            loss = bench.case.loss(bench.model, batch)
            loss.backward()
            bench.optimizer.step()
            bench.optimizer.zero_grad()
            record = bench.engine.after_step(loss)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert record.horizon > 0
