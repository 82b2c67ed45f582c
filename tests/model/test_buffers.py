"""Buffers and frozen parameters are as before an undone step, whatever happened to them in it."""

import math

import pytest
import torch
from cases import UNGATED
from torch import nn

from hybrid_predict import HybridConfig, HybridEngine

pytestmark = pytest.mark.filterwarnings("ignore:Sparse C")

NAN = math.nan
LARGE = 10_000
"""Entries of a buffer that is not copied unless it is seen to change."""


class Base(nn.Module):
    """A small network with something beside it that steps change."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2))

    def beside(self, value, bad):
        """What a step does besides its loss.

        Args:
            value: Some number of the batch, not finite in a bad step.
            bad: Whether the step is bad.
        """

    def forward(self, x, bad=False):
        out = self.net(x)
        self.beside(out.detach().mean() * (NAN if bad else 1.0), bad)
        return out


class Grows(Base):
    """A buffer that is replaced by a longer one in every step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0))

    def beside(self, value, bad):
        self.seen = torch.cat([self.seen, value[None]])


class GrowsInPlace(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def beside(self, value, bad):
        if bad:
            self.seen.resize_(6).fill_(value)


class Deletes(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(3))

    def beside(self, value, bad):
        if bad:
            del self.cache


class Empties(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(3))

    def beside(self, value, bad):
        self.cache = None if bad else torch.ones(3)


class Fills(Base):
    """A buffer that is None between steps, as caches are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", None, persistent=False)

    def beside(self, value, bad):
        self.cache = value.expand(4).clone() if bad else None


class Sparse(Base):
    """Sparse buffers that steps write to, one of them with more entries in the bad step."""

    def __init__(self):
        super().__init__()
        for name, size in (("small", 8), ("large", 200), ("denser", 200)):
            self.register_buffer(name, torch.eye(size).to_sparse())
        self.register_buffer("rows", torch.eye(200).to_sparse_csr())
        self.register_buffer("columns", torch.eye(8).to_sparse_csc())
        self.register_buffer("never", torch.eye(200).to_sparse_csr())
        self.register_buffer("blocks", torch.eye(8).to_sparse_bsr((2, 2)))

    def beside(self, value, bad):
        for name in ("small", "large"):
            getattr(self, name).mul_(1.0 + value)
        for name in ("rows", "columns", "blocks"):
            getattr(self, name).values().add_(value)
        ones = torch.ones(200, 200) if bad else torch.eye(200)
        self.denser.add_(ones.to_sparse())


class SparseValues(Base):
    """A sparse buffer whose entries stay where they are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("graph", torch.eye(200).to_sparse())

    def beside(self, value, bad):
        self.graph.mul_(1.0 + value)


class Registers(Base):
    """A buffer that is made in the bad step."""

    def beside(self, value, bad):
        if bad:
            self.register_buffer("late", value.expand(4).clone(), persistent=False)


class RegistersEarlier(Base):
    """A large buffer that is made long after training has begun, and written to since."""

    steps = 0

    def beside(self, value, bad):
        self.steps += 1
        if self.steps == 10:
            self.register_buffer("late", torch.zeros(LARGE))
        if self.steps > 10:
            self.late.add_(value)


class ThroughData(Base):
    """Written to behind the version counter's back."""

    def __init__(self):
        super().__init__()
        self.register_buffer("small", torch.zeros(3))
        self.register_buffer("large", torch.zeros(LARGE))

    def beside(self, value, bad):
        for buffer in (self.small, self.large):
            buffer.data.add_(value)


class Teacher(Base):
    """A frozen copy that follows the network in every step."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(4, 8).requires_grad_(False)

    def beside(self, value, bad):
        with torch.no_grad():
            self.teacher.weight.lerp_(self.net[0].weight * (NAN if bad else 1.0), 0.1)
            self.teacher.bias.data.lerp_(self.net[0].bias * (NAN if bad else 1.0), 0.1)


class Norms(Base):
    def __init__(self):
        super().__init__()
        self.net.append(nn.BatchNorm1d(2))

    def forward(self, x, bad=False):
        return super().forward(x * NAN if bad else x)


class Shared(Base):
    """Two modules hold the same buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.net.register_buffer("count", self.count)

    def beside(self, value, bad):
        self.count.add_(value)


CASES = (Grows, GrowsInPlace, Deletes, Empties, Registers, RegistersEarlier, ThroughData)
CASES += (Teacher, Norms, Shared, Fills, Sparse, SparseValues)


def train(model, steps, fused, config):
    """Full steps until one that verifies predicted steps is spoiled, and two after it."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, fused=fused)
    engine = HybridEngine(model, optimizer, config)
    before, undone = None, None
    for k in range(steps + 3):
        at_end = snapshot(model)
        engine.before_step()
        bad = k >= steps and undone is None and due(engine)
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(k))
        (model(x, bad).square().mean() * (NAN if bad else 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        engine.after_step()
        if bad:
            before, undone = at_end, snapshot(model)
    return engine, before, undone


def due(engine):
    """Whether predicted steps were taken right before the full step under way."""
    step = getattr(engine, "_step", None)
    return bool(step is None or step.predicted)


def snapshot(model):
    frozen = [(n, p) for n, p in model.named_parameters() if not p.requires_grad]
    named = [*model.named_buffers(remove_duplicate=False), *frozen]
    return {name: tensor.detach().clone() for name, tensor in named}


def same(left, right):
    return left.layout == right.layout and torch.equal(left.to_dense(), right.to_dense())


def structure(model):
    """Which buffers are whose, None included, and whether a checkpoint holds them."""
    return {
        name: (sorted(m._buffers), sorted(m._non_persistent_buffers_set))
        for name, m in model.named_modules()
    }


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("case", CASES)
def test_an_undone_step_leaves_no_trace_beside_the_weights(case, fused):
    model = case()
    config = HybridConfig(
        total_steps=60, full_steps=1, predict_steps=1, warmup_steps=2, predictors=UNGATED
    )
    engine, before, undone = train(model, 21, fused, config)
    assert undone is not None
    assert engine.ledger.undone_steps == 1
    assert undone.keys() == before.keys()
    for name, tensor in before.items():
        assert same(undone[name], tensor), name
    tensors = [*model.buffers(), *model.parameters()]
    assert all(torch.isfinite(t.to_dense()).all() for t in tensors)
    assert not engine._state.plain


@pytest.mark.parametrize("case", [Deletes, Empties, Fills, Registers, Grows])
def test_the_model_has_the_same_buffers_in_the_same_places(case):
    model = case()
    config = HybridConfig(
        total_steps=60, full_steps=1, predict_steps=1, warmup_steps=2, predictors=UNGATED
    )
    before = structure(model)
    train(model, 21, False, config)
    assert structure(model) == before


@pytest.mark.parametrize("case", CASES)
def test_a_good_step_keeps_what_it_did_beside_the_weights(case):
    """Corrected or not, predicted or not: buffers are those of the last step."""
    model = case()
    config = HybridConfig(
        total_steps=60, full_steps=1, predict_steps=1, warmup_steps=2, predictors=UNGATED
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with HybridEngine(model, optimizer, config) as engine:
        for k in range(20):
            engine.before_step()
            x = torch.randn(16, 4, generator=torch.Generator().manual_seed(k))
            loss = model(x).square().mean()
            seen = snapshot(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step(loss)
            now = snapshot(model)
            assert all(same(now[name], tensor) for name, tensor in seen.items())
    assert engine.ledger.predicted_steps > 5


def test_what_never_changes_is_not_copied():
    model = Base()
    model.register_buffer("table", torch.randn(LARGE))
    frozen = nn.Linear(100, 100).requires_grad_(False)
    model.frozen = frozen
    config = HybridConfig(
        total_steps=60, full_steps=1, predict_steps=1, warmup_steps=2, predictors=UNGATED
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with HybridEngine(model, optimizer, config) as engine:
        for _ in range(20):
            engine.before_step()
            kept = engine._buffers._copies or {}
            assert sum(copy.numel() for _, _, copy in kept.values()) < LARGE
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
            engine.after_step()


class Table(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.register_buffer("values", values)


META = {
    "a frozen layer": lambda: nn.Linear(100, 100, device="meta").requires_grad_(False),
    "a frozen vector": lambda: nn.LayerNorm(4, device="meta").requires_grad_(False),
    "a buffer": lambda: Table(torch.zeros(LARGE, device="meta")),
    "buffers that may change": lambda: nn.BatchNorm1d(LARGE, affine=False, device="meta"),
}


@pytest.mark.parametrize("listed", [False, True], ids=["", "given to the optimizer"])
@pytest.mark.parametrize("case", META)
def test_what_is_on_the_meta_device_is_left_alone(case, listed):
    """As in a model of which only a part is loaded."""
    model = Base()
    model.never_used = META[case]()
    trained = [p for p in model.parameters() if listed or p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    config = HybridConfig(
        total_steps=60, full_steps=1, predict_steps=1, warmup_steps=2, predictors=UNGATED
    )
    with HybridEngine(model, optimizer, config) as engine:
        for k in range(20):
            engine.before_step()
            bad = k > 15 and due(engine) and not engine.ledger.undone_steps
            x = torch.randn(16, 4, generator=torch.Generator().manual_seed(k))
            (model(x).square().mean() * (NAN if bad else 1.0)).backward()
            optimizer.step()
            optimizer.zero_grad()
            engine.after_step()
            assert all(t.is_meta for t in model.never_used.state_dict().values())
    assert not engine._state.plain
    assert engine.ledger.predicted_steps > 5
    assert engine.ledger.undone_steps == 1
    assert all(p.isfinite().all() for p in model.net.parameters())
