"""Work is dealt evenly, and alike wherever it is dealt."""

from __future__ import annotations

import random

import pytest

from hybrid_predict.policy.budget import deal
from hybrid_predict.ranks.owners import rounds

RANDOM = random.Random(0)
LISTS = [[], [5], [3, 3, 3], [RANDOM.randrange(1, 100) for _ in range(40)]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 64])
@pytest.mark.parametrize("work", LISTS)
def test_no_rank_has_much_more_than_its_share(work: list[int], ranks: int) -> None:
    owners = deal(work, ranks)
    assert owners == deal(list(work), ranks)
    loads = [sum(w for w, o in zip(work, owners, strict=True) if o == r) for r in range(ranks)]
    assert sum(loads) == sum(work)
    # Graham's bound for longest processing time first.
    least = max([sum(work) / ranks, *work])
    assert max(loads) <= (4 / 3) * least


def test_equal_work_starts_with_the_first_rank() -> None:
    assert deal([4, 4, 4], 3, first=1) == [1, 2, 0]
    assert deal([1, 4, 2], 2) == [1, 0, 1]


def test_rounds_bound_what_each_owner_has_at_a_time() -> None:
    sizes, owners = [6, 5, 20, 4, 1, 3], [0, 0, 1, 0, 1, 0]
    assert rounds(sizes, owners, 10) == [[0, 2], [1, 3, 4], [5]]
    assert rounds(sizes, owners, 100) == [[0, 1, 2, 3, 4, 5]]
    assert rounds([], [], 10) == []
