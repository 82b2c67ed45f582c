"""Which groups may be predicted: most of the gated weights, and a quarter of all that count."""

import pytest

from hybrid_predict.rules.gate import Part, judged, suffice, too_few

FREE = Part(50, gated=False, ready=True)


@pytest.mark.parametrize(
    ("parts", "trained", "wanted"),
    [
        ([Part(100, True, True)], 100, True),
        ([Part(100, True, False)], 100, False),
        ([Part(60, True, True), Part(40, True, False)], 100, True),
        ([Part(40, True, True), Part(60, True, False)], 100, False),
        ([Part(100, True, True)], 400, True),
        ([Part(100, True, True)], 401, False),
        ([Part(100, True, True), FREE], 401, True),
        ([FREE], 200, True),
        ([Part(10, True, True), Part(5, True, True, table=True)], 41, False),
        ([Part(25, True, True), Part(75, True, False, decides=False)], 100, True),
        ([Part(24, True, True), Part(76, True, False, decides=False)], 100, False),
        ([Part(24, True, True), Part(76, True, True, decides=False)], 100, True),
        ([Part(24, True, False), Part(76, True, True, decides=False)], 100, True),
        ([Part(100, True, True, decides=False)], 100, False),
        ([Part(100, True, True, table=True, decides=False)], 0, False),
        ([], 0, False),
    ],
)
def test_the_ready_parts_have_most_gated_weights_and_move_enough(parts, trained, wanted):
    assert suffice(parts, trained) is wanted


@pytest.mark.parametrize(("trained", "wanted"), [(100, [True, False]), (101, [True, True])])
def test_parts_that_do_not_decide_count_where_the_others_are_too_few(trained, wanted):
    parts = [Part(25, True, True), Part(75, True, True, decides=False)]
    assert judged(parts, trained) == wanted
    assert judged(parts[1:], trained) == [False]


@pytest.mark.parametrize(("table", "wanted"), [(False, False), (True, True)])
def test_too_few_weights_can_ever_be_moved(table, wanted):
    assert too_few([Part(100, True, False, table)], 400) is wanted
