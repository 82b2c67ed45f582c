"""Saved windows of other tensors, and damaged ones, are refused."""

import pytest
import torch

from hybrid_predict.errors import CheckpointError
from hybrid_predict.forecast.window import Window, reading

LENGTH = 20


def test_samples_of_other_tensors_are_refused():
    window = Window(LENGTH, [torch.zeros(3, 4)])
    other = Window(LENGTH, [torch.zeros(3, 5)]).state_dict()
    with pytest.raises(CheckpointError, match="samples of these tensors"):
        window.load_state_dict(other)


@pytest.mark.parametrize(
    ("tag", "count"),
    [(["k", 0, ["a"], 3, 2], 7), (["k", 0, ["a"], 0, 2], 8), (["k", 0, [1], 3, 2], 8),
     (["k", 0, ["a"], 3, 1.5], 8)],
)  # fmt: skip
def test_a_damaged_reading_is_refused(tag, count):
    with pytest.raises(CheckpointError, match="state: expected"):
        reading(tag, [1.0] * count)
