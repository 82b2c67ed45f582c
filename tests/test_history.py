"""The course of a run in bounded memory."""

from itertools import pairwise

import pytest

from hybrid_predict import Phase, StepRecord, Verdict
from hybrid_predict.report import RunHistory


def filled(steps, capacity):
    history = RunHistory(capacity=capacity)
    for k in range(1, steps + 1):
        record = StepRecord(k, Phase.PREDICT, 2.0, 1, loss=1.0 / k, verdict=Verdict.ACCEPTED)
        history.add(record, equivalent_steps=2 * k)
    return history


@pytest.mark.parametrize("steps", [3, 10, 100, 1000])
def test_rows_are_evenly_spaced_and_never_more_than_the_capacity(steps):
    history = filled(steps, capacity=10)
    taken = history.column("full_step")
    assert 0 < len(taken) <= 10
    assert {b - a for a, b in pairwise(taken)} <= {history.stride}
    assert steps - taken[-1] < history.stride
    assert history.column("equivalent_step") == [2 * k for k in taken]


def test_row_holds_what_the_record_says():
    history = filled(1, capacity=10)
    columns = ("full_step", "equivalent_step", "loss", "horizon", "verdict")
    assert [history.column(name) for name in columns] == [[1], [2], [1.0], [2.0], ["accepted"]]


def test_history_survives_a_round_trip():
    history, fresh = filled(25, capacity=10), RunHistory(capacity=10)
    fresh.load_state_dict(history.state_dict())
    assert fresh == history
