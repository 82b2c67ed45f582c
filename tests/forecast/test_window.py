"""Windows measure what whole tensors would, on a sample, and continue after a resume."""

import numpy as np
import pytest
import torch
from loops import same_bits

from hybrid_predict import CheckpointError
from hybrid_predict.forecast.window import SAMPLE, Window, reading
from hybrid_predict.torch.deltas import WeightDelta

LENGTH = 20
HALF = LENGTH // 2


def displaced(values, steps=1):
    generator = torch.Generator().manual_seed(5)
    return [
        [torch.randn(v.shape, generator=generator).to(v.dtype) for v in values]
        for _ in range(steps)
    ]


def opened(window, directions, factor=0.5):
    names = tuple(map(str, range(len(directions))))
    window.open(WeightDelta(names, tuple(directions), (factor,) * len(names)), directions)
    return ["hidden", 0, list(names)]


@pytest.mark.parametrize("shapes", [[(3, 4), (5,)], [(300, 400)]], ids=["whole", "sampled"])
def test_products_are_those_of_whole_tensors(shapes):
    values = [torch.zeros(s, dtype=torch.float64) for s in shapes]
    window = Window(LENGTH, values)
    *early, first = displaced(values, HALF)
    rest = displaced(values, HALF)
    assert not any(map(window.add, early)) and not window.due
    assert not window.add(first) and window.due
    tag = opened(window, first)
    assert [window.add(moved) for moved in rest] == [False] * (HALF - 1) + [True]
    steps, size, numbers = window.close(None)
    assert (steps, size, window.due) == (HALF, 3, True)
    measured = reading([*tag, steps, size], numbers.tolist())
    assert same_bits(*(list(x) for x in (reading(*measured.packed()).gram.flatten(),
                                         measured.gram.flatten())))  # fmt: skip
    for k, value in enumerate(values):
        moved = sum(r[k] for r in rest)
        columns = torch.stack([moved, 0.5 * first[k], first[k]]).flatten(1)
        wanted = (columns @ columns.T).numpy()
        share = value.numel() / min(value.numel(), SAMPLE)
        near = 1e-4 if share == 1 else 0.05
        gram = measured.gram[k] / wanted.max()
        np.testing.assert_allclose(gram, wanted / wanted.max(), atol=near)
        chance = float((columns[0] * columns[1]).square().sum()) * share
        assert measured.chance[k] == pytest.approx(chance, rel=0.1)
    pooled = measured.pooled(7.0)
    assert pooled.forecast == pytest.approx(measured.square)
    assert pooled.dot == pytest.approx(measured.gram[:, 0, 1].sum() / HALF)
    assert pooled.following == 7.0


def test_the_sample_is_fixed_and_nothing_is_drawn_for_it():
    values = [torch.zeros(300, 400)]
    state = torch.get_rng_state()
    windows = [Window(LENGTH, values) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    for window in windows:
        for moved in displaced(values, 3):
            window.add(moved)
    assert same_bits(windows[0].state_dict(), windows[1].state_dict())
    assert windows[0].state_dict()["drift"][0].numel() == SAMPLE


WIDE = {torch.bfloat16: torch.float32, torch.float32: torch.float32, torch.float64: torch.float64}


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_a_saved_window_continues_in_at_least_32_bits(dtype):
    values = [torch.zeros(3, dtype=dtype)]
    moved = [torch.tensor([1.0, 1 / 3, 0.1], dtype=WIDE[dtype])]
    window, other = Window(4, values), Window(4, values)
    for _ in range(2):
        window.add(moved)
    opened(window, moved)
    window.add(moved)
    other.load_state_dict(window.state_dict())
    closed = []
    for each in (window, other):
        assert each.add(moved)
        closed.append(each.close(None)[2])
    assert torch.equal(*closed)
    assert {x.dtype for x in closed} == {WIDE[dtype]}


def test_samples_of_other_tensors_are_refused():
    window = Window(LENGTH, [torch.zeros(3, 4)])
    other = Window(LENGTH, [torch.zeros(3, 5)]).state_dict()
    with pytest.raises(CheckpointError, match="samples of these tensors"):
        window.load_state_dict(other)


@pytest.mark.parametrize(
    ("tag", "count"),
    [(["k", 0, ["a"], 3, 2], 5), (["k", 0, ["a"], 0, 2], 6), (["k", 0, [1], 3, 2], 6),
     (["k", 0, ["a"], 3, 1.5], 6)],
)  # fmt: skip
def test_a_damaged_reading_is_refused(tag, count):
    with pytest.raises(CheckpointError, match="state: expected"):
        reading(tag, [1.0] * count)
