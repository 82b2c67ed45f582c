"""Nothing waits for the device but a verifying step, once, and the end of a window."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from cases import MODELS, OPTIMIZERS
from loops import SPOILERS, Bench, load, make_config, same_bits, save
from torch.utils._python_dispatch import TorchDispatchMode

from hybrid_predict import HybridEngine
from hybrid_predict.step import read

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Scalars(TorchDispatchMode):
    """Counts what the host reads out of tensors, and what it copies into those on a device."""

    def __init__(self):
        super().__init__()
        self.read = self.sent = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        # The number of a matrix's corrections is an integer that is on the host anyway.
        count = bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.int64
        self.read += name in ("_local_scalar_dense", "nonzero", "equal") and not count
        if name == "index" and args[0].is_meta:
            self.sent += any(i is not None and not i.is_meta for i in args[1])
        if name in ("_to_copy", "copy_", "lift_fresh"):
            source = args[1] if name == "copy_" else args[0]
            to = args[0] if name == "copy_" else result
            self.sent += to.is_meta and (name == "lift_fresh" or not source.is_meta)
        return result


class Descent(torch.optim.Optimizer):
    """Gradient descent that reads nothing."""

    def __init__(self, parameters):
        super().__init__(list(parameters), {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.sub_(0.1 * p.grad)


def from_host(original):
    """The same function, which may not send a list of numbers to the device."""

    def checked(*args, **kwargs):
        result = original(*args, **kwargs)
        assert not (result.is_meta and isinstance(args[-1], list)), "numbers are sent to the device"
        return result

    return checked


@pytest.mark.parametrize(
    ("model", "changes", "steps"), [("mlp", {"speedup": 1}, 5), ("conv", {"warmup_steps": 50}, 12)]
)
def test_a_step_that_verifies_nothing_neither_reads_the_device_nor_copies_to_it(
    model, changes, steps, monkeypatch
):
    """On the meta device, which has nothing to be read: whatever waits for it raises."""
    net = MODELS[model].build().to("meta").requires_grad_(True)
    inputs, targets = (x.to("meta") for x in MODELS[model].batch(0))
    optimizer = Descent(p for p in net.parameters() if p.requires_grad)
    engine = HybridEngine(net, optimizer, make_config(total_steps=100, **changes))
    seen = Scalars()
    for k in range(steps):
        watching = seen if k else nullcontext()  # the first full step has a mode of its own
        with watching:
            engine.before_step()
        loss = MODELS[model].loss(net, (inputs, targets))
        loss.backward()
        with watching:
            optimizer.step()
        optimizer.zero_grad()
        with watching:
            record = engine.after_step(loss)
        assert (record.loss, record.gradients) == (None, None)
        for owner, name in ((torch, "tensor"), (torch.Tensor, "__getitem__")) if not k else ():
            monkeypatch.setattr(owner, name, from_host(getattr(owner, name)))
    assert engine.ledger.corrected_steps == steps
    assert not engine._state.plain and not engine.ledger.events
    assert (seen.read, seen.sent) == (0, 0)


@pytest.fixture
def reads(monkeypatch):
    """How many numbers were read, as late as those on a device, each time that any were."""
    found = []

    def noting(parts):
        found.append(len(parts))
        return read(parts)

    monkeypatch.setattr("hybrid_predict.state.read", noting)
    monkeypatch.setattr("hybrid_predict.state.on_host", lambda _: False)
    return found


def test_measurements_on_a_device_are_read_together(reads):
    bench = Bench(make_config(total_steps=50, warmup_steps=10, full_steps=2, predict_steps=1))
    found, windows = [], 0
    while not bench.engine.done:
        reads.clear()
        record = bench.step()
        closed = bench.engine.ledger.skills.get("hidden", {}).get("windows", 0) - windows
        windows += closed
        found.append(len(reads) - record.predicted - closed)
    *others, last = found
    assert set(others) == {0} and last == 1 and windows == 1


def test_a_run_with_unread_measurements_resumes_bit_for_bit(reads):
    config = make_config(total_steps=40, speedup=1.5)
    bench = Bench(config)
    bench.train(9)
    saved = save(bench)
    bench.finish()
    again = load(saved, config)
    again.finish()
    assert same_bits(again.trace(), bench.trace())


class TestOnAnAccelerator:
    pytestmark = needs_gpu

    @pytest.mark.parametrize("spoiler", ["nan-loss", "inf-loss", "one-gradient"])
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_bad_gradients_leave_no_trace(self, optimizer, spoiler):
        bench = Bench(make_config(), "conv", optimizer, "cuda")
        bench.train(5)
        before = bench.kept()
        bench.step(SPOILERS[spoiler])
        assert same_bits(before, bench.kept())
        bench.finish()
        assert bench.engine.ledger.undone_steps == 1

    @pytest.mark.parametrize("model", ["mlp", "conv"])
    def test_only_a_verifying_step_waits_for_the_device_and_once(self, model):
        config = make_config(total_steps=100, full_steps=2, predict_steps=1)
        bench, waits = Bench(config, model, "adamw-fused", "cuda"), []
        bench.train(12)
        batches = [tuple(x.cuda() for x in bench.case.batch(k)) for k in range(10)]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for batch in batches:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    bench.engine.before_step()
                    loss = bench.case.loss(bench.model, batch)
                    loss.backward()
                    bench.optimizer.step()
                    bench.optimizer.zero_grad()
                    record = bench.engine.after_step(loss)
                waits.append((record.predicted, len(caught)))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert set(waits) == {(0, 0), (1, 1)}
