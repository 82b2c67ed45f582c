"""Windows have the bits of what they compare, and go on after a resume as if they had not ended."""

import pytest
import torch

from hybrid_predict.forecast.window import Window
from hybrid_predict.torch.deltas import WeightDelta
from hybrid_predict.verify.delayed_queue import DelayedQueue

WIDE = {torch.bfloat16: torch.float32, torch.float32: torch.float32, torch.float64: torch.float64}


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_a_window_has_at_least_32_bits_and_those_of_its_tensors(dtype):
    values = [torch.zeros(3, dtype=dtype)]
    moved = [torch.tensor([1.0, 1 / 3, 0.1], dtype=WIDE[dtype])]
    window, other = Window(4, values), Window(4, values)
    for _ in range(2):
        window.add(moved)
    window.open(WeightDelta(("a",), (moved[0],), (1.0,)), [moved])
    window.add(moved)
    other.load_state_dict(window.state_dict())
    found = []
    for each in (window, other):
        assert each.add(moved)
        found.append(each.close(None))
    assert torch.equal(*found)
    assert {x.dtype for x in found} == {WIDE[dtype]}


def test_a_queue_keeps_64_bits():
    queue, other = DelayedQueue(1), DelayedQueue(1)
    queue.push("tag", torch.tensor([1 / 3], dtype=torch.float64))
    other.load_state_dict(queue.state_dict())
    assert other.pop(drain=True) == queue.pop(drain=True) == ("tag", [1 / 3])
