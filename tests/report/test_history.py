"""The course of a run in bounded memory, and its figure."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hybrid_predict import Phase, StepRecord, Verdict
from hybrid_predict.report.figure import run_figure
from hybrid_predict.report.history import RunHistory

STANDS, UNDONE = Verdict


def filled(full_steps: int, capacity: int = 2000, lag: int = 0) -> RunHistory:
    """A run in which a predicted step comes before every third full step; every ninth undone."""
    history, steps = RunHistory(capacity=capacity), 0
    for k in range(1, full_steps + 1):
        read = k - lag
        verdict = (UNDONE if read % 9 == 0 else STANDS) if read % 3 == 0 else None
        steps += 2 if verdict is STANDS and read > 0 else 1
        record = StepRecord(k, Phase.FULL, 1, predicted=int(k % 3 == 0))
        if read > 0:
            record = StepRecord(k, Phase.FULL, 1, record.predicted, read, verdict, None, 1 / read)
        history.add(record, steps)
    return history


@pytest.mark.parametrize("steps", [3, 10, 100, 1000])
def test_rows_are_evenly_spaced_never_too_many_and_lose_no_predicted_step(steps: int) -> None:
    history = filled(steps, capacity=10)
    taken = history.column("full_step")
    assert 0 < len(taken) <= 10
    assert {b - a for a, b in pairwise(taken[:-1])} <= {history.stride}
    assert taken[-1] == steps
    assert sum(history.column("undone")) == steps // 9
    assert sum(history.column("predicted")) == steps // 3 - steps // 9


@pytest.mark.parametrize("lag", [0, 4])
def test_rows_tell_the_step_that_was_read(lag: int) -> None:
    history = filled(9 + lag, lag=lag)
    assert history.rows[:9] == [
        [1, 1, 1.0, 0, 0], [2, 2, 1 / 2, 0, 0], [3, 4, 1 / 3, 1, 0], [4, 5, 1 / 4, 0, 0],
        [5, 6, 1 / 5, 0, 0], [6, 8, 1 / 6, 1, 0], [7, 9, 1 / 7, 0, 0], [8, 10, 1 / 8, 0, 0],
        [9, 11, 1 / 9, 0, 1],
    ]  # fmt: skip


@pytest.mark.parametrize("lag", [0, 4])
def test_a_history_saved_and_loaded_in_mid_run_goes_on_as_before(lag: int) -> None:
    history, fresh = filled(25, capacity=10, lag=lag), RunHistory(capacity=10)
    fresh.load_state_dict(history.state_dict())
    assert fresh == history
    record = StepRecord(26, Phase.FULL, 1, 0, 26 - lag, STANDS, None, 0.5)
    for one in (history, fresh):
        one.add(record, 34)
    assert fresh == history


@pytest.mark.parametrize("steps", [0, 1, 20, 400])
def test_figure_counts_predicted_steps_by_verdict(steps: int) -> None:
    pytest.importorskip("matplotlib")
    top, bottom = run_figure(filled(steps, capacity=100)).axes
    stands, undone = (sum(bar.get_height() for bar in bars) for bars in bottom.containers)
    assert (stands, undone) == (steps // 3 - steps // 9, steps // 9)
    shown = [text.get_text() for text in bottom.get_legend().get_texts()]
    assert shown == [f"stands: {stands:.0f}", f"undone: {undone:.0f}"]
    marked = top.collections[0].get_offsets() if top.collections else []
    assert (len(marked) > 0) == (undone > 0)
