"""The run log: one file, one run; what a crash or another run leaves there harms neither."""

import json
import os

import pytest

from hybrid_predict import StepRecord
from hybrid_predict.errors import ConfigError
from hybrid_predict.ledger import Phase, SavingsLedger
from hybrid_predict.runs import log as log_module
from hybrid_predict.runs.figures import loss_figure
from hybrid_predict.runs.log import NAME, LogWriter, find_log, read_log
from hybrid_predict.runs.overview import Overview


def begun(path, full_steps=0, steps=100):
    writer = LogWriter(path)
    writer.start(Overview((), (), steps, 30, 10, 5, 1000), {}, full_steps)
    return writer


def stepped(writer, *numbers, loss=1.0):
    for number in numbers:
        ledger = SavingsLedger(full_steps=number, steps=number)
        writer.step(StepRecord(number, Phase.FULL, 1, loss=loss), ledger)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_every_line_names_its_run_and_is_on_the_disk_at_once(tmp_path):
    path = tmp_path / NAME
    writer = begun(path)
    for number in range(1, 4):
        stepped(writer, number)
        assert len(lines(path)) == 1 + number
    writer.end("finished")
    assert read_log(path) == writer.log
    assert len({line["run"] for line in lines(path)}) == 1


def test_rows_are_evenly_spaced_and_never_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "ROWS", 10)
    writer = begun(tmp_path / NAME, steps=40)
    stepped(writer, *range(1, 41))
    assert [row.ledger.full_steps for row in writer.log.rows] == list(range(4, 41, 4))
    monkeypatch.setattr(log_module, "_PATIENCE", -1.0)  # every row is late
    stepped(writer, *range(41, 101))
    kept = [row.ledger.full_steps for row in writer.log.rows]
    assert len(kept) <= 40 and kept[-1] == 100 and kept == sorted(kept)
    assert len(read_log(tmp_path / NAME).rows) == 70
    writer.close()


def test_every_run_has_a_file_of_its_own_and_a_resumed_one_goes_on_in_it(tmp_path):
    first, second = begun(tmp_path / NAME), begun(tmp_path / NAME)
    assert first.path == tmp_path / NAME and second.path not in (None, first.path)
    stepped(first, *range(1, 11), loss=1.0)
    stepped(second, *range(1, 11), loss=2.0)
    first.end("finished")
    one, other = read_log(first.path), read_log(second.path)
    assert {row.loss for row in one.rows} == {1.0} and one.status == "finished"
    assert {row.loss for row in other.rows} == {2.0} and other.status == "running"
    assert other.place == second.path and one.place == tmp_path
    os.utime(one.path, (0, 0))
    assert find_log(tmp_path) == second.path
    resumed = begun(tmp_path / NAME, full_steps=8)
    assert resumed.path == second.path
    stepped(second, 11, loss=2.0)  # is still alive
    stepped(resumed, 9, loss=3.0)
    resumed.end("finished")
    second.close()
    log = read_log(second.path)
    assert [row.loss for row in log.rows] == [2.0] * 8 + [3.0]
    assert log.status == "finished"


CUT_OFF = [b'{"type": "ro', "é".encode()[:1]]


@pytest.mark.parametrize("start", CUT_OFF, ids=repr)
def test_a_line_cut_off_by_a_crash_costs_that_line(tmp_path, start):
    path = tmp_path / NAME
    writer = begun(path)
    stepped(writer, *range(1, 11))
    writer.close()
    with path.open("ab") as file:
        file.write(start)
    log = read_log(path)
    assert (len(log.rows), log.unread) == (10, 1)
    resumed = begun(path, full_steps=8)
    stepped(resumed, *range(9, 13))
    resumed.end("finished")
    log = read_log(path)
    assert [row.ledger.full_steps for row in log.rows] == list(range(1, 13))
    assert (log.unread, log.status) == (1, "finished")


def test_a_run_of_another_version_hides_none_of_this_one(tmp_path):
    path = tmp_path / NAME
    old = [{"type": "start", "schema": 1, "time": 1.0}]
    old += [{"type": "row", "full_steps": k} for k in range(3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    with pytest.raises(ConfigError, match="It has schema 1, this version reads"):
        read_log(path)
    writer = begun(path)
    stepped(writer, 1, 2)
    writer.close()
    assert len(read_log(find_log(tmp_path)).rows) == 2


def test_a_place_that_cannot_be_written_costs_one_warning(tmp_path, caplog):
    path = tmp_path / "file" / NAME
    path.parent.write_text("")
    writer = begun(path)
    stepped(writer, 1)
    writer.end("finished")
    assert caplog.text.count("training goes on without it") == 1


@pytest.mark.parametrize("steps", [0, 400])
def test_the_figure_counts_predicted_steps_by_verdict(steps):
    """A predicted step comes before every third full step; every ninth is undone.

    The height of a bar is that of predicted steps per full step.
    """
    pytest.importorskip("matplotlib")
    writer = begun(None, steps=400)
    for k in range(1, steps + 1):
        ledger = SavingsLedger(
            full_steps=k, steps=k, predicted_steps=k // 3 - k // 9, undone_steps=k // 9
        )
        writer.step(StepRecord(k, Phase.FULL, 1, loss=1 / k), ledger)
    _, bottom = loss_figure(writer.log).axes
    stands, undone = (
        sum(bar.get_height() * bar.get_width() for bar in bars) for bars in bottom.containers
    )
    assert (stands, undone) == pytest.approx((steps // 3 - steps // 9, steps // 9))
    shown = [text.get_text() for text in bottom.get_legend().get_texts()]
    assert shown == [f"stands: {stands:.0f}", f"undone: {undone:.0f}"]
