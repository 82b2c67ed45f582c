"""The run log: one file, one run; what a crash or another run leaves there harms neither."""

import json
import os
import signal
import subprocess
import sys

import pytest

from hybrid_predict import StepRecord
from hybrid_predict.errors import ConfigError
from hybrid_predict.ledger import Phase, SavingsLedger
from hybrid_predict.report import log_writer
from hybrid_predict.report.log_writer import LogWriter
from hybrid_predict.report.overview import Overview
from hybrid_predict.report.run_figures import loss_figure
from hybrid_predict.report.run_log import NAME, find_log, read_log


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
    begun(path).close()
    names = [line["run"] for line in lines(path)]
    assert len(set(names[:5])) == 1 and names[5] not in names[:5]


def test_a_run_begins_before_its_first_full_step(tmp_path, monkeypatch):
    """Which takes long if it compiles the model."""
    seconds = iter([10.0, 70.0])
    monkeypatch.setattr(log_writer, "time", lambda: next(seconds))
    writer = begun(tmp_path / NAME)
    writer.end("finished")
    log = read_log(tmp_path / NAME)
    assert (log.start["time"], log.seen) == (10.0, 70.0)


def test_rows_are_evenly_spaced_and_never_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(log_writer, "ROWS", 10)
    writer = begun(tmp_path / NAME, steps=40)
    stepped(writer, *range(1, 41))
    assert [row.ledger.full_steps for row in writer.log.rows] == list(range(4, 41, 4))
    monkeypatch.setattr(log_writer, "_PATIENCE", -1.0)  # every row is late
    stepped(writer, *range(41, 101))
    kept = [row.ledger.full_steps for row in writer.log.rows]
    assert len(kept) <= 40 and kept[-1] == 100 and kept == sorted(kept)
    assert len(read_log(tmp_path / NAME).rows) == 70
    writer.close()


def test_a_second_run_that_trains_in_the_folder_has_a_file_of_its_own(tmp_path, caplog):
    first, second = begun(tmp_path / NAME), begun(tmp_path / NAME)
    assert first.path == tmp_path / NAME and second.path not in (None, first.path)
    assert caplog.text.count("Another run is writing to") == 1
    stepped(first, *range(1, 11), loss=1.0)
    stepped(second, *range(1, 11), loss=2.0)
    first.end("finished")
    one, other = (read_log(writer.path) for writer in (first, second) if writer.path)
    assert {row.loss for row in one.rows} == {1.0} and one.status == "finished"
    assert {row.loss for row in other.rows} == {2.0} and other.status == "running"
    assert other.place == second.path and one.place == tmp_path
    os.utime(one.path, (0, 0))
    assert find_log(tmp_path) == second.path
    second.close()
    third = begun(tmp_path / NAME)  # the first run is over
    assert third.path == tmp_path / NAME
    third.close()


def test_a_run_in_another_process_locks_the_file_until_it_is_killed(tmp_path):
    code = (
        "import os, sys, time; from pathlib import Path;"
        "from hybrid_predict.report.overview import Overview;"
        "from hybrid_predict.report.log_writer import LogWriter;"
        f"writer = LogWriter(Path({str(tmp_path / NAME)!r}));"
        "writer.start(Overview((), (), 9, 0, 0, 0, 0), {});"
        "worker = os.fork(); worker or time.sleep(600);"
        "print(worker, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        worker = int(other.stdout.readline())  # a data loader's, which is not killed with the run
        mine = begun(tmp_path / NAME)
        assert mine.path != tmp_path / NAME
        mine.close()
        other.kill()
        other.wait()
        after = begun(tmp_path / NAME)
        os.kill(worker, signal.SIGKILL)
    assert after.path == tmp_path / NAME
    after.close()


def test_the_last_run_is_read_from_lines_of_two_runs_in_one_file(tmp_path, monkeypatch):
    """As on a file system without locks."""
    monkeypatch.setattr(log_writer, "_lock", lambda file, release=False: True)
    first, second = begun(tmp_path / NAME, steps=100), begun(tmp_path / NAME, steps=50)
    for number in range(1, 4):
        stepped(first, number, loss=1.0)
        stepped(second, number, loss=2.0)
    first.end("finished")
    log = read_log(tmp_path / NAME)
    assert (log.steps, log.status, log.unread) == (50, "running", 0)
    assert [row.loss for row in log.rows] == [2.0] * 3
    second.close()


CUT_OFF = [b'{"type": "ro', "é".encode()[:1], b"\xff", b"\0", b"\xf0\x9f"]


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


def test_a_start_that_was_cut_off_does_not_mix_two_runs(tmp_path):
    path = tmp_path / NAME
    for loss in (1.0, 2.0):
        writer = begun(path)
        stepped(writer, 1, 2, loss=loss)
        writer.close()
    kept = [line for line in path.read_bytes().splitlines() if line]
    kept[3] = kept[3][: len(kept[3]) // 2]
    path.write_bytes(b"\n".join(kept) + b"\n")
    log = read_log(path)
    assert ([row.loss for row in log.rows], log.unread) == ([1.0, 1.0], 1)


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
    assert len(read_log(path).rows) == 2


PLACES = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "below a file": lambda path: path.parent.write_text(""),
}


@pytest.mark.parametrize("what", PLACES)
def test_what_is_no_file_costs_one_warning(tmp_path, caplog, what):
    path = tmp_path / "file" / NAME if what == "below a file" else tmp_path / NAME
    PLACES[what](path)
    writer = begun(path)
    stepped(writer, 1)
    writer.end("finished")
    assert caplog.text.count("training goes on without it") == 1


@pytest.mark.parametrize("steps", [0, 1, 20, 400])
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
