"""The event log: one file, one run; what a crash or another run leaves there harms neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybrid_predict import ConfigError, Phase, StepRecord
from hybrid_predict.ledger import SavingsLedger
from hybrid_predict.overview import Overview
from hybrid_predict.report.event_log import EventLog
from hybrid_predict.report.run_log import NAME, find_log, read_log
from hybrid_predict.report.stop_request import STOP, ask, is_asked


def begun(path: Path, full_steps: int = 0, steps: int = 100) -> EventLog:
    return EventLog(path, Overview((), (), steps, 30, 10, 5, 1000), {}, full_steps)


def stepped(log: EventLog, *numbers: int, loss: float = 1.0) -> SavingsLedger:
    ledger = SavingsLedger()
    for number in numbers:
        ledger = SavingsLedger(full_steps=number, steps=number)
        log.step(StepRecord(number, Phase.FULL, 1, loss=loss), ledger)
    return ledger


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_line_names_its_run_and_is_on_the_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / NAME
    log = begun(path)
    for number in range(1, 4):
        stepped(log, number)
        assert len(lines(path)) == 1 + number
    log.end("finished", None, SavingsLedger())
    again = begun(path)
    again.close()
    names = [line["run"] for line in lines(path)]
    assert len(set(names[:5])) == 1 and names[5] not in names[:5]


def test_a_second_run_that_trains_in_the_folder_has_a_file_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = begun(tmp_path / NAME), begun(tmp_path / NAME)
    assert first.path == tmp_path / NAME and second.path != first.path
    assert caplog.text.count("Another run is writing to") == 1
    for number in range(1, 11):
        stepped(first, number, loss=1.0)
        stepped(second, number, loss=2.0)
    first.end("finished", None, SavingsLedger())
    one, other = (read_log(log.path) for log in (first, second) if log.path)
    assert {row["loss"] for row in one.rows} == {1.0} and one.status == "finished"
    assert {row["loss"] for row in other.rows} == {2.0} and other.status == "running"
    assert other.place == second.path and one.place == tmp_path
    stepped(second, 11)
    os.utime(one.path, (0, 0))
    assert find_log(tmp_path) == second.path
    second.close()
    third = begun(tmp_path / NAME)  # the first run is over
    assert third.path == tmp_path / NAME
    third.close()


def test_a_run_in_another_process_is_seen_too_and_gone_when_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hybrid_predict.overview import Overview;"
        "from hybrid_predict.report.event_log import EventLog;"
        f"log = EventLog(Path({str(tmp_path / NAME)!r}), Overview((), (), 9, 0, 0, 0, 0), {{}});"
        "print('begun', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout and other.stdout.readline() == "begun\n"
        mine = begun(tmp_path / NAME)
        assert mine.path != tmp_path / NAME
        mine.close()
        other.kill()
    after = begun(tmp_path / NAME)
    assert after.path == tmp_path / NAME
    after.close()


def test_lines_of_two_runs_in_one_file_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without locks."""
    monkeypatch.setattr("hybrid_predict.report.event_log._lock", lambda file: True)
    first, second = begun(tmp_path / NAME, steps=100), begun(tmp_path / NAME, steps=50)
    for number in range(1, 4):
        stepped(first, number, loss=1.0)
        stepped(second, number, loss=2.0)
    first.end("finished", None, SavingsLedger())
    log = read_log(tmp_path / NAME)
    assert (log.steps, log.status, log.unread) == (50, "running", 0)
    assert [row["loss"] for row in log.rows] == [2.0] * 3
    second.close()


TORN = ['{"type": "ro', "é".encode()[:1], "日".encode()[:2], b"\xff", b"\0", b"\xf0\x9f"]


@pytest.mark.parametrize("torn", TORN, ids=repr)
def test_a_line_cut_off_by_a_crash_costs_that_line(
    tmp_path: Path, torn: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / NAME
    log = begun(path)
    stepped(log, *range(1, 11))
    log.close()
    with path.open("ab") as file:
        file.write(torn.encode() if isinstance(torn, str) else torn)
    found = read_log(path)
    assert (len(found.rows), found.unread) == (10, 1)
    resumed = begun(path, full_steps=8)
    stepped(resumed, *range(9, 13))
    resumed.end("finished", None, SavingsLedger())
    found = read_log(path)
    assert [row["full_steps"] for row in found.rows] == list(range(1, 13))
    assert (found.unread, found.status) == (1, "finished")
    assert not caplog.records


def test_a_start_that_was_cut_off_does_not_mix_two_runs(tmp_path: Path) -> None:
    path = tmp_path / NAME
    for losses in (1.0, 2.0):
        log = begun(path)
        stepped(log, 1, 2, loss=losses)
        log.close()
    kept = path.read_bytes().splitlines()
    kept[3] = kept[3][: len(kept[3]) // 2]
    path.write_bytes(b"\n".join(kept) + b"\n")
    found = read_log(path)
    assert ([row["loss"] for row in found.rows], found.unread) == ([1.0, 1.0], 1)


def test_a_run_of_another_version_hides_none_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / NAME
    old = {"type": "start", "schema": 1, "time": 1.0}
    older_rows = [{"type": "row", "full_steps": k} for k in range(3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in (old, *older_rows)))
    with pytest.raises(ConfigError, match="It has schema 1, this version reads"):
        read_log(path)
    log = begun(path)
    stepped(log, 1, 2)
    log.close()
    found = read_log(path)
    assert (len(found.rows), found.unread) == (2, 0)


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_what_is_no_file_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    path = tmp_path / NAME
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    log = begun(path)
    stepped(log, 1)
    log.end("finished", None, SavingsLedger())
    assert caplog.text.count("training goes on without it") == 1


@pytest.mark.parametrize("damage", ["[" * 100_000, '{"started": ' + "[" * 100_000, "\0", "pipe"])
def test_a_damaged_request_ends_no_training(tmp_path: Path, damage: str) -> None:
    log = begun(tmp_path / NAME)
    if damage == "pipe":
        os.mkfifo(tmp_path / STOP)
    else:
        (tmp_path / STOP).write_text(damage)
    assert not is_asked(tmp_path / NAME, log.started)
    log.close()


def test_a_request_never_goes_through_a_link(tmp_path: Path) -> None:
    log = begun(tmp_path / NAME)
    (tmp_path / "precious").write_text("mine")
    (tmp_path / STOP).symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="a link"):
        ask(read_log(tmp_path / NAME))
    assert (tmp_path / "precious").read_text() == "mine"
    log.close()
