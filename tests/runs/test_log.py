"""The run log: what a run writes is what readers find, after a crash and a resumption too."""

import os

from hybrid_predict import StepRecord
from hybrid_predict.ledger import Phase, SavingsLedger
from hybrid_predict.runs import log as log_module
from hybrid_predict.runs.log import NAME, RunLog, find_logs, read_log
from hybrid_predict.runs.overview import Overview


def begun(path, full_steps=0, steps=100):
    log = RunLog(path)
    log.begin(Overview(steps, 30, False, {}), {}, full_steps)
    return log


def stepped(writer, *numbers, loss=1.0):
    for number in numbers:
        ledger = SavingsLedger(full_steps=number, steps=number)
        writer.step(StepRecord(number, Phase.FULL, 1, loss=loss), ledger)


def test_every_line_is_on_the_disk_at_once(tmp_path):
    path = tmp_path / NAME
    writer = begun(path)
    for number in range(1, 4):
        stepped(writer, number)
        assert path.read_bytes().count(b"\n") == 1 + number
    writer.close("finished")
    assert read_log(path) == writer


def test_rows_are_evenly_spaced(tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "ROWS", 10)
    writer = begun(tmp_path / NAME, steps=40)
    stepped(writer, *range(1, 41))
    assert [row.ledger.full_steps for row in writer.rows] == list(range(4, 41, 4))


def test_the_run_that_was_started_last_is_shown(tmp_path):
    path = tmp_path / NAME
    stepped(begun(path), 1)
    second = begun(path)
    stepped(second, *range(1, 11), loss=2.0)
    log = read_log(path)
    assert {row.loss for row in log.rows} == {2.0} and log.status == "running"
    other = begun(tmp_path / "below" / NAME).path
    os.utime(path, (0, 0))
    assert find_logs(tmp_path)[0] == other


def test_a_resumed_run_goes_on_behind_a_line_that_a_crash_has_cut_off(tmp_path):
    path = tmp_path / NAME
    stepped(begun(path), *range(1, 11))
    with path.open("ab") as file:
        file.write('{"type": "é'.encode()[:-1])
    assert len(read_log(path).rows) == 10
    resumed = begun(path, full_steps=8)
    stepped(resumed, *range(9, 13))
    resumed.close("finished")
    log = read_log(path)
    assert [row.ledger.full_steps for row in log.rows] == list(range(1, 13))
    assert log.status == "finished"
