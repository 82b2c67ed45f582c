"""Parameters that hold a range of their flat entries, on a single rank; others in ``ranks/``."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from hybrid_predict.errors import UnsupportedSetupError
from hybrid_predict.ranks import layouts, shards
from hybrid_predict.ranks.layouts import Layout


def test_a_parameter_of_one_dimension_has_the_form_that_was_registered() -> None:
    p = nn.Parameter(torch.arange(6.0))
    assert not shards.is_sharded(p) and shards.form(p) is p
    layouts.register([p], [(2, 3)], [0], [lambda: True])
    assert shards.is_sharded(p)
    assert shards.form(p).shape == (2, 3)
    assert shards.form(p).untyped_storage().nbytes() == 4
    assert torch.equal(shards.local_shard(torch.ones(2, 3), p), torch.ones(6))
    assert shards.has_gradient(p) and torch.equal(shards.local_gradient(p), torch.zeros(6))


def test_ranges_that_do_not_make_up_a_parameter_are_refused() -> None:
    with pytest.raises(
        UnsupportedSetupError, match=r"9 entries in all for the shape .*fully_shard"
    ):
        layouts.register([nn.Parameter(torch.ones(6))], [(3, 3)], [0], [lambda: True])


def test_a_parameter_is_forgotten_with_its_model() -> None:
    p = nn.Parameter(torch.ones(4))
    layouts.register([p], [(2, 2)], [0], [lambda: True])
    before = len(layouts._FLAT)
    del p
    gc.collect()
    assert len(layouts._FLAT) < before


@pytest.mark.parametrize("flat", [True, False])
def test_parts_make_up_the_whole_and_share_its_memory(flat: bool) -> None:
    flat_boxes, boxes = [(0, 5), (5, 5), (5, 8)], [(0, 3), (3, 3), (3, 4)]
    chosen = tuple((slice(a, b),) for a, b in (flat_boxes if flat else boxes))
    columns = tuple((*box, slice(0, 2)) for box in chosen)
    place = Layout((4, 2), (0, 1, 2), chosen if flat else columns, (0, 0, 0), flat=flat)
    whole = torch.zeros(4, 2)
    for member in range(3):
        part = place.part(whole, member)
        assert part.shape == place.part_shape(member)
        part += 1
    assert torch.equal(whole, torch.ones(4, 2))
    assert place.shards == 3
