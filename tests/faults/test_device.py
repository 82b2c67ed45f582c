"""Nothing waits for the device but the one flag of a verifying step."""

import pytest
import torch
from cases import MODELS, OPTIMIZERS
from loops import SPOILERS, Bench, make_config, same_bits
from torch.utils._python_dispatch import TorchDispatchMode

from faulty import state
from hybrid_predict import HybridEngine, Verdict
from hybrid_predict.groups import groups
from hybrid_predict.torch.optimizer import OptimizerWrapper

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
    """Gradient descent that a flag on the device holds back, as fused optimizers do."""

    def __init__(self, parameters):
        super().__init__(list(parameters), {"lr": 0.1, "fused": True})

    @torch.no_grad()
    def step(self):
        found = getattr(self, "found_inf", None)
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.sub_(0.1 * p.grad if found is None else 0.1 * p.grad * (1.0 - found))


def from_host(original):
    """The same function, which may not send a list of numbers to the device."""

    def checked(*args, **kwargs):
        result = original(*args, **kwargs)
        assert not (result.is_meta and isinstance(args[-1], list)), "numbers are sent to the device"
        return result

    return checked


@pytest.mark.parametrize("model", ["mlp", "conv", "partly-trained"])
def test_no_step_reads_the_device_or_copies_to_it(model, monkeypatch):
    """On the meta device, which has nothing to be read: whatever waits for it raises."""
    monkeypatch.setattr(OptimizerWrapper, "holds_on_device", lambda *_: True)
    monkeypatch.setattr(OptimizerWrapper, "check_state", lambda *_: None)  # in the first step
    monkeypatch.setattr(groups, "overlapping", lambda *_: set())  # all have the same address
    net = MODELS[model].build().to("meta").requires_grad_(True)
    inputs, targets = (x.to("meta") for x in MODELS[model].batch(0))
    optimizer = Descent(p for p in net.parameters() if p.requires_grad)
    engine = HybridEngine(net, optimizer, make_config(total_steps=100, lag=90))
    predicted, seen = 0, Scalars()
    for k in range(12):
        watching = seen if k else Scalars()
        with watching:
            engine.before_step()
        loss = MODELS[model].loss(net, (inputs, targets))
        loss.backward()
        with watching:
            optimizer.step()
        optimizer.zero_grad()
        with watching:
            record = engine.after_step(loss)
        predicted += record.predicted
        for owner, name in ((torch, "tensor"), (torch.Tensor, "__getitem__")) if not k else ():
            monkeypatch.setattr(owner, name, from_host(getattr(owner, name)))
    assert predicted > 5
    assert not engine._state.plain and not engine.ledger.events
    assert (seen.read, seen.sent) == (0, 0)


def test_a_verifying_step_reads_one_flag_more_than_another():
    reads = {}
    bench = Bench(make_config(total_steps=60, lag=4))
    for _ in range(20):
        bench.engine.before_step()
        loss = bench.loss()
        loss.backward()
        with Scalars() as seen:
            bench.optimizer.step()
            record = bench.engine.after_step(loss)
        bench.optimizer.zero_grad()
        reads.setdefault(record.predicted, set()).add(seen.read)
    (without,), (verifying,) = reads[0], reads[1]
    assert verifying == without + 1


@pytest.mark.parametrize("lag", [0, 4])
def test_a_fused_optimizer_is_held_back_by_a_flag(lag, monkeypatch):
    monkeypatch.setattr(OptimizerWrapper, "hold_back", None)
    bench = Bench(make_config(lag=lag), "conv", "adamw-fused")
    bench.train(5)
    before = state(bench)
    records = [bench.step(SPOILERS["one-gradient"])]
    assert records[0].predicted == 1
    assert same_bits(before, state(bench))
    records += bench.finish()
    (undone,) = [r for r in records if r.verdict is Verdict.UNDONE]
    assert (undone.read_step, undone.step) == (6, 6 + lag)
    assert bench.engine.ledger.undone_steps == 1 and bench.engine.ledger.steps == 30


class TestOnAnAccelerator:
    pytestmark = needs_gpu

    @pytest.mark.parametrize("spoiler", ["nan-loss", "inf-loss", "one-gradient"])
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_bad_gradients_leave_no_trace(self, optimizer, spoiler):
        bench = Bench(make_config(), "conv", optimizer, "cuda")
        bench.train(5)
        before = state(bench)
        bench.step(SPOILERS[spoiler])
        assert same_bits(before, state(bench))
        bench.finish()
        assert bench.engine.ledger.undone_steps == 1

    @pytest.mark.parametrize("model", ["mlp", "conv"])
    def test_steady_state_never_waits_for_the_device(self, model):
        bench = Bench(make_config(total_steps=100), model, "adamw-fused", "cuda")
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
        assert record.predicted == 1

    def test_a_scaler_that_skips_a_step_undoes_predicted_steps(self):
        for fused in (False, True):
            bench = Bench(make_config(), "mlp", "adamw-fused" if fused else "adamw", "cuda")
            bench.train(5)
            before, scaler = state(bench), torch.amp.GradScaler()
            bench.engine.before_step()
            loss = bench.loss()
            scaler.scale(SPOILERS["inf-loss"](bench.model, loss)).backward()
            scaler.step(bench.optimizer)
            scaler.update()
            bench.optimizer.zero_grad()
            bench.engine.after_step(loss)
            assert same_bits(before, state(bench))
