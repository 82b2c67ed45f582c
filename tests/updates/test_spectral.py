"""The spectral update against its naive rule; its bound, share, memory and settings."""

import math

import numpy as np
import pytest
import torch
from contract import CORRECTED, Corrected, steps
from naive import Naive
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hybrid_predict import HybridConfig, HybridEngine, SpectralUpdate
from hybrid_predict.errors import ConfigError
from hybrid_predict.tensors.shapes import as_matrix
from hybrid_predict.updates import UPDATES, make_update
from hybrid_predict.updates.spectral import EARLY, SEEN_EVERY

RATE = 0.002
SHAPES = {"square": (4, 4), "tall": (6, 2), "wide": (2, 5), "convolution": (3, 2, 2, 2)}
MATRICES = [as_matrix(shape) for shape in SHAPES.values()]
SETTINGS = {
    "default": SpectralUpdate(),
    "averages alone": SpectralUpdate(newest=0.0, decay=0.8),
    "the newest gradient": SpectralUpdate(newest=0.5),
    "some roots": SpectralUpdate(longest=3, decay=0.9),
    "no root": SpectralUpdate(longest=0),
    "a share": SpectralUpdate(share=0.3),
    "own length": SpectralUpdate(bound=1.0),
    "any length": SpectralUpdate(bound=1e9),
}


def gradients(step):
    """A part persists, a part changes, and so does the size."""
    size, each = (1.0, 0.2, 3.0, 0.5)[step % 4], []
    for k, shape in enumerate(SHAPES.values()):
        n = np.arange(math.prod(shape))
        values = size * (np.sin(1.3 * n * n + k) + 0.8 * np.cos(n * (step + 1.0) + k))
        each.append(torch.tensor(values.reshape(shape), dtype=torch.float32))
    return each


class Matrices(nn.Module):
    """Four matrices that are given their gradients."""

    def __init__(self):
        super().__init__()
        for name, shape in SHAPES.items():
            setattr(self, name, nn.Parameter(torch.zeros(shape)))


def displacements(update, steps, period, rate):
    """What each full step moves when an optimizer descends along the gradients."""
    model = Matrices()
    optimizer = torch.optim.SGD(model.parameters())
    config = HybridConfig(
        total_steps=100, speedup=1, updates={"hidden": update}, kinds={"*": "hidden"}
    )
    moved = []
    with HybridEngine(model, optimizer, config) as engine:
        engine._groups.set_period(period)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rate(step) if callable(rate) else rate
            before = [p.detach().clone() for p in model.parameters()]
            engine.before_step()
            for p, gradient in zip(model.parameters(), gradients(step), strict=True):
                p.grad = gradient
            optimizer.step()
            engine.after_step()
            pairs = zip(model.parameters(), before, strict=True)
            moved.append([(p - b).detach() for p, b in pairs])
        turns = [turn for group in engine._groups for turn in group._turns]
    return moved, turns


@pytest.mark.parametrize(
    ("case", "period", "rate"),
    [
        *((case, 1, RATE) for case in SETTINGS),
        ("default", 3, RATE),
        ("default", 1, 10 * RATE),
        ("any length", 1, lambda step: 5 * RATE * (1 - abs(step - 10) / 40)),  # up, then down
        ("any length", 1, lambda step: 5 * RATE * (step % 3)),
    ],
)
def test_it_moves_as_the_naive_rule(case, period, rate):
    update = SETTINGS[case]
    found, turns = displacements(update, steps=24, period=period, rate=rate)
    assert set(turns) == set(range(period))
    naive = Naive(update, MATRICES, period, turns)
    for step, moved in enumerate(found):
        given = zip(gradients(step), MATRICES, strict=True)
        matrices = [g.double().numpy().reshape(shape) for g, shape in given]
        now = rate(step) if callable(rate) else rate
        for x, wanted in zip(moved, naive.step(matrices, now), strict=True):
            size = np.linalg.norm(wanted)
            np.testing.assert_allclose(x.reshape(wanted.shape), wanted, rtol=0, atol=3e-4 * size)


@pytest.mark.parametrize(("rank", "history"), [("out", "bfloat16"), ("in", "float32")])
def test_a_gradient_that_is_zero_for_many_steps_moves_nothing_and_then_goes_downhill(rank, history):
    """The first factor of a low-rank adapter has none while the second is zero."""
    corrected = Corrected(SpectralUpdate(), history)
    member, nothing = {"out": 1, "in": 2}[rank], [torch.zeros(s) for s in CORRECTED.values()]
    for _ in range(30):
        assert not any(direction.any() for direction in corrected.directions(nothing))
    (given,) = steps(CORRECTED, count=1)
    direction = corrected.directions(given)[member]
    assert float(direction.norm()) == pytest.approx(1.0, abs=1e-5)
    assert float(torch.cosine_similarity(direction.flatten(), given[member].flatten(), 0)) < -0.5
    for array in corrected.state.arrays.values():
        assert all(x.isfinite().all() for x in array)


@pytest.mark.parametrize(
    ("history", "size", "longest"), [("float32", 1.0, 8192), ("bfloat16", 0.5, 4)]
)
def test_covariance_and_root_take_at_most_the_memory_of_the_weights(history, size, longest):
    like = [torch.zeros(shape) for shape in [(64, 64), (64, 256), (256, 64), (8, 4, 3, 3)]]
    state = SpectralUpdate(longest=longest).init(like, history)
    for x, root in zip(like, state.arrays["roots"], strict=True):
        short = min(as_matrix(x.shape))
        # One number more for each row: the diagonals of both.
        most = (x.numel() + short) * 4 * size if short <= longest else 0
        assert root.nbytes <= most
        assert bool(root.nbytes) is bool(most)
    others = sum(x.nbytes for name, each in state.arrays.items() if name != "roots" for x in each)
    sides = sum(map(sum, (as_matrix(x.shape) for x in like)))
    assert others <= 4 * (2 * sides) + 8 * len(like)


@pytest.mark.parametrize(("period", "longest"), [(1, 8192), (4, 4), (20, 0)])
def test_operations_are_those_that_torch_counts(longest, period):
    """Torch does not count inverses; each takes the third power of the shorter side."""
    update = SpectralUpdate(longest=longest)
    like = [torch.zeros(8, 4), torch.zeros(6, 3, 4)]
    total = 0
    state = update.init(like, "float32")
    state.period = period
    rounds = SEEN_EVERY * SEEN_EVERY
    for step in range(EARLY + rounds):
        matrices = [torch.randn(x.shape) for x in like]
        with FlopCounterMode(display=False) as counter:
            update.direction(state, range(2), matrices)
        total += counter.get_total_flops() if step >= EARLY else 0
    every = max(1, SEEN_EVERY // period)
    shorter = [4, 6]
    inverses = sum(n**3 * (1 + (n <= longest) / every) for n in shorter)
    assert total / rounds + inverses == pytest.approx(update.operations(like, period), abs=0.5)


OUT_OF_RANGE = {
    "share": (-0.1, 1.1, True),
    "bound": (0.9, math.inf, None),
    "decay": (1.0, math.nan),
    "newest": (0.6,),
    "longest": (-1, 1.5, True),
}


@pytest.mark.parametrize(
    ("argument", "value"), [(name, value) for name, bad in OUT_OF_RANGE.items() for value in bad]
)
def test_hyperparameters_out_of_range_are_refused(argument, value):
    with pytest.raises(ConfigError, match=f"^{argument}: expected .*got {value!r}"):
        SpectralUpdate(**{argument: value})


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_a_value_that_its_name_stands_for(name):
    update = make_update(name)
    assert update == UPDATES[name]()
    assert make_update(update) is update
    with pytest.raises(ConfigError, match="history_dtype"):
        UPDATES[name](decay=0.96).init([torch.zeros(2, 2)], "bfloat16")
