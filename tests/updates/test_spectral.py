"""The registered updates against their naive rule; their bound, share and settings."""

import math

import numpy as np
import pytest
import torch
from naive import Naive
from torch import nn

from hybrid_predict import ConfigError, HybridConfig, HybridEngine, SpectralUpdate, WhitenedUpdate
from hybrid_predict.rules.budget import as_matrix
from hybrid_predict.updates import UPDATES, make_update

RATE = 0.002
SHAPES = {"square": (4, 4), "tall": (6, 2), "wide": (2, 5), "convolution": (3, 2, 2, 2)}
UNBOUNDED = {
    "default": SpectralUpdate(bound=None),
    "averages alone": SpectralUpdate(bound=None, newest=0.0, decay=0.8),
    "five polynomials": SpectralUpdate(bound=None, iterations=5, newest=0.5),
    "whitened": WhitenedUpdate(bound=None),
    "shorter sides whitened": WhitenedUpdate(bound=None, longest=3, decay=0.9),
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


def displacements(update, steps=4, rate=RATE, dtype=torch.float32, **changes):
    """What each full step moves when an optimizer descends along the gradients."""
    model = Matrices().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    config = HybridConfig(
        total_steps=100, speedup=1, updates={"hidden": update}, kinds={"*": "hidden"}, **changes
    )
    moved = []
    with HybridEngine(model, optimizer, config) as engine:
        for step in range(steps):
            before = [p.detach().clone() for p in model.parameters()]
            engine.before_step()
            for p, gradient in zip(model.parameters(), gradients(step), strict=True):
                p.grad = gradient.to(dtype)
            optimizer.step()
            engine.after_step()
            pairs = zip(model.parameters(), before, strict=True)
            moved.append([(p - b).detach() for p, b in pairs])
    assert engine.ledger.corrected_steps == (steps if make_update(update).share else 0)
    return moved


@pytest.mark.parametrize("case", UNBOUNDED)
def test_unbounded_it_moves_as_the_naive_rule(case):
    update, shapes = UNBOUNDED[case], [as_matrix(shape) for shape in SHAPES.values()]
    naive = Naive(update, shapes)
    for step, moved in enumerate(displacements(update, steps=12)):
        given = zip(gradients(step), shapes, strict=True)
        matrices = [g.double().numpy().reshape(shape) for g, shape in given]
        for x, wanted in zip(moved, naive.step(matrices, RATE), strict=True):
            size = np.linalg.norm(wanted)
            np.testing.assert_allclose(x.reshape(wanted.shape), wanted, rtol=0, atol=3e-4 * size)


@pytest.mark.parametrize("name", UPDATES)
def test_weights_of_64_bits_may_have_averages_of_16(name):
    wide = displacements(name, dtype=torch.float64, history_dtype="bfloat16", max_overhead=1e9)
    for x, y in zip(wide[-1], displacements(name, max_overhead=1e9)[-1], strict=True):
        assert x.dtype == torch.float64
        assert float(torch.cosine_similarity(x.flatten(), y.double().flatten(), dim=0)) > 0.9


@pytest.mark.parametrize("bound", [1.0, 1.5, 2.0, None])
def test_no_update_is_longer_than_the_bound(bound):
    rate = RATE / 100  # so that all updates would be four times as long as the optimizer's
    for step, moved in enumerate(displacements(SpectralUpdate(bound=bound), rate=rate)):
        own = [rate * float(g.norm()) for g in gradients(step)]
        ratios = [float(x.norm()) / length for x, length in zip(moved, own, strict=True)]
        stretch = [1.0, 3**0.5, 1.0, 1.0]
        wanted = [4 * s if bound is None else bound for s in stretch]
        assert ratios == pytest.approx(wanted, rel=1e-4)


def test_the_default_bound_is_two():
    free, bounded = (displacements(SpectralUpdate(**b)) for b in ({"bound": None}, {}))
    long = 0
    for step, (free_step, bounded_step) in enumerate(zip(free, bounded, strict=True)):
        for x, y, g in zip(free_step, bounded_step, gradients(step), strict=True):
            factor = min(1.0, 2 * RATE * float(g.norm()) / float(x.norm()))
            torch.testing.assert_close(y, factor * x, rtol=1e-4, atol=1e-7)
            long += factor < 1
    assert long > 0


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_update_is_corrected(share):
    full, part = (displacements(SpectralUpdate(share=s)) for s in (1.0, share))
    for k, (whole, mixed) in enumerate(zip(full, part, strict=True)):
        for x, y, g in zip(whole, mixed, gradients(k), strict=True):
            torch.testing.assert_close(y, share * x - (1 - share) * RATE * g, rtol=1e-4, atol=1e-6)


OUT_OF_RANGE = {
    "share": (-0.1, 1.1, math.nan, True),
    "bound": (0.9, math.inf, math.nan, "2"),
    "decay": (-0.1, 1.0, math.nan),
    "newest": (-0.1, 0.6, math.nan),
    "iterations": (0, 6, 1.5, True),
    "longest": (0, 1.5, True, None),
}


@pytest.mark.parametrize(
    ("argument", "value"), [(name, value) for name, bad in OUT_OF_RANGE.items() for value in bad]
)
def test_hyperparameters_out_of_range_are_refused(argument, value):
    with pytest.raises(ConfigError, match=f"^{argument}: expected .*got {value!r}"):
        WhitenedUpdate(**{argument: value})


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_is_a_value_that_its_name_stands_for(name):
    update = make_update(name)
    assert update == UPDATES[name]()
    assert make_update(update) is update
    with pytest.raises(ConfigError, match="history_dtype"):
        UPDATES[name](decay=0.96).init([torch.zeros(2, 2)], "bfloat16")


@pytest.mark.parametrize("choice", ["muon", None, 3])
def test_an_unknown_update_is_refused_with_the_known_names(choice):
    expected = "updates: expected one of spectral, whitened, or an AbstractUpdate"
    with pytest.raises(ConfigError, match=expected):
        make_update(choice)
